//! Images for a classifier: converts a batch of images with labels to the inputs of micro-batches.
//!
//! The model reads floats `[batch, channels, rows, columns]`, and its loss compares with one index per image.
//! Any other index that has a number for each place, such as a patch, counts from 0.

use thinwire_model::{Array, Element, Graph, Operator, Tensor, TensorId};

use super::invalid;
use super::text::{self, Inputs};
use crate::error::Error;
use crate::images::{Form, Labelled};

/// Inputs of a model of images, by their tensors.
#[derive(Clone, Debug)]
pub struct ImageInputs {
    images: TensorId,
    targets: TensorId,
    /// Shape of the targets.
    labels: Vec<usize>,
    /// Indices that count from 0, with their shapes.
    positions: Vec<(TensorId, Vec<usize>)>,
    rows: usize,
    form: Form,
}

impl ImageInputs {
    /// Returns the inputs of a model, for micro-batches of its own size; `None` if it reads no images.
    ///
    /// # Errors
    /// If it reads anything other than images, or there is not one target per image.
    pub fn new(graph: &Graph) -> Result<Option<ImageInputs>, Error> {
        let is_image =
            |tensor: &Tensor| tensor.element == Element::Float && tensor.shape.len() == 4;
        let Some((images, tensor)) = text::inputs(graph).find(|(_, tensor)| is_image(tensor))
        else {
            return Ok(None);
        };
        let targets = text::targets(graph)?;
        let others = text::inputs(graph).filter(|(id, _)| *id != images && *id != targets);
        let positions =
            others.map(|(id, tensor)| position(id, tensor)).collect::<Result<Vec<_>, Error>>()?;
        let [rows, c, h, w] = tensor.shape[..] else { return Ok(None) };
        let labels = graph.tensors[targets].shape.clone();
        if graph.tensors[targets].elements() != rows {
            let message =
                format!("targets of shape {labels:?} for images of shape {:?}", tensor.shape);
            return Err(invalid(format!("{message}, expected one for each image")));
        }
        let form = Form { shape: [c, h, w], classes: classes(graph) };
        Ok(Some(ImageInputs { images, targets, labels, positions, rows, form }))
    }

    /// Returns the number of images of a micro-batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the form of the images that the model reads.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Returns the inputs for a batch, micro-batch by micro-batch.
    pub fn inputs(&self, batch: &Labelled) -> Vec<Inputs> {
        let labels: Vec<f64> = batch.labels().map(f64::from).collect();
        let micro_batch = |(at, labels): (usize, &[f64])| {
            let [c, h, w] = self.form.shape;
            let first = at * self.rows;
            let values = (first..first + labels.len()).flat_map(|at| batch.values(at));
            let values = values.map(f64::from).collect();
            let images = Array::new([labels.len(), c, h, w], values);
            let targets = Array::new(&self.labels[..], labels.to_vec());
            let counted = self.positions.iter().map(|(id, shape)| {
                let last = shape.len() - 1;
                (*id, Array::from_fn(shape.clone(), |at| at[last] as f64))
            });
            counted.chain([(self.images, images), (self.targets, targets)]).collect()
        };
        labels.chunks(self.rows).enumerate().map(micro_batch).collect()
    }
}

/// Returns an index that counts along its only dimension, with its shape.
fn position(id: TensorId, tensor: &Tensor) -> Result<(TensorId, Vec<usize>), Error> {
    let Tensor { name, shape, element, .. } = tensor;
    if *element == Element::Index && shape.last().is_some_and(|last| *last == tensor.elements()) {
        return Ok((id, shape.clone()));
    }
    let expected = "expected images, their labels and positions alone";
    Err(invalid(format!("the model reads '{name}' of shape {shape:?}, {expected}")))
}

/// Returns the number of classes of the loss.
fn classes(graph: &Graph) -> usize {
    let logits = graph.nodes.iter().rev().find_map(|node| match node.operator {
        Operator::CrossEntropy(_) => Some(node.inputs[0]),
        _ => None,
    });
    logits.and_then(|id| graph.tensors[id].shape.last().copied()).unwrap_or(0)
}
