//! Imports a file, node by node.

mod call;
mod computed;
mod form;
mod mark;
mod node;
mod operand;
mod source;

use std::collections::{BTreeSet, HashMap};

use onnx_rs::ast::Model;
use thinwire_model::{Error, Graph, Kind, TensorId};

pub(crate) use call::{Call, Importer, dimension, refuse, unsupported};
pub(crate) use mark::WEIGHT;

use crate::fold::Folder;
use crate::operator;
use crate::value::Value;

impl<'a> Importer<'a> {
    /// Returns an import with the inputs and initial values of a file. The initial values in `frozen` keep
    /// their numbers.
    pub fn new(
        model: &'a Model<'a>,
        calls: &'a [Call<'a>],
        [batch, sequence]: [usize; 2],
        frozen: &'a BTreeSet<String>,
    ) -> Result<Importer<'a>, Error> {
        if batch == 0 || sequence == 0 {
            let message =
                format!("{batch} sequences of {sequence} tokens, expected 1 or more of both");
            return Err(Error::new(Kind::Sizes, message));
        }
        let file = model.graph.as_ref().expect("a file without a graph is refused when read");
        let mut importer = Importer {
            call: calls.first().expect("a file without a node is refused when read"),
            graph: Graph::default(),
            file,
            frozen,
            version: form::version(model)?,
            values: HashMap::new(),
            uses: HashMap::new(),
            made: HashMap::new(),
        };
        file.initializer.iter().try_for_each(|tensor| importer.initial(tensor))?;
        importer.inputs([batch, sequence])?;
        for name in file.node.iter().flat_map(|node| &node.input) {
            *importer.uses.entry(name).or_default() += 1;
        }
        Ok(importer)
    }

    /// Returns the graph, and its only output, the logits.
    pub fn run(mut self, calls: &'a [Call<'a>]) -> Result<(Graph, TensorId), Error> {
        let mut folder = Folder::default();
        for call in calls {
            self.call = call;
            let values = self.visit(&mut folder).map_err(|error| error.at(&call.place()))?;
            for (name, value) in call.node.output.iter().zip(values) {
                if !name.is_empty() && self.values.insert(name, value).is_some() {
                    let message = format!("it writes '{name}', which exists already");
                    return Err(Error::new(Kind::File, message).at(&call.place()));
                }
            }
        }
        let [output] = &self.file.output[..] else {
            let message = format!("it has {} outputs, expected one", self.file.output.len());
            return Err(Error::new(Kind::Operands, message));
        };
        let place = format!("output '{}'", output.name);
        let missing = || Error::new(Kind::File, "no node writes it").at(&place);
        let value = self.values.get(output.name).cloned().ok_or_else(missing)?;
        let id = self.tensor_of(&place, value).map_err(|error| error.at(&place))?;
        let id = self.before_softmax(id);
        Ok((self.graph, id))
    }

    fn visit(&mut self, folder: &mut Folder) -> Result<Vec<Value>, Error> {
        let is_missing = |name: &&&str| !name.is_empty() && !self.values.contains_key(**name);
        if let Some(name) = self.call.node.input.iter().find(is_missing) {
            let message = format!("it reads '{name}', which no node before it writes");
            return Err(Error::new(Kind::File, message));
        }
        form::check(self)?;
        if let Some(constant) = folder.fold(self)? {
            return Ok(vec![Value::Constant(constant)]);
        }
        form::check_weights(self)?;
        operator::visit(self)
    }

    /// Returns the operand of a softmax at the end, since the loss contains a softmax.
    fn before_softmax(&self, id: TensorId) -> TensorId {
        let node = self.graph.nodes.iter().find(|node| node.outputs.contains(&id));
        match node {
            Some(node) if node.operator.name() == "softmax" => node.inputs[0],
            _ => id,
        }
    }
}
