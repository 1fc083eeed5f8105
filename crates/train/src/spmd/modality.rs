//! Modality of a model, text or images, as determined from the model's inputs.

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
    /// Returns the inputs of a model. `tokens` is the name of the input with the tokens, if the user gives
    /// one.
    ///
    /// # Errors
    /// If the model reads neither text nor images, or has further inputs.
    pub fn new(graph: &Graph, tokens: Option<&str>) -> Result<Modality, Error> {
        let images = if tokens.is_none() { ImageInputs::new(graph)? } else { None };
        match images {
            Some(images) => Ok(Modality::Images(images)),
            None => Text::new(graph, tokens).map(Modality::Text),
        }
    }

    /// Returns the number of rows of a micro-batch, and the number of tokens of a row (1 for an image).
    pub fn sizes(&self) -> [usize; 2] {
        match self {
            Modality::Text(text) => text.sizes(),
            Modality::Images(images) => [images.rows(), 1],
        }
    }

    /// Returns the inputs for a batch, micro-batch by micro-batch.
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
