//! The data to learn from: the user's, or the text that this repository itself holds.

use std::path::Path;

use anyhow::{Result, anyhow};
use thinwire_train::spmd::Modality;
use thinwire_train::{Corpus, Dataset, Images};

use crate::failure::hinted;

/// The sources and docs that this program was built with.
const OWN: &str = include_str!(concat!(env!("OUT_DIR"), "/corpus.txt"));

/// The text or images at `path`, whichever the model reads, or our own text, with their name.
///
/// # Errors
/// If there is no such text, or there are no such images.
pub fn read(path: Option<&Path>, modality: &Modality) -> Result<(String, Dataset)> {
    let name = path.map(|path| path.display().to_string());
    Ok(match (modality, path) {
        (Modality::Text(_), Some(path)) => {
            (name.unwrap_or_default(), Corpus::from_path(path)?.into())
        }
        (Modality::Text(_), None) => {
            let text = Corpus::from_text(OWN.as_bytes())?;
            ("thinwire's own sources and docs".to_owned(), text.into())
        }
        (Modality::Images(images), Some(path)) => {
            (name.unwrap_or_default(), Images::from_path(path, images.form())?.into())
        }
        (Modality::Images(images), None) => {
            let form = images.form();
            let ([c, h, w], classes) = (form.shape, form.classes);
            let error = anyhow!("no --data for a model of {w}x{h} images of {c} channels");
            let hint =
                format!("--data FOLDER with {classes} folders of .png or .jpg files, or FILE.npz");
            return Err(hinted(error, &hint));
        }
    })
}
