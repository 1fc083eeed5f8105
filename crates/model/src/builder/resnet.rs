//! ResNet: bottlenecks of three convolutions around a shortcut.
//!
//! He et al., "Deep Residual Learning for Image Recognition", table 1. As is now usual, the 3 × 3
//! convolution has the stride.

use super::Composer;
use crate::{Activation, Element, Error, Graph, Pool, PoolKind, Reshape, TensorId};

/// The sizes of a ResNet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resnet {
    /// For each stage, the number of bottlenecks and the number of channels within them; the outputs of
    /// bottlenecks have four times as many channels.
    pub stages: Vec<(usize, usize)>,
    /// Channels of the stem.
    pub stem: usize,
    /// Rows and columns of an image.
    pub image: usize,
    /// Classes.
    pub classes: usize,
}

/// Returns the model with this name.
pub fn named(name: &str) -> Option<Resnet> {
    let stages = || vec![(3, 64), (4, 128), (6, 256), (3, 512)];
    (name == "resnet50").then(|| Resnet { stages: stages(), stem: 64, image: 224, classes: 1000 })
}

impl Resnet {
    /// Returns the graph for a micro-batch of `batch` images.
    ///
    /// # Errors
    /// If images are too small for the stages.
    pub fn graph(&self, batch: usize) -> Result<Graph, Error> {
        let mut composer = Composer::default();
        let image = [batch, 3, self.image, self.image];
        let images = composer.input("images", &image, Element::Float);
        let targets = composer.input("targets", &[batch], Element::Index);
        let mut x = composer.block("stem", |composer| {
            let x = convolution(composer, "conv", images, self.stem, 7, 2)?;
            let x = composer.apply("relu", Activation::Relu, &[x])?;
            let pool = Pool::square(PoolKind::Max, 3, 2, 1);
            composer.apply("pool", pool, &[x])
        })?;
        for (stage, (bottlenecks, channels)) in self.stages.iter().enumerate() {
            for at in 0..*bottlenecks {
                let stride = if at == 0 && stage > 0 { 2 } else { 1 };
                x = composer.block(format!("stage.{stage}.{at}"), |composer| {
                    bottleneck(composer, x, *channels, stride)
                })?;
            }
        }
        composer.block("classifier", |composer| {
            let shape = composer.shape(x);
            let mean = Pool::square(PoolKind::Mean, shape[2], 1, 0);
            let x = composer.apply("mean", mean, &[x])?;
            let x = composer.apply("flat", Reshape { shape: vec![batch, shape[1]] }, &[x])?;
            let logits = composer.linear("logits", x, self.classes)?;
            composer.cross_entropy(logits, targets)
        })?;
        Ok(composer.finish())
    }
}

/// Adds a bottleneck: a convolution to fewer channels, one with a window, one to more channels; and the
/// shortcut.
fn bottleneck(
    composer: &mut Composer,
    x: TensorId,
    channels: usize,
    stride: usize,
) -> Result<TensorId, Error> {
    let wide = 4 * channels;
    let y = convolution(composer, "down", x, channels, 1, 1)?;
    let y = composer.apply("down.relu", Activation::Relu, &[y])?;
    let y = convolution(composer, "window", y, channels, 3, stride)?;
    let y = composer.apply("window.relu", Activation::Relu, &[y])?;
    let y = convolution(composer, "up", y, wide, 1, 1)?;
    let shortcut = match composer.shape(x)[1] == wide && stride == 1 {
        true => x,
        false => convolution(composer, "shortcut", x, wide, 1, stride)?,
    };
    let sum = composer.add("add", y, shortcut)?;
    composer.apply("relu", Activation::Relu, &[sum])
}

/// Adds a convolution to this many channels, with a window and a stride, and its batch norm.
fn convolution(
    composer: &mut Composer,
    name: &str,
    x: TensorId,
    channels: usize,
    size: usize,
    stride: usize,
) -> Result<TensorId, Error> {
    let x = composer.conv2d(name, x, channels, size, stride)?;
    composer.batch_norm(&format!("{name}.norm"), x)
}
