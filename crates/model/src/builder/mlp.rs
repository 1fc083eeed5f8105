//! A multilayer perceptron: linear layers with ReLU between them.

use super::Composer;
use crate::{Activation, Element, Error, Graph};

/// The sizes of a perceptron.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mlp {
    /// Features that come in, features of every layer, and classes at the end.
    pub features: Vec<usize>,
}

/// The model of this name.
pub fn named(name: &str) -> Option<Mlp> {
    (name == "mlp").then(|| Mlp { features: vec![784, 512, 512, 10] })
}

impl Mlp {
    /// The graph for a micro-batch of so many samples.
    ///
    /// # Errors
    /// If there is nothing but what comes in.
    pub fn graph(&self, batch: usize) -> Result<Graph, Error> {
        let mut composer = Composer::default();
        let first = self.features.first().copied().unwrap_or(1);
        let mut x = composer.input("x", &[batch, first], Element::Float);
        let targets = composer.input("targets", &[batch], Element::Index);
        let last = self.features.len().saturating_sub(2);
        for (layer, features) in self.features.iter().skip(1).enumerate() {
            x = composer.block(format!("layer.{layer}"), |composer| {
                let y = composer.linear("linear", x, *features, true)?;
                if layer == last { Ok(y) } else { composer.apply("relu", Activation::Relu, &[y]) }
            })?;
        }
        composer.block("loss", |composer| composer.cross_entropy(x, targets))?;
        Ok(composer.finish())
    }
}
