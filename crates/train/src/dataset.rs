//! Data from which a model learns: text, or images with labels.

use crate::batch::{Batch, Windows};
use crate::corpus::Corpus;
use crate::error::{Error, Kind};
use crate::images::Images;

/// Data of a training; every rank has all of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Dataset {
    /// Text, byte by byte.
    Text(Corpus),
    /// Images with their labels.
    Images(Images),
}

impl Dataset {
    /// Returns a description with checksums, so that ranks can compare their data.
    pub fn fingerprint(&self) -> &str {
        match self {
            Dataset::Text(corpus) => corpus.fingerprint(),
            Dataset::Images(images) => images.fingerprint(),
        }
    }

    /// Refuses data that is too small for a row in every pass.
    pub(crate) fn check(&self, context: usize) -> Result<(), Error> {
        let (found, least, what, hint) = match self {
            // A pass starts anywhere in the first window, so two windows make sure of one.
            Dataset::Text(corpus) => {
                let hint = "give more text, or a shorter context";
                (corpus.training().len(), (2 * context).max(1), "text of", hint)
            }
            Dataset::Images(images) => {
                (images.training(), 1, "set of images of", "give more images")
            }
        };
        if found >= least && context > 0 {
            return Ok(());
        }
        let unit = if matches!(self, Dataset::Text(_)) { " bytes" } else { "" };
        let error = format!("training {what} {found}{unit}, expected at least {least}");
        Err(Error::new(Kind::Data, error).with_hint(hint))
    }

    /// Returns the number of rows of a pass that begins `offset` bytes into the text.
    pub(crate) fn rows(&self, context: usize, offset: usize) -> usize {
        match self {
            Dataset::Text(corpus) => (corpus.training().len() - 1 - offset) / context,
            Dataset::Images(images) => images.training(),
        }
    }

    /// Returns rows, given the start of each: the index of a byte of the text, or of an image.
    pub(crate) fn batch(&self, starts: &[usize], context: usize) -> Batch {
        match self {
            Dataset::Text(corpus) => {
                let window = |start: &usize| &corpus.training()[*start..=start + context];
                Windows::new(starts.iter().flat_map(window).copied().collect(), context).into()
            }
            Dataset::Images(images) => Batch::Images(images.trained(starts)),
        }
    }

    /// Returns the number of rows that are held out.
    pub(crate) fn held_out(&self, context: usize) -> usize {
        match self {
            Dataset::Text(corpus) => corpus.validation().len().saturating_sub(1) / context,
            Dataset::Images(images) => images.held_out(),
        }
    }

    /// Returns some of the rows that are held out.
    pub(crate) fn validation(&self, rows: impl Iterator<Item = usize>, context: usize) -> Batch {
        match self {
            Dataset::Text(corpus) => {
                let window = |row: usize| &corpus.validation()[row * context..=(row + 1) * context];
                Windows::new(rows.flat_map(window).copied().collect(), context).into()
            }
            Dataset::Images(images) => Batch::Images(images.validation(rows)),
        }
    }
}

impl From<Corpus> for Dataset {
    fn from(corpus: Corpus) -> Dataset {
        Dataset::Text(corpus)
    }
}

impl From<Images> for Dataset {
    fn from(images: Images) -> Dataset {
        Dataset::Images(images)
    }
}
