//! Images for a classifier: a batch of images with labels as the inputs of micro-batches.
//!
//! The model reads floats `[batch, channels, rows, columns]`, and its loss compares with an index for each
//! image.

use thinwire_model::{Array, Element, Graph, Operator, Tensor, TensorId};

use super::inputs::Inputs;
use super::{invalid, text};
use crate::error::Error;
use crate::images::{Form, Labelled};

/// Inputs of a model of images, by their tensors.
#[derive(Clone, Debug)]
pub struct ImageInputs {
    images: TensorId,
    targets: TensorId,
    /// Shape of the targets.
    labels: Vec<usize>,
    rows: usize,
    form: Form,
}

impl ImageInputs {
    /// The inputs of a model, for micro-batches of its own size; none if it reads no images.
    ///
    /// # Errors
    /// If it reads anything else beside images, or there is not a target for every image.
    pub fn new(graph: &Graph) -> Result<Option<ImageInputs>, Error> {
        let is_image =
            |tensor: &Tensor| tensor.element == Element::Float && tensor.shape.len() == 4;
        let Some((images, tensor)) = text::inputs(graph).find(|(_, tensor)| is_image(tensor))
        else {
            return Ok(None);
        };
        let targets = text::targets(graph)?;
        if let Some((_, other)) =
            text::inputs(graph).find(|(id, _)| *id != images && *id != targets)
        {
            let Tensor { name, shape, .. } = other;
            let expected = "expected images and their labels alone";
            return Err(invalid(format!(
                "the model reads '{name}' of shape {shape:?}, {expected}"
            )));
        }
        let [rows, c, h, w] = tensor.shape[..] else { return Ok(None) };
        let labels = graph.tensors[targets].shape.clone();
        if graph.tensors[targets].elements() != rows {
            let message =
                format!("targets of shape {labels:?} for images of shape {:?}", tensor.shape);
            return Err(invalid(format!("{message}, expected one for each image")));
        }
        let form = Form { shape: [c, h, w], classes: classes(graph) };
        Ok(Some(ImageInputs { images, targets, labels, rows, form }))
    }

    /// Images of a micro-batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Form of the images that the model reads.
    pub fn form(&self) -> Form {
        self.form
    }

    /// A batch, micro-batch by micro-batch.
    pub fn inputs(&self, batch: &Labelled) -> Vec<Inputs> {
        let labels: Vec<f64> = batch.labels().map(f64::from).collect();
        let micro_batch = |(at, labels): (usize, &[f64])| {
            let [c, h, w] = self.form.shape;
            let first = at * self.rows;
            let values = (first..first + labels.len()).flat_map(|at| batch.values(at));
            let values = values.map(f64::from).collect();
            let images = Array::new([labels.len(), c, h, w], values);
            let targets = Array::new(&self.labels[..], labels.to_vec());
            Inputs::from([(self.images, images), (self.targets, targets)])
        };
        labels.chunks(self.rows).enumerate().map(micro_batch).collect()
    }
}

/// Number of classes of the loss.
fn classes(graph: &Graph) -> usize {
    let logits = graph.nodes.iter().rev().find_map(|node| match node.operator {
        Operator::CrossEntropy(_) => Some(node.inputs[0]),
        _ => None,
    });
    logits.and_then(|id| graph.tensors[id].shape.last().copied()).unwrap_or(0)
}
