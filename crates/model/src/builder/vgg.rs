//! VGG: convolutions of 3 × 3, followed by three large linear layers.
//!
//! Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
//! table 1, configurations B, D and E. Without dropout.

use super::Composer;
use crate::{Activation, Element, Error, Graph, Initial, Pool, PoolKind, Reshape, TensorId};

/// The sizes of a VGG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vgg {
    /// For each stage, the number of convolutions and their channels; a stage ends by halving the image.
    pub stages: Vec<(usize, usize)>,
    /// Features of the linear layers before the last one.
    pub hidden: Vec<usize>,
    /// Rows and columns of an image.
    pub image: usize,
    /// Classes.
    pub classes: usize,
}

/// Returns the model with this name.
pub fn named(name: &str) -> Option<Vgg> {
    let convolutions = match name {
        "vgg13" => [2, 2, 2, 2, 2],
        "vgg16" => [2, 2, 3, 3, 3],
        "vgg19" => [2, 2, 4, 4, 4],
        _ => return None,
    };
    let stages = convolutions.into_iter().zip([64, 128, 256, 512, 512]).collect();
    Some(Vgg { stages, hidden: vec![4096, 4096], image: 224, classes: 1000 })
}

impl Vgg {
    /// Returns the graph for a micro-batch of `batch` images.
    ///
    /// # Errors
    /// If images are too small for the stages.
    pub fn graph(&self, batch: usize) -> Result<Graph, Error> {
        let mut composer = Composer::default();
        let image = [batch, 3, self.image, self.image];
        let mut x = composer.input("images", &image, Element::Float);
        let targets = composer.input("targets", &[batch], Element::Index);
        for (stage, (convolutions, channels)) in self.stages.iter().enumerate() {
            x = composer.block(format!("stage.{stage}"), |composer| {
                let mut x = x;
                for at in 0..*convolutions {
                    x = convolution(composer, &format!("conv.{at}"), x, *channels)?;
                }
                let pool = Pool::square(PoolKind::Max, 2, 2, 0);
                composer.apply("pool", pool, &[x])
            })?;
        }
        composer.block("classifier", |composer| {
            let features = composer.shape(x).iter().skip(1).product();
            let flat = Reshape { shape: vec![batch, features] };
            let mut x = composer.apply("flat", flat, &[x])?;
            for (at, features) in self.hidden.iter().enumerate() {
                x = composer.linear(&format!("linear.{at}"), x, *features)?;
                x = composer.apply(&format!("relu.{at}"), Activation::Relu, &[x])?;
            }
            let logits = composer.linear("logits", x, self.classes)?;
            composer.cross_entropy(logits, targets)
        })?;
        Ok(composer.finish())
    }
}

/// Adds a convolution with its bias, and ReLU.
fn convolution(
    composer: &mut Composer,
    name: &str,
    x: TensorId,
    channels: usize,
) -> Result<TensorId, Error> {
    composer.scope(name, |composer| {
        let x = composer.conv2d("conv", x, channels, 3, 1)?;
        let bias = composer.parameter("bias", &[channels, 1, 1], Initial::Zeros);
        let x = composer.add("add", x, bias)?;
        composer.apply("relu", Activation::Relu, &[x])
    })
}
