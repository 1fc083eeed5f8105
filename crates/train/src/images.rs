//! Images to train on, with their labels.
//!
//! They are read as a whole, from a folder with one folder per class, or from NumPy arrays, and must have the
//! form that the model reads. Every tenth image, in the order of the files, is held out for validation. Ranks
//! compare [`Images::fingerprint`] to check that they have the same images.

mod decode;
mod files;
mod numpy;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use thinwire_wire::checksum;

use crate::error::{Error, Kind};

pub use decode::decode;
pub use numpy::arrays;

/// Largest size of all images, since every rank holds them in memory.
const BYTES_MAX: usize = 1 << 32;
/// One of this many images is held out.
const HELD_OUT: usize = 10;

const HINT: &str = "give a folder with a folder of .png or .jpg files for each class, a .npz file with \
                    x [N, C, H, W] and y [N], or a folder with x.npy and y.npy";

/// Form of the images that a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Channels, rows and columns of an image.
    pub shape: [usize; 3],
    /// Number of classes; labels count from 0.
    pub classes: usize,
}

impl Form {
    /// Returns the number of values of an image.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Values of images; bytes represent multiples of 1/255.
#[derive(Clone, PartialEq)]
pub enum Pixels {
    /// From 0 for black to 255.
    Bytes(Vec<u8>),
    /// Numbers exactly as the model reads them.
    Floats(Vec<f32>),
}

/// Images, of which some are held out. Clones share them.
#[derive(Clone, Debug, PartialEq)]
pub struct Images {
    shared: Arc<Shared>,
}

#[derive(PartialEq)]
struct Shared {
    form: Form,
    pixels: Pixels,
    labels: Vec<u32>,
    fingerprint: String,
}

impl Images {
    /// Creates a set of images with one label each.
    ///
    /// # Errors
    /// If there are no images, the numbers of images and labels differ, or a label is not a class.
    pub fn new(form: Form, pixels: Pixels, labels: Vec<u32>) -> Result<Images, Error> {
        let found = pixels.len().checked_div(form.elements()).unwrap_or(0);
        if found != labels.len() || found * form.elements() != pixels.len() || found == 0 {
            let (found, labels) = (pixels.len(), labels.len());
            let [c, h, w] = form.shape;
            let message =
                format!("{found} values for {labels} labels, expected {c}x{h}x{w} for each");
            return Err(Error::new(Kind::Data, message));
        }
        if let Some(at) = labels.iter().position(|label| *label as usize >= form.classes) {
            let (label, last) = (labels[at], form.classes.saturating_sub(1));
            let message = format!("label {label} of image {at}, expected 0 to {last} of the model");
            return Err(Error::new(Kind::Data, message));
        }
        let (pixels_sum, labels_sum) = (pixels.checksum(), checksum(bytemuck::cast_slice(&labels)));
        let fingerprint = format!(
            "{found} images of {:?}, crc32 {pixels_sum:08x}, labels {labels_sum:08x}",
            form.shape
        );
        Ok(Images { shared: Arc::new(Shared { form, pixels, labels, fingerprint }) })
    }

    /// Returns the form of every image.
    pub fn form(&self) -> Form {
        self.shared.form
    }

    /// Returns numbers, form and checksums, so that ranks can compare them.
    pub fn fingerprint(&self) -> &str {
        &self.shared.fingerprint
    }

    /// Returns the number of images for training.
    pub fn training(&self) -> usize {
        self.shared.labels.len() - self.held_out()
    }

    /// Returns the number of images that are held out.
    pub fn held_out(&self) -> usize {
        self.shared.labels.len() / HELD_OUT
    }

    /// Returns some of the images for training, by their indices.
    ///
    /// # Panics
    /// Reading an image panics if its index is too large.
    pub fn trained(&self, places: &[usize]) -> Labelled {
        let place = |at: &usize| at / (HELD_OUT - 1) * HELD_OUT + at % (HELD_OUT - 1);
        Labelled { images: self.clone(), places: places.iter().map(place).collect() }
    }

    /// Returns some of the images that are held out, by their indices.
    ///
    /// # Panics
    /// Reading an image panics if its index is too large.
    pub fn validation(&self, places: impl Iterator<Item = usize>) -> Labelled {
        let places = places.map(|at| at * HELD_OUT + HELD_OUT - 1).collect();
        Labelled { images: self.clone(), places }
    }
}

/// Some images of a set, with their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled {
    images: Images,
    places: Vec<usize>,
}

impl Labelled {
    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the form of every image.
    pub fn form(&self) -> Form {
        self.images.form()
    }

    /// Returns the label of each image.
    pub fn labels(&self) -> impl ExactSizeIterator<Item = u32> {
        self.places.iter().map(|place| self.images.shared.labels[*place])
    }

    /// Returns the values of an image `[c, h, w]`.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn values(&self, at: usize) -> Vec<f32> {
        let length = self.form().elements();
        let range = self.places[at] * length..(self.places[at] + 1) * length;
        match &self.images.shared.pixels {
            Pixels::Bytes(bytes) => {
                bytes[range].iter().map(|byte| f32::from(*byte) / 255.0).collect()
            }
            Pixels::Floats(values) => values[range].to_vec(),
        }
    }
}

impl Pixels {
    fn len(&self) -> usize {
        match self {
            Pixels::Bytes(bytes) => bytes.len(),
            Pixels::Floats(values) => values.len(),
        }
    }

    fn checksum(&self) -> u32 {
        match self {
            Pixels::Bytes(bytes) => checksum(bytes),
            Pixels::Floats(values) => checksum(bytemuck::cast_slice(values)),
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fingerprint)
    }
}

/// Returns an error about a file, with its path.
fn of_file(path: &Path, message: impl fmt::Display) -> Error {
    Error::new(Kind::Data, format!("{}: {message}", path.display())).with_hint(HINT)
}
