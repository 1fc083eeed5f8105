//! ONNX files as graphs of operators.
//!
//! An [`OnnxFile`] describes a computation. [`OnnxFile::graph`] returns the same computation with the
//! operators of crate `model`, for a batch and a sequence. A cross-entropy follows its only output, so
//! it can be planned and trained. Only the shapes of weights are used, not their values, so only the
//! external data of constants is needed ([`OnnxFile::external`]). Operators that exporters split (GELU,
//! SiLU, layer norm, RMS norm, attention and its masks) are recognised and combined again.
#![forbid(unsafe_code)]

mod constant;
mod external;
mod fold;
mod half;
mod import;
mod input;
mod names;
mod notes;
mod operator;
mod value;
mod wire;

use std::collections::{BTreeMap, BTreeSet};

use onnx_rs::ast::{Model, TensorProto};
use thinwire_model::{
    Error, Graph, Kind, Node, TensorId, check_trainable, divide, learn, simplify,
};

pub use external::External;
use import::{Call, Importer};

/// A file that was read.
#[derive(Clone, Debug)]
pub struct OnnxFile {
    bytes: Vec<u8>,
    /// Bytes of tensors whose numbers are in a separate file, by name.
    supplied: BTreeMap<String, Vec<u8>>,
    /// Initial values that keep their numbers.
    frozen: BTreeSet<String>,
}

impl OnnxFile {
    /// Returns the file of these bytes.
    ///
    /// # Errors
    /// If they are not an ONNX file, or are cut off.
    pub fn new(bytes: Vec<u8>) -> Result<OnnxFile, Error> {
        let file = OnnxFile { bytes, supplied: BTreeMap::new(), frozen: BTreeSet::new() };
        wire::check(&file.bytes)?;
        match file.model()?.graph {
            Some(graph) if !graph.node.is_empty() => names::check(&graph)?,
            _ => return Err(none("it has no nodes")),
        }
        Ok(file)
    }

    /// Returns the positions of those numbers in separate files that a graph may need. The caller reads
    /// the numbers and passes them to [`OnnxFile::supply`].
    ///
    /// # Errors
    /// If a tensor names a file in another folder, or its length there does not match its shape.
    pub fn external(&self) -> Result<Vec<External>, Error> {
        let model = self.model()?;
        let tensors = model.graph.iter().flat_map(|graph| &graph.initializer);
        tensors.filter_map(|tensor| External::of(tensor).transpose()).collect()
    }

    /// Supplies the bytes of a tensor's numbers from a separate file.
    pub fn supply(&mut self, external: &External, bytes: Vec<u8>) {
        self.supplied.insert(external.tensor.clone(), bytes);
    }

    /// Returns whether its inputs have a sequence whose length is open.
    ///
    /// # Errors
    /// If an input has open dimensions that are neither batch nor sequence.
    pub fn has_sequence(&self) -> Result<bool, Error> {
        let model = self.model()?;
        let inputs = model.graph.as_ref().map_or(&[][..], |graph| &graph.input);
        Ok(input::open(inputs)?.sequence.is_some())
    }

    /// Returns the only batch that the file allows; `None` if the batch is open.
    ///
    /// # Errors
    /// If an input has open dimensions that are neither batch nor sequence.
    pub fn batch(&self) -> Result<Option<usize>, Error> {
        let model = self.model()?;
        let Some(graph) = model.graph.as_ref() else { return Ok(None) };
        let given = |name: &str| graph.initializer.iter().all(|tensor| tensor.name() != name);
        let inputs = graph.input.iter().filter(|input| given(input.name));
        match input::open(&graph.input)?.batch {
            Some(_) => Ok(None),
            None => Ok(inputs.into_iter().find_map(input::fixed)),
        }
    }

    /// Returns the model for a batch of sequences with this many tokens, if their length is open.
    ///
    /// # Errors
    /// If an operator is not supported, or operands contradict each other; the error names the node.
    pub fn graph(&self, batch: usize, sequence: usize) -> Result<Graph, Error> {
        let model = self.model()?;
        let nodes = model.graph.iter().flat_map(|graph| &graph.node);
        let calls: Vec<Call<'_>> =
            nodes.enumerate().map(|(at, node)| Call::new(at, node)).collect();
        let importer = Importer::new(&model, &calls, [batch, sequence], &self.frozen)?;
        let (graph, logits) = importer.run(&calls)?;
        let (graph, logits) = simplify(&graph, logits)?;
        let (mut graph, logits) = prune(&graph, logits);
        learn(&mut graph, logits)?;
        names::distinguish(&mut graph);
        divide(&mut graph);
        check_trainable(&graph)?;
        Ok(graph)
    }

    fn model(&self) -> Result<Model<'_>, Error> {
        let parsed = onnx_rs::parse(&self.bytes);
        let mut model = parsed.map_err(|error| none(&error.to_string()))?;
        let tensors = model.graph.iter_mut().flat_map(|graph| &mut graph.initializer);
        for tensor in tensors.filter(|tensor| external::is_elsewhere(tensor)) {
            if let Some(bytes) = self.supplied.get(tensor.name()) {
                let (shape, kind) = (tensor.dims().to_vec(), tensor.data_type());
                *tensor = TensorProto::from_raw(tensor.name(), shape, kind, bytes);
            }
        }
        Ok(model)
    }
}

/// Returns the graph with only the nodes on which an output depends, and the output in it.
fn prune(graph: &Graph, output: TensorId) -> (Graph, TensorId) {
    let mut needed = vec![false; graph.tensors.len()];
    needed[output] = true;
    let mut kept: Vec<&Node> = Vec::new();
    for node in graph.nodes.iter().rev() {
        if node.outputs.iter().any(|id| needed[*id]) {
            node.inputs.iter().chain(&node.outputs).for_each(|id| needed[*id] = true);
            kept.push(node);
        }
    }
    let mut pruned = Graph::default();
    let mut places = vec![0; graph.tensors.len()];
    for (id, tensor) in graph.tensors.iter().enumerate().filter(|(id, _)| needed[*id]) {
        places[id] = pruned.tensors.len();
        pruned.tensors.push(tensor.clone());
    }
    let moved = |ids: &[TensorId]| ids.iter().map(|id| places[*id]).collect();
    let node = |node: &Node| Node {
        inputs: moved(&node.inputs),
        outputs: moved(&node.outputs),
        ..node.clone()
    };
    pruned.nodes = kept.into_iter().rev().map(node).collect();
    (pruned, places[output])
}

fn none(reason: &str) -> Error {
    Error::new(Kind::File, format!("it is no ONNX file: {reason}"))
}
