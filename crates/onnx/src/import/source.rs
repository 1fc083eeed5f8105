//! Sources: what comes from the data, and what a file has numbers of.

use onnx_rs::ast::TensorProto;
use thinwire_model::{Element, Error, Initial, Kind, Role, TensorId, Transpose};

use super::Importer;
use crate::constant::{self, Constant};
use crate::input;
use crate::value::{Value, Weight};

/// The standard deviation of weights before the first step.
const DEVIATION: Initial = Initial::Normal(0.02);

impl<'a> Importer<'a> {
    /// The inputs, for a batch and a sequence.
    pub(super) fn inputs(&mut self, sizes: [usize; 2]) -> Result<(), Error> {
        let open = input::open(&self.file.input)?;
        for input in &self.file.input {
            if !self.values.contains_key(input.name) {
                let shape = input::shape(input, open, sizes)?;
                let element = input::element(input)?;
                let id = self.graph.source(input.name, shape, element, Role::Input);
                self.values.insert(input.name, Value::Tensor(id));
            }
        }
        Ok(())
    }

    /// What a file has of numbers: real ones are trained, whole ones and single ones are known.
    pub(super) fn initial(&mut self, tensor: &'a TensorProto<'a>) -> Result<(), Error> {
        let shape = constant::shape(tensor)?;
        if shape.contains(&0) && constant::is_float(tensor.data_type()) {
            let message = format!("shape {shape:?} has nothing in it, expected 1 or more");
            return Err(Error::new(Kind::Sizes, message).at(tensor.name()));
        }
        let value = match constant::is_float(tensor.data_type()) && !shape.is_empty() {
            true => {
                Value::Weight(Weight { name: tensor.name().to_owned(), shape, transposed: false })
            }
            false => Value::Constant(Constant::read(tensor)?),
        };
        self.values.insert(tensor.name(), value);
        Ok(())
    }

    /// A weight as a parameter, in its order of dimensions if it is the first time that it is used.
    pub fn parameter(&mut self, weight: &Weight) -> Result<TensorId, Error> {
        if let Some(id) = self.made.get(weight) {
            return Ok(*id);
        }
        let id = match self.made.get(&weight.turned()).copied() {
            Some(other) => self.apply(&weight.name, Transpose::new("kn", "nk"), &[other])?,
            None => {
                let one = weight.shape.iter().filter(|length| **length > 1).count() <= 1;
                let gain = ["gain", "scale", "gamma", "norm.weight"].iter();
                let ones = one && gain.clone().any(|end| weight.name.ends_with(end));
                let initial = match (one, ones) {
                    (_, true) => Initial::Ones,
                    (true, false) => Initial::Zeros,
                    (false, false) => DEVIATION,
                };
                let role = Role::Parameter(initial);
                self.graph.source(&*weight.name, &*weight.shape, Element::Float, role)
            }
        };
        self.made.insert(weight.clone(), id);
        Ok(id)
    }
}
