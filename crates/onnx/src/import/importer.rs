//! The state of an import: the graph so far, and the value of every name.

use std::collections::{BTreeSet, HashMap};

use onnx_rs::ast::Graph as OnnxGraph;
use thinwire_model::{Graph, TensorId};

use super::Call;
use crate::value::{Value, Weight};

/// An import in progress.
pub(crate) struct Importer<'a> {
    /// The node of the file that is imported now.
    pub call: &'a Call<'a>,
    /// The graph so far.
    pub graph: Graph,
    pub(super) file: &'a OnnxGraph<'a>,
    /// Initial values that are not trained, whatever reads them.
    pub(super) frozen: &'a BTreeSet<String>,
    /// The version of the operators.
    pub version: i64,
    /// The value of every name that was read or written.
    pub(super) values: HashMap<&'a str, Value>,
    /// The number of inputs of nodes that a name is.
    pub(super) uses: HashMap<&'a str, usize>,
    /// The parameter of every weight that was used.
    pub(super) made: HashMap<Weight, TensorId>,
}
