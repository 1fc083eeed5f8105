//! Images are what their files have; whatever else is in files is refused in one line.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use super::*;
use crate::testing::Folder;

const GREY: Form = Form { shape: [1, 2, 3], classes: 2 };

fn png(colour: png::ColorType, [columns, rows]: [u32; 2], pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, columns, rows);
    encoder.set_color(colour);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    file
}

fn grey(first: u8) -> Vec<u8> {
    png(png::ColorType::Grayscale, [3, 2], &[first, 1, 2, 3, 4, 5])
}

fn npy(dtype: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), values].concat()
}

/// A folder with these files.
fn folder(name: &str, files: &[(&str, Vec<u8>)]) -> Folder {
    let folder = Folder::new(name);
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

fn error(path: &Path, form: Form) -> String {
    let error = Images::from_path(path, form).unwrap_err();
    let line = error.to_string().replace(&path.display().to_string(), "DATA");
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn a_folder_has_its_classes_and_pictures_in_the_order_of_their_names() {
    let files = [
        ("cat/b.png", grey(20)),
        ("cat/a.PNG", grey(10)),
        ("dog/a.png", grey(30)),
        (".hidden", vec![0]),
        ("dog/.hidden", vec![0]),
    ];
    let kept = folder("images", &files);
    let images = Images::from_path(kept.path(), GREY).unwrap();
    assert_eq!((images.training(), images.held_out()), (3, 0));
    let all = images.trained(&[0, 1, 2]);
    assert_eq!(all.labels().collect::<Vec<_>>(), [0, 0, 1]);
    let firsts: Vec<f32> = (0..3).map(|at| 255.0 * all.values(at)[0]).collect();
    assert_eq!(firsts, [10.0, 20.0, 30.0]);
    assert_eq!(all.values(0)[5], 5.0 / 255.0);
}

#[test]
fn colours_are_planes() {
    let pixels = [1, 2, 3, 4, 5, 6];
    let file = png(png::ColorType::Rgb, [2, 1], &pixels);
    assert_eq!(decode(&file, [3, 1, 2]).unwrap(), [1, 4, 2, 5, 3, 6]);
    let flat = include_bytes!("../../testdata/flat.jpg");
    let found = decode(flat, [3, 8, 8]).unwrap();
    for (channel, colour) in [200_u8, 100, 50].into_iter().enumerate() {
        let plane = &found[64 * channel..64 * (channel + 1)];
        assert!(plane.iter().all(|pixel| pixel.abs_diff(colour) <= 2), "{plane:?}");
    }
}

#[test]
fn pictures_that_do_not_fit_are_refused_with_their_file() {
    let flat = include_bytes!("../../testdata/flat.jpg");
    let (grey, rgb) = (grey(7), png(png::ColorType::Rgb, [3, 2], &[0; 18]));
    let wide = png(png::ColorType::Grayscale, [4, 2], &[0; 8]);
    let as_read = "expected 3x2 pixels of 1 channel as the model reads them";
    for (name, bytes, expected) in [
        ("x.png", wide, format!("4x2 pixels of 1 channel, {as_read}")),
        ("x.png", rgb, format!("3x2 pixels of 3 channels, {as_read}")),
        ("x.jpg", flat.to_vec(), format!("8x8 pixels of 3 channels, {as_read}")),
        ("x.png", grey[..grey.len() - 20].to_vec(), "a broken PNG: ".to_owned()),
        ("x.png", grey[..20].to_vec(), "a broken PNG: ".to_owned()),
        ("x.jpg", b"\xff\xd8\xff\xe0".to_vec(), "a broken JPEG: ".to_owned()),
        ("x.png", b"GIF89a".to_vec(), "no picture in PNG or JPEG".to_owned()),
        ("x.txt", grey.clone(), "not the name of a picture, expected .png".to_owned()),
    ] {
        let (a, b) = (("a/a.png", grey.clone()), (&*format!("b/{name}"), bytes));
        let kept = folder("refused", &[a, b]);
        let found = error(kept.path(), GREY);
        assert!(found.starts_with(&format!("DATA/b/{name}: {expected}")), "{found}");
    }
    let cut = decode(&flat[..flat.len() / 2], [3, 8, 8]).unwrap_err();
    assert!(cut.starts_with("a broken JPEG: "), "{cut}");
}

#[test]
fn folders_that_are_no_classes_of_the_model_are_refused() {
    let one = folder("one", &[("a/a.png", grey(0))]);
    let expected = "DATA: 1 folders, expected one for each of the 2 classes of the model";
    assert_eq!(error(one.path(), GREY), expected);
    let file = folder("file", &[("a/a.png", grey(0)), ("x", vec![0])]);
    assert_eq!(error(file.path(), GREY), "DATA/x: is no folder of a class");
    fs::create_dir(one.path().join("b")).unwrap();
    assert_eq!(error(one.path(), GREY), "DATA/b: no picture in it, expected at least one");
    assert!(error(&one.path().join("none"), GREY).starts_with("cannot read"));
    assert!(
        error(&one.path().join("a/a.png"), GREY)
            .ends_with("is no folder of images and no .npz file")
    );
}

#[test]
fn arrays_are_bytes_or_floats_with_labels() {
    let floats: Vec<u8> = (0..12).flat_map(|at| (at as f32 / 2.0).to_le_bytes()).collect();
    let labels = npy("<i8", "(2,)", &[1_i64.to_le_bytes(), 0_i64.to_le_bytes()].concat());
    let read = |x: Vec<u8>| {
        let kept = folder("arrays", &[("x.npy", x), ("y.npy", labels.clone())]);
        Images::from_path(kept.path(), GREY).unwrap().trained(&[0, 1])
    };
    let images = read(npy("<f4", "(2, 1, 2, 3)", &floats));
    assert_eq!(images.values(1), [3.0, 3.5, 4.0, 4.5, 5.0, 5.5]);
    assert_eq!(images.labels().collect::<Vec<_>>(), [1, 0]);
    let bytes = read(npy("|u1", "(2, 1, 2, 3)", &(0..12).map(|at| 20 * at).collect::<Vec<u8>>()));
    assert_eq!(bytes.values(0)[3], 60.0 / 255.0);
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let x = npy("|u1", "(2, 1, 2, 3)", &[0; 12]);
    let y = |labels: [i8; 2]| npy("|i1", "(2,)", &labels.map(|label| label as u8));
    let nan =
        [1.0_f32, f32::NAN].repeat(6).iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    for (x, y, expected) in [
        (
            npy("|u1", "(2, 2, 3)", &[0; 12]),
            y([0, 0]),
            "x of shape [2, 2, 3], expected [N, 1, 2, 3]",
        ),
        (
            npy("|u1", "(2, 3, 2, 3)", &[0; 36]),
            y([0, 0]),
            "x of shape [2, 3, 2, 3], expected [N, 1",
        ),
        (npy("|u1", "(1, 1, 2, 3)", &[0; 6]), y([0, 0]), "y of shape [2], expected [1], a label"),
        (x.clone(), y([0, 2]), "label 2 of image 1 in y, expected 0 to 1 of the model"),
        (x.clone(), y([0, -1]), "y: a negative number at position 1"),
        (x.clone(), npy("<f4", "(2,)", &[0; 8]), "y: an array of float32, expected whole numbers"),
        (
            npy("<f8", "(2, 1, 2, 3)", &[0; 96]),
            y([0, 0]),
            "x of float64, expected uint8 or float32",
        ),
        (npy("|b1", "(2, 1, 2, 3)", &[1; 12]), y([0, 0]), "x of bool, expected uint8 or float32"),
        (npy("<f4", "(2, 1, 2, 3)", &nan), y([0, 0]), "NaN in image 0 of x, expected finite"),
        (
            npy("|u1", "(0, 1, 2, 3)", &[]),
            npy("|i1", "(0,)", &[]),
            "0 values for 0 labels, expected",
        ),
        (x[..x.len() - 1].to_vec(), y([0, 0]), "an array that ends after 11 bytes, expected 12"),
    ] {
        let kept = folder("misfits", &[("x.npy", x), ("y.npy", y)]);
        let found = error(kept.path(), GREY);
        assert!(found.contains(expected), "{found}");
    }
    let found = arrays(Cursor::new(b"PK"), GREY).unwrap_err();
    assert!(found.starts_with("no archive of arrays"), "{found}");
}

#[test]
fn one_pixel_or_label_changes_the_fingerprint() {
    let images = |pixel, label| {
        let pixels = Pixels::Bytes(vec![0, 0, 0, 0, 0, pixel]);
        Images::new(GREY, pixels, vec![label]).unwrap().fingerprint().to_owned()
    };
    assert!(images(0, 0).starts_with("1 images of [1, 2, 3], crc32 "));
    assert_ne!(images(0, 0), images(1, 0));
    assert_ne!(images(0, 0), images(0, 1));
}

#[test]
fn every_image_is_trained_on_or_held_out() {
    for count in 1..40_u8 {
        let pixels = (0..count).flat_map(|image| [image; 6]).collect();
        let images = Images::new(GREY, Pixels::Bytes(pixels), vec![0; count.into()]).unwrap();
        let places: Vec<usize> = (0..images.training()).collect();
        let (trained, held_out) =
            (images.trained(&places), images.validation(0..images.held_out()));
        let values = |part: &Labelled| -> Vec<u8> {
            (0..part.len()).map(|at| (255.0 * part.values(at)[0]).round() as u8).collect()
        };
        assert!(values(&held_out).iter().all(|image| image % 10 == 9));
        let mut all = [values(&trained), values(&held_out)].concat();
        all.sort_unstable();
        assert_eq!(all, (0..count).collect::<Vec<_>>());
    }
}
