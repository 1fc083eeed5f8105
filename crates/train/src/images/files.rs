//! Files of images: a folder with a folder of pictures for each class, or arrays of NumPy.

use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::{BYTES_MAX, Form, HINT, Images, Pixels, decode, numpy, of_file};
use crate::error::{Error, Kind};

/// Ends of names of pictures.
const ENDS: [&str; 3] = ["png", "jpg", "jpeg"];
/// No picture is larger as a file.
const FILE_BYTES_MAX: u64 = 1 << 28;

impl Images {
    /// Reads a folder with a folder for each class, in the order of their names, a `.npz` file with `x`
    /// and `y`, or a folder with `x.npy` and `y.npy`.
    ///
    /// # Errors
    /// If a file cannot be read, is no image of this form, or a label is outside of the classes; the
    /// message has the path.
    pub fn from_path(path: &Path, form: Form) -> Result<Images, Error> {
        let metadata = fs::metadata(path);
        let metadata = metadata.map_err(|e| Error::io("read", path, e).with_hint(HINT))?;
        let is_archive = path.extension().is_some_and(|end| end == "npz");
        match (metadata.is_dir(), is_archive) {
            (true, _) if path.join("x.npy").exists() => numpy::pair(path, form),
            (true, _) => read(path, form),
            (false, true) if metadata.is_file() => numpy::archive(path, form),
            _ => {
                let message = format!("{} is no folder of images and no .npz file", path.display());
                Err(Error::new(Kind::Data, message).with_hint(HINT))
            }
        }
    }
}

/// Reads all pictures. Classes count in the order of the names of their folders.
fn read(path: &Path, form: Form) -> Result<Images, Error> {
    let classes = entries(path)?;
    if let Some(file) = classes.iter().find(|class| !class.is_dir()) {
        return Err(of_file(file, "is no folder of a class"));
    }
    if classes.len() != form.classes {
        let message = format!("{} folders, expected one for each of the", classes.len());
        return Err(of_file(path, format!("{message} {} classes of the model", form.classes)));
    }
    let mut files = Vec::new();
    for (label, class) in classes.iter().enumerate() {
        let pictures = entries(class)?;
        if pictures.is_empty() {
            return Err(of_file(class, "no picture in it, expected at least one"));
        }
        files.extend(pictures.into_iter().map(|file| (file, label as u32)));
    }
    check_size(path, files.len(), form)?;
    let mut pixels = vec![0; files.len() * form.elements()];
    let chunks = pixels.par_chunks_mut(form.elements()).zip(&files);
    let read =
        chunks.map(|(pixels, (file, _))| picture(file, form).map(|it| pixels.copy_from_slice(&it)));
    // The first broken file in order, whichever thread is the first.
    read.collect::<Vec<Result<(), Error>>>().into_iter().collect::<Result<(), Error>>()?;
    let labels = files.into_iter().map(|(_, label)| label).collect();
    Images::new(form, Pixels::Bytes(pixels), labels)
}

/// Refuses a number of images that memory is not for.
fn check_size(path: &Path, images: usize, form: Form) -> Result<(), Error> {
    let bytes = images.saturating_mul(form.elements());
    if bytes <= BYTES_MAX {
        return Ok(());
    }
    let message = format!("{} has {images} images of {bytes} bytes together", path.display());
    Err(Error::new(Kind::Data, format!("{message}, expected at most {BYTES_MAX}"))
        .with_hint("train on a part of them"))
}

fn picture(file: &Path, form: Form) -> Result<Vec<u8>, Error> {
    let end = file.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    if !ENDS.contains(&&end[..]) {
        return Err(of_file(file, "not the name of a picture, expected .png, .jpg or .jpeg"));
    }
    let found = fs::metadata(file).map_err(|error| Error::io("read", file, error))?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        let message = format!("no regular file of at most {FILE_BYTES_MAX} bytes");
        return Err(of_file(file, message));
    }
    let bytes = fs::read(file).map_err(|error| Error::io("read", file, error))?;
    decode(&bytes, form.shape).map_err(|message| of_file(file, message))
}

/// What a folder has, but for what is hidden, in the order of names.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error| Error::io("list", folder, error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with('.') {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}
