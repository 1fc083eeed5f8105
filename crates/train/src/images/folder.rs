//! A folder with a folder of pictures for each class.

use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::{Form, Images, Pixels, check_size, decode, of_file};
use crate::error::Error;

/// Ends of names of pictures.
const ENDS: [&str; 3] = ["png", "jpg", "jpeg"];
/// No picture is larger as a file.
const FILE_BYTES_MAX: u64 = 1 << 28;

/// Reads all pictures. Classes count in the order of the names of their folders.
pub fn read(path: &Path, form: Form) -> Result<Images, Error> {
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

fn picture(file: &Path, form: Form) -> Result<Vec<u8>, Error> {
    let end = file.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    if !ENDS.contains(&&end[..]) {
        return Err(of_file(file, "a name that is no picture's, expected .png, .jpg or .jpeg"));
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
