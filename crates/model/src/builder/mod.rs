//! Builders of models, one file per family, and the names of well-known models.

mod bert;
mod bytes;
mod composer;
pub mod gpt;
mod llama;
mod moe;
mod resnet;
mod sizes;
mod transformer;
mod vgg;

pub use bert::Bert;
pub use bytes::Bytes;
pub use composer::Composer;
pub use gpt::Gpt;
pub use llama::Llama;
pub use moe::Moe;
pub use resnet::Resnet;
pub use transformer::AttentionKind;
pub use vgg::Vgg;

use strsim::jaro_winkler;

use crate::{Activation, Element, Error, Graph, Kind};

/// The names of all well-known models.
pub const NAMES: &[&str] = &[
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "gpt3-1.3b",
    "gpt3-2.7b",
    "gpt3-6.7b",
    "gpt3-13b",
    "gpt3-175b",
    "gpt-1t",
    "tinyllama-1.1b",
    "llama2-7b",
    "llama2-13b",
    "llama2-70b",
    "llama3-8b",
    "bert-base",
    "bert-large",
    "moe-small",
    "mixtral-8x7b",
    "mlp",
    "vgg13",
    "vgg16",
    "vgg19",
    "resnet50",
];

/// Patterns of names of models of any size.
pub const SPELLED: &[&str] =
    &[gpt::SPELLED, llama::SPELLED, moe::SPELLED, bert::SPELLED, bytes::SPELLED];

/// Returns the model with this name, for a micro-batch of `batch` sequences of `sequence` tokens. A GPT of
/// any size is named like `gpt:layers=4,width=128,heads=4,vocabulary=256,positions=128`. There are also
/// `bert:`; `llama:`, which takes `key_heads` and `feed_forward` too; `moe:`, which takes `experts` and
/// `chosen` in addition; and `bytes:`, whose vocabulary is the bytes. Models without sequences, such as those
/// of images, need a sequence of one token.
///
/// # Errors
/// If there is no such model, it has fewer positions than the sequence has tokens, or the micro-batch is too
/// large for its elements to be counted.
pub fn named(name: &str, batch: usize, sequence: usize) -> Result<Graph, Error> {
    if batch == 0 || sequence == 0 {
        let message = format!("{batch} sequences of {sequence} tokens, expected 1 or more of both");
        return Err(Error::new(Kind::Sizes, message));
    }
    let found = [
        gpt::named(name).map(|gpt| gpt.graph(batch, sequence)),
        gpt::spelled(name).map(|gpt| gpt?.graph(batch, sequence)),
        llama::named(name).map(|llama| llama.graph(batch, sequence)),
        llama::spelled(name).map(|llama| llama?.graph(batch, sequence)),
        bert::named(name).map(|bert| bert.graph(batch, sequence)),
        bert::spelled(name).map(|bert| bert?.graph(batch, sequence)),
        moe::named(name).map(|moe| moe.graph(batch, sequence)),
        moe::spelled(name).map(|moe| moe?.graph(batch, sequence)),
        bytes::spelled(name).map(|bytes| bytes?.graph(batch, sequence)),
        vgg::named(name).map(|vgg| alone(sequence).and_then(|()| vgg.graph(batch))),
        resnet::named(name).map(|resnet| alone(sequence).and_then(|()| resnet.graph(batch))),
        Mlp::named(name).map(|mlp| alone(sequence).and_then(|()| mlp.graph(batch))),
    ];
    let graph = found.into_iter().flatten().next().ok_or_else(|| unknown(name))?;
    graph.map_err(|error| error.at(name.trim_end_matches(':')))
}

/// Returns the length of a sequence with which this model is usually trained; 1 for a model without
/// sequences.
pub fn usual_sequence(name: &str) -> usize {
    let gpt = gpt::named(name).or(gpt::spelled(name).and_then(Result::ok));
    let llama = llama::named(name).or(llama::spelled(name).and_then(Result::ok));
    let moe = moe::named(name).or(moe::spelled(name).and_then(Result::ok));
    let bert = bert::named(name).or(bert::spelled(name).and_then(Result::ok));
    let bytes = bytes::spelled(name).and_then(Result::ok);
    let positions = gpt.map(|gpt| gpt.positions).or(bert.map(|bert| bert.positions));
    let positions = positions.or(bytes.map(|bytes| bytes.positions));
    let llama = llama.or(moe.map(|moe| moe.trunk)).map(|llama| llama.positions);
    positions.or(llama).unwrap_or(1)
}

/// The sizes of a multilayer perceptron: linear layers with ReLU between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mlp {
    /// Input features, features of every layer, and classes at the end.
    pub features: Vec<usize>,
}

impl Mlp {
    fn named(name: &str) -> Option<Mlp> {
        (name == "mlp").then(|| Mlp { features: vec![784, 512, 512, 10] })
    }

    /// Returns the graph for a micro-batch of `batch` samples.
    ///
    /// # Errors
    /// If there is no layer.
    pub fn graph(&self, batch: usize) -> Result<Graph, Error> {
        let mut composer = Composer::default();
        let first = self.features.first().copied().unwrap_or(1);
        let mut x = composer.input("x", &[batch, first], Element::Float);
        let targets = composer.input("targets", &[batch], Element::Index);
        let last = self.features.len().saturating_sub(2);
        for (layer, features) in self.features.iter().skip(1).enumerate() {
            x = composer.block(format!("layer.{layer}"), |composer| {
                let y = composer.linear("linear", x, *features)?;
                if layer == last { Ok(y) } else { composer.apply("relu", Activation::Relu, &[y]) }
            })?;
        }
        composer.block("loss", |composer| composer.cross_entropy(x, targets))?;
        Ok(composer.finish())
    }
}

/// Checks that the sequence is one token, for a model without sequences.
fn alone(sequence: usize) -> Result<(), Error> {
    if sequence != 1 {
        let message = format!("a sequence has {sequence} tokens, but the model has no sequences");
        return Err(Error::new(Kind::Sizes, message).with_hint("leave --sequence out"));
    }
    Ok(())
}

/// Largest number of names that an error proposes.
const NEAR: usize = 4;
/// Largest number of characters of a name that an error repeats.
const ECHO_MAX: usize = 60;

fn unknown(name: &str) -> Error {
    let mut echo: String = name.chars().take(ECHO_MAX).collect();
    if echo.len() < name.len() {
        echo.push('…');
    }
    let mut near = NAMES.to_vec();
    near.sort_by(|a, b| jaro_winkler(b, &echo).total_cmp(&jaro_winkler(a, &echo)));
    let near = near[..NEAR].join(", ");
    let message = format!("no model is called '{echo}', expected a name such as {near}");
    Error::new(Kind::Name, message)
        .with_hint("thinwire model show --help has all names; files end in .json or .onnx")
}
