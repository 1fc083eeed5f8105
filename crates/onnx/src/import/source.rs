//! Sources: inputs from the data, and values for which a file has numbers.

use onnx_rs::ast::{Node, TensorProto};
use thinwire_model::{Element, Error, Initial, Kind, Role, TensorId, Transpose};

use super::{Importer, mark};
use crate::constant::{self, Constant};
use crate::input;
use crate::value::{Value, Weight};

/// Operators whose single numbers are not weights.
const FACTORS: [&str; 9] = ["Mul", "Div", "Pow", "Sub", "Where", "Equal", "Max", "Min", "Sqrt"];

impl<'a> Importer<'a> {
    /// Adds the inputs, for a batch and a sequence.
    pub(super) fn inputs(&mut self, sizes: [usize; 2]) -> Result<(), Error> {
        let open = input::open(&self.file.input)?;
        for input in &self.file.input {
            if !self.values.contains_key(input.name) {
                let shape = input::shape(input, open, sizes)?;
                let element = input::element(input)?;
                let value = match input::known(input.name, &shape) {
                    Some(constant) => Value::Constant(constant),
                    None => {
                        let id = self.graph.source(input.name, shape, element, Role::Input);
                        Value::Tensor(id)
                    }
                };
                self.values.insert(input.name, value);
            }
        }
        Ok(())
    }

    /// Reads the numbers of a file. Real numbers with a parameter's name are trained; integers and single
    /// numbers are constants; for all others, the operators that read them decide.
    pub(super) fn initial(&mut self, tensor: &'a TensorProto<'a>) -> Result<(), Error> {
        let shape = constant::shape(tensor)?;
        if shape.contains(&0) && constant::is_float(tensor.data_type()) {
            let message = format!("shape {shape:?} has nothing in it, expected 1 or more");
            return Err(Error::new(Kind::Sizes, message).at(tensor.name()));
        }
        let real = constant::is_float(tensor.data_type());
        let known = !real
            || self.frozen.contains(tensor.name())
            || shape.is_empty()
            || self.is_known(tensor.name(), &shape);
        let marked = mark::is_trained(tensor.name());
        let single = shape.iter().product::<usize>() == 1;
        let weight = Weight { name: tensor.name().to_owned(), shape, transposed: false };
        let value = match (known, marked) {
            (false, true) => Value::Weight(weight),
            (false, false) if !single => Value::Stored(weight),
            _ => Value::Constant(Constant::read(tensor)?),
        };
        if self.values.insert(tensor.name(), value).is_some() {
            let message = "two initial values have this name, expected one";
            return Err(Error::new(Kind::File, message).at(tensor.name()));
        }
        Ok(())
    }

    /// Returns whether real numbers are never trained: frequencies and tables of rotary positions, or a
    /// single number with which tensors are multiplied or compared.
    fn is_known(&self, name: &str, shape: &[usize]) -> bool {
        let single = shape.iter().product::<usize>() == 1;
        let mut readers = self.file.node.iter().filter(|node| node.input.contains(&name));
        let factor = |node: &Node<'_>| FACTORS.contains(&node.op_type.as_str());
        let table = |node: &Node<'_>| {
            node.op_type.as_str() == "RotaryEmbedding" && node.input.first() != Some(&name)
        };
        let turns = readers.clone().any(table);
        name.contains("inv_freq") || turns || (single && readers.all(factor))
    }

    /// Returns the numbers of a weight in the file.
    pub fn numbers(&self, weight: &Weight) -> Result<Constant, Error> {
        let mut initial = self.file.initializer.iter();
        let tensor = initial.find(|tensor| tensor.name() == weight.name);
        let numbers = Constant::read(tensor.expect("a weight is an initial value"))?;
        Ok(if weight.transposed { numbers.turned() } else { numbers })
    }

    /// Returns whether an exporter has merged several gains or biases because their initial values are equal.
    /// They are then separated again, one for each node that reads them.
    fn is_merged(&self, weight: &Weight, initial: Initial) -> bool {
        let begins_alike = matches!(initial, Initial::Ones | Initial::Zeros);
        begins_alike && self.numbers(weight).is_ok_and(|numbers| numbers.uniform().is_some())
    }

    /// Returns a weight as a parameter. At its first use, adds the parameter with the weight's order of
    /// dimensions.
    pub fn parameter(&mut self, weight: &Weight, initial: Initial) -> Result<TensorId, Error> {
        if let Some(id) = self.made.get(weight).copied() {
            if !self.is_merged(weight, initial) {
                return Ok(id);
            }
            let (name, role) = (&weight.name, Role::Parameter(initial));
            let name = format!("{name}@{}", self.call.name);
            return Ok(self.graph.source(name, &*weight.shape, Element::Float, role));
        }
        let id = match self.made.get(&weight.turned()).copied() {
            Some(other) => self.apply(&weight.name, Transpose::new("kn", "nk"), &[other])?,
            None => {
                let role = Role::Parameter(initial);
                self.graph.source(&*weight.name, &*weight.shape, Element::Float, role)
            }
        };
        self.made.insert(weight.clone(), id);
        Ok(id)
    }
}
