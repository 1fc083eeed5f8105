//! Images as NumPy arrays: `x` of shape `[N, C, H, W]`, bytes or f32, and labels `y` of shape `[N]`.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use thinwire_graph::read::{self, Dense, Dtype};

use super::{BYTES_MAX, Form, Images, Pixels, of_file};
use crate::error::{Error, Kind};

/// Reads `x` and `y` of an archive.
pub fn archive(path: &Path, form: Form) -> Result<Images, Error> {
    arrays(BufReader::new(open(path)?), form).map_err(|message| of_file(path, message))
}

/// Reads the files `x.npy` and `y.npy` of a folder.
pub fn pair(folder: &Path, form: Form) -> Result<Images, Error> {
    let read = |name: &str| {
        let path = folder.join(name);
        let read = read::dense(BufReader::new(open(&path)?), BYTES_MAX as u64);
        read.map_err(|error| of_file(&path, error))
    };
    images(read("x.npy")?, read("y.npy")?, form).map_err(|message| of_file(folder, message))
}

fn open(path: &Path) -> Result<File, Error> {
    let file = File::open(path).map_err(|error| Error::io("read", path, error))?;
    let found = file.metadata().map_err(|error| Error::io("read", path, error))?;
    match found.is_file() {
        true => Ok(file),
        false => Err(Error::new(Kind::Data, format!("{} is no regular file", path.display()))),
    }
}

/// Reads the arrays `x` and `y` of an archive.
///
/// # Errors
/// If an array is missing or has the wrong shape, dtype or labels. The error is one line of text.
pub fn arrays(stream: impl Read + Seek, form: Form) -> Result<Images, String> {
    let [x, y] = read::arrays(stream, ["x", "y"], BYTES_MAX as u64).map_err(|e| e.to_string())?;
    images(x, y, form)
}

fn images(x: Dense, y: Dense, form: Form) -> Result<Images, String> {
    let [c, h, w] = form.shape;
    let shape = form.shape.map(|length| length as u64);
    if x.shape.len() != 4 || x.shape[1..] != shape {
        let found = &x.shape;
        return Err(format!(
            "x of shape {found:?}, expected [N, {c}, {h}, {w}] as the model reads it"
        ));
    }
    if y.shape != x.shape[..1] {
        let (found, expected) = (&y.shape, x.shape[0]);
        return Err(format!("y of shape {found:?}, expected [{expected}], a label for each image"));
    }
    let labels = (0..y.values.len()).map(|at| label(&y, at, form.classes));
    let labels = labels.collect::<Result<Vec<u32>, String>>()?;
    Images::new(form, pixels(x)?, labels).map_err(|error| error.to_string())
}

fn label(y: &Dense, at: usize, classes: usize) -> Result<u32, String> {
    let label = y.values.whole(at).map_err(|error| format!("y: {error}"))?;
    let fits = u32::try_from(label).ok().filter(|label| (*label as usize) < classes);
    let last = classes.saturating_sub(1);
    fits.ok_or_else(|| {
        format!("label {label} of image {at} in y, expected 0 to {last} of the model")
    })
}

fn pixels(x: Dense) -> Result<Pixels, String> {
    match x.values.dtype {
        Dtype::Uint(1) => Ok(Pixels::Bytes(x.values.bytes)),
        Dtype::F32 => {
            let length = x.values.columns.max(1) as usize;
            let values: Vec<f32> = (0..x.values.len()).map(|at| x.values.real(at)).collect();
            match values.iter().position(|value| !value.is_finite()) {
                None => Ok(Pixels::Floats(values)),
                Some(at) => {
                    let (value, image) = (values[at], at / length);
                    Err(format!("{value} in image {image} of x, expected finite numbers"))
                }
            }
        }
        other => Err(format!("x of {other}, expected uint8 or float32")),
    }
}
