//! Notes on the tensors of a graph: guesses about facts that a file does not contain.
//!
//! ONNX has initial values but no parameters, so a buffer of PyTorch looks like a parameter. Exporters fold,
//! merge and rename initial values, so a parameter may have no counterpart in the module.

use std::collections::{BTreeMap, BTreeSet};

use onnx_rs::ast::{Graph as OnnxGraph, TensorProto};
use thinwire_model::{Error, Graph, Kind, Operator, TensorId};

use crate::OnnxFile;
use crate::constant::{self, Constant};

/// Endings of the last part of a buffer's name.
const BUFFERS: [&str; 16] = [
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "buffer",
    "buf",
    "position_ids",
    "token_type_ids",
    "position_encoding",
    "positional_encoding",
    "pe",
    "inv_freq",
    "mask",
    "index",
    "anchors",
    "mean",
    "std",
];

impl OnnxFile {
    /// Keeps the numbers of these initial values from the file, so that they are not trained.
    ///
    /// # Errors
    /// If the file has no initial value with one of the names.
    pub fn freeze(&mut self, names: &[String]) -> Result<(), Error> {
        let model = self.model()?;
        let file = model.graph.as_ref().expect("a file without a graph is refused when read");
        let all: BTreeSet<&str> = file.initializer.iter().map(TensorProto::name).collect();
        if let Some(name) = names.iter().find(|name| !all.contains(name.as_str())) {
            let message = format!("nothing is called '{name}' among its {} tensors", all.len());
            return Err(Error::new(Kind::Name, message));
        }
        drop(model);
        self.frozen.extend(names.iter().cloned());
        Ok(())
    }

    /// Returns notes on the parameters and the frozen tensors of this file's graph, by name, and on real
    /// numbers of the file that are not in the graph.
    ///
    /// # Errors
    /// If the file cannot be read again.
    pub fn notes(&self, graph: &Graph) -> Result<BTreeMap<String, String>, Error> {
        let model = self.model()?;
        let file = model.graph.as_ref().expect("a file without a graph is refused when read");
        let mut notes = BTreeMap::new();
        for (id, tensor) in graph.parameters() {
            if let Some(note) = of_parameter(graph, id, file) {
                notes.insert(tensor.name.clone(), note);
            }
        }
        for node in &graph.nodes {
            let name = &graph.tensors[node.outputs[0]].name;
            // Numbers that are all equal are a fill; those that no file has are arithmetic's.
            let is_fill = matches!(node.operator, Operator::Fill(_)) && self.frozen.contains(name);
            if is_fill || matches!(node.operator, Operator::Constant(_)) {
                notes.insert(name.clone(), self.of_constant(name, file).to_owned());
            }
        }
        let names: BTreeSet<&str> = graph.tensors.iter().map(|tensor| &tensor.name[..]).collect();
        let left = file.initializer.iter().filter(|tensor| {
            constant::is_float(tensor.data_type())
                && tensor.dims().iter().product::<i64>() > 1
                && !names.contains(tensor.name())
        });
        let reason =
            |tensor: &TensorProto<'_>| (tensor.name().to_owned(), of_left(tensor.name(), file));
        notes.extend(left.map(reason).map(|(name, note)| (name, note.to_owned())));
        Ok(notes)
    }

    /// Returns why numbers are not trained.
    fn of_constant(&self, name: &str, file: &OnnxGraph<'_>) -> &'static str {
        let Some(tensor) = file.initializer.iter().find(|tensor| tensor.name() == name) else {
            return "worked out from other numbers of the file";
        };
        if self.frozen.contains(name) {
            return "frozen by name";
        }
        match Constant::read(tensor) {
            _ if !constant::is_float(tensor.data_type()) => "whole numbers",
            Ok(numbers) if numbers.hides() => "a mask: some of its numbers are -10,000 or less",
            _ => "neither its name nor an operator that reads it says that it is trained",
        }
    }
}

/// Returns what is uncertain about a parameter, if anything is.
fn of_parameter(graph: &Graph, id: TensorId, file: &OnnxGraph<'_>) -> Option<String> {
    let name = &graph.tensors[id].name;
    let is_initial = |name: &str| file.initializer.iter().any(|tensor| tensor.name() == name);
    if let Some((first, _)) = name.split_once('@').filter(|(first, _)| is_initial(first)) {
        return Some(format!("the exporter merged it with {first}, which had equal numbers"));
    }
    let last = name.rsplit(['.', '/']).next().unwrap_or(name).to_lowercase();
    if is_numbered(&last) {
        let text = "named by the exporter, which may have turned it, or folded batch norm into it";
        return Some(text.to_owned());
    }
    let ends = |end: &&str| last == **end || last.ends_with(&format!("_{end}"));
    if BUFFERS.iter().any(ends) {
        return Some("by its name perhaps a buffer (--freeze keeps its numbers)".to_owned());
    }
    if ["weight", "bias", "gamma", "beta"].iter().any(|end| last.ends_with(end)) {
        return None;
    }
    let mut readers = graph.nodes.iter().filter(|node| node.inputs.contains(&id));
    let plain = readers.all(|node| matches!(node.operator, Operator::Arithmetic(_)));
    plain.then(|| {
        "read by arithmetic alone, perhaps a buffer (--freeze keeps its numbers)".to_owned()
    })
}

/// Returns whether an exporter has numbered a name, such as "onnx::MatMul_12", "val_7" or "_to_copy_3".
fn is_numbered(last: &str) -> bool {
    let stem = last.trim_end_matches(|c: char| c.is_ascii_digit());
    last.starts_with("onnx::") || (stem != last && ["val_", "_", ""].contains(&stem))
}

/// Returns why the graph does not have a tensor.
fn of_left(name: &str, file: &OnnxGraph<'_>) -> &'static str {
    let statistics = file.node.iter().any(|node| {
        node.op_type.as_str() == "BatchNormalization"
            && node.input.iter().skip(3).any(|input| *input == name)
    });
    match statistics {
        true => "left out: training computes the statistics of batch norm from each batch",
        false => "left out: worked out into other tensors, or read by nothing that the logits need",
    }
}
