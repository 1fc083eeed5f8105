//! What a model reads, by its inputs: text or images.

use thinwire_model::Graph;

use super::images::ImageInputs;
use super::text::{Inputs, Text};
use crate::Batch;
use crate::error::Error;

/// Inputs of a model of text or of images.
#[derive(Clone, Debug)]
pub enum Modality {
    /// Tokens, which are bytes.
    Text(Text),
    /// Images with their labels.
    Images(ImageInputs),
}

impl Modality {
    /// The inputs of a model; perhaps the user says which are the tokens.
    ///
    /// # Errors
    /// If the model reads neither text nor images, or more than that.
    pub fn new(graph: &Graph, tokens: Option<&str>) -> Result<Modality, Error> {
        let images = if tokens.is_none() { ImageInputs::new(graph)? } else { None };
        match images {
            Some(images) => Ok(Modality::Images(images)),
            None => Text::new(graph, tokens).map(Modality::Text),
        }
    }

    /// Rows of a micro-batch, and the tokens of one; of an image 1.
    pub fn sizes(&self) -> [usize; 2] {
        match self {
            Modality::Text(text) => text.sizes(),
            Modality::Images(images) => [images.rows(), 1],
        }
    }

    /// A batch, micro-batch by micro-batch.
    ///
    /// # Panics
    /// If the batch is of the other modality.
    pub fn inputs(&self, batch: &Batch) -> Vec<Inputs> {
        match (self, batch) {
            (Modality::Text(text), Batch::Text(windows)) => text.inputs(windows),
            (Modality::Images(inputs), Batch::Images(images)) => inputs.inputs(images),
            _ => panic!("text for a model of images, or images for a model of text"),
        }
    }
}
