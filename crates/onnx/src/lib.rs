//! ONNX files as graphs of operators.
//!
//! An [`OnnxFile`] says what is computed; [`OnnxFile::graph`] says the same in the operators of
//! `model`, for a batch and a sequence, with a cross-entropy after its only output, so that it can
//! be planned and trained. Weights count by their shapes; their values are not read, so a file's
//! external data need not be there. Operators that exporters take apart (GELU, SiLU, layer norm,
//! RMS norm, attention and its masks) are put together again.
#![forbid(unsafe_code)]

mod constant;
mod fold;
mod half;
mod import;
mod input;
mod names;
mod operator;
mod prune;
mod supported;
mod value;
mod wire;

use onnx_rs::ast::Model;
use thinwire_model::{Error, Graph, Kind, check_trainable, divide, learn, simplify};

use import::{Call, Importer};

/// A file that was read.
#[derive(Clone, Debug)]
pub struct OnnxFile {
    bytes: Vec<u8>,
}

impl OnnxFile {
    /// The file of these bytes.
    ///
    /// # Errors
    /// If it is no ONNX file, or is cut off.
    pub fn new(bytes: Vec<u8>) -> Result<OnnxFile, Error> {
        let file = OnnxFile { bytes };
        wire::check(&file.bytes)?;
        match file.model()?.graph {
            Some(graph) if !graph.node.is_empty() => names::check(&graph)?,
            _ => return Err(none("it has no nodes")),
        }
        Ok(file)
    }

    /// Whether its inputs have a sequence whose length is open.
    ///
    /// # Errors
    /// If an input has open dimensions that are neither batch nor sequence.
    pub fn has_sequence(&self) -> Result<bool, Error> {
        let model = self.model()?;
        let inputs = model.graph.as_ref().map_or(&[][..], |graph| &graph.input);
        Ok(input::open(inputs)?.sequence.is_some())
    }

    /// The only batch that it can take, if that is not open.
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

    /// The model for a batch, of sequences of so many tokens where their length is open.
    ///
    /// # Errors
    /// If an operator is not supported, or operands contradict each other; the node is named.
    pub fn graph(&self, batch: usize, sequence: usize) -> Result<Graph, Error> {
        let model = self.model()?;
        let nodes = model.graph.iter().flat_map(|graph| &graph.node);
        let calls: Vec<Call<'_>> =
            nodes.enumerate().map(|(at, node)| Call::new(at, node)).collect();
        let importer = Importer::new(&model, &calls, [batch, sequence])?;
        let (graph, logits) = importer.run(&calls)?;
        let (graph, logits) = simplify(&graph, logits)?;
        let (mut graph, logits) = prune::prune(&graph, logits);
        learn(&mut graph, logits)?;
        names::distinguish(&mut graph);
        divide(&mut graph);
        check_trainable(&graph)?;
        Ok(graph)
    }

    fn model(&self) -> Result<Model<'_>, Error> {
        onnx_rs::parse(&self.bytes).map_err(|error| none(&error.to_string()))
    }
}

fn none(reason: &str) -> Error {
    Error::new(Kind::File, format!("it is no ONNX file: {reason}"))
}
