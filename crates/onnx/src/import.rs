//! The way through a file, node by node.

use std::collections::HashMap;

use onnx_rs::ast::{Attribute, Graph as OnnxGraph, Model, Node, TensorProto};
use thinwire_model::{
    Arithmetic, Broadcast, Element, Error, Fill, Graph, Initial, Kind, LayerNorm, Operator,
    RmsNorm, Role, Scale, Sum, Summed, TensorId, Transpose,
};

use crate::constant::{self, Constant};
use crate::half::{Half, Stage};
use crate::value::{Value, Weight};
use crate::{fold, input, operator};

/// The standard deviation of weights before the first step.
const DEVIATION: Initial = Initial::Normal(0.02);

/// A graph in the making.
pub(crate) struct Importer<'a> {
    /// What there is of it.
    pub graph: Graph,
    file: &'a OnnxGraph<'a>,
    /// The version of the operators.
    pub version: i64,
    values: HashMap<&'a str, Value>,
    uses: HashMap<&'a str, usize>,
    made: HashMap<Weight, TensorId>,
}

/// A node at its place.
pub(crate) struct Call<'a> {
    /// Its operator.
    pub operator: &'a str,
    /// What the graph's node is called.
    pub name: String,
    node: &'a Node<'a>,
    at: usize,
}

impl<'a> Call<'a> {
    fn new(at: usize, node: &'a Node<'a>) -> Call<'a> {
        let named = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
        let name = named.copied().unwrap_or_default().trim_start_matches('/').replace('/', ".");
        Call { operator: node.op_type.as_str(), name, node, at }
    }

    /// Whether there is an input.
    pub fn has(&self, index: usize) -> bool {
        self.node.input.get(index).is_some_and(|name| !name.is_empty())
    }

    /// How many inputs there are.
    pub fn inputs(&self) -> usize {
        self.node.input.len()
    }

    /// How many outputs there are.
    pub fn outputs(&self) -> usize {
        self.node.output.len()
    }

    /// An attribute.
    pub fn attribute(&self, name: &str) -> Option<&'a Attribute<'a>> {
        self.node.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// A whole number, or what it usually is.
    pub fn integer(&self, name: &str, usual: i64) -> i64 {
        self.attribute(name).map_or(usual, |attribute| attribute.i)
    }

    /// A real number, or what it usually is.
    pub fn float(&self, name: &str, usual: f64) -> f64 {
        self.attribute(name).map_or(usual, |attribute| f64::from(attribute.f))
    }

    /// A list of whole numbers, if it is there.
    pub fn integers(&self, name: &str) -> Option<&'a [i64]> {
        self.attribute(name).map(|attribute| &attribute.ints[..])
    }

    /// A refusal.
    pub fn refuse(&self, message: impl Into<String>) -> Error {
        Error::new(Kind::Operands, message)
    }

    /// The place that an error names.
    fn place(&self) -> String {
        format!("node {} '{}'", self.at, self.name)
    }
}

impl<'a> Importer<'a> {
    /// The inputs and initial values of a file.
    pub fn new(model: &'a Model<'a>, batch: usize, sequence: usize) -> Result<Importer<'a>, Error> {
        if batch == 0 || sequence == 0 {
            let message =
                format!("{batch} sequences of {sequence} tokens, expected 1 or more of both");
            return Err(Error::new(Kind::Sizes, message));
        }
        let file = model.graph.as_ref().expect("a file without a graph is refused when read");
        let own = model.opset_import.iter().find(|set| matches!(set.domain, "" | "ai.onnx"));
        let mut importer = Importer {
            graph: Graph::default(),
            file,
            version: own.map_or(0, |set| set.version),
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

    fn inputs(&mut self, sizes: [usize; 2]) -> Result<(), Error> {
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
    fn initial(&mut self, tensor: &'a TensorProto<'a>) -> Result<(), Error> {
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

    /// The graph, and its only output: logits.
    pub fn run(mut self) -> Result<(Graph, TensorId), Error> {
        for (at, node) in self.file.node.iter().enumerate() {
            let call = Call::new(at, node);
            let values = self.visit(&call).map_err(|error| error.at(&call.place()))?;
            for (name, value) in node.output.iter().zip(values) {
                self.values.insert(name, value);
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

    fn visit(&mut self, call: &Call<'a>) -> Result<Vec<Value>, Error> {
        if let Some(name) = call
            .node
            .input
            .iter()
            .find(|name| !name.is_empty() && !self.values.contains_key(**name))
        {
            let message = format!("it reads '{name}', which no node before it writes");
            return Err(Error::new(Kind::File, message));
        }
        if !matches!(call.node.domain, "" | "ai.onnx" | "com.microsoft") {
            let name = format!("{}.{}", call.node.domain, call.operator);
            return Err(operator::unsupported(&name));
        }
        match fold::fold(self, call)? {
            Some(constant) => Ok(vec![Value::Constant(constant)]),
            None => operator::visit(self, call),
        }
    }

    /// An input as it is.
    pub fn value(&self, call: &Call<'_>, index: usize) -> Result<&Value, Error> {
        let name = call.node.input.get(index).copied().unwrap_or_default();
        self.values.get(name).ok_or_else(|| {
            call.refuse(match call.inputs() {
                inputs if inputs <= index => {
                    format!("it has {inputs} inputs, expected {} or more", index + 1)
                }
                _ if name.is_empty() => format!("its input {index} is left out, expected a name"),
                _ => format!("its input '{name}' comes from nowhere before it"),
            })
        })
    }

    /// An input, computed.
    pub fn tensor(&mut self, call: &Call<'_>, index: usize) -> Result<TensorId, Error> {
        let value = self.value(call, index)?.clone();
        let name = call.node.input[index].to_owned();
        self.tensor_of(&name, value)
    }

    /// An input of known numbers.
    pub fn constant(&self, call: &Call<'_>, index: usize) -> Result<Constant, Error> {
        match self.value(call, index)? {
            Value::Constant(constant) => Ok(constant.clone()),
            _ => {
                let name = call.node.input[index];
                Err(call.refuse(format!("input '{name}' is not constant, expected known numbers")))
            }
        }
    }

    /// An input that is trained.
    pub fn weight(&self, call: &Call<'_>, index: usize) -> Option<Weight> {
        match self.value(call, index) {
            Ok(Value::Weight(weight)) => Some(weight.clone()),
            _ => None,
        }
    }

    /// Whether nothing else reads an input.
    pub fn alone(&self, call: &Call<'_>, index: usize) -> bool {
        call.node.input.get(index).and_then(|name| self.uses.get(name)) == Some(&1)
    }

    /// Whether a node writes the file's output.
    pub fn is_output(&self, call: &Call<'_>) -> bool {
        let mut outputs = self.file.output.iter();
        outputs.any(|output| call.node.output.contains(&output.name))
    }

    /// Whether nothing but one node reads a weight.
    pub fn once(&self, weight: &Weight) -> bool {
        self.uses.get(&weight.name[..]) == Some(&1)
    }

    /// The shape of a value.
    pub fn shape(&self, value: &Value) -> Vec<usize> {
        match value {
            Value::Tensor(id) => self.graph.tensors[*id].shape.clone(),
            Value::Weight(weight) => weight.shape.clone(),
            Value::Constant(constant) => constant.shape.clone(),
            Value::Half(half) => {
                let mut shape = self.graph.tensors[half.x].shape.clone();
                let single = [
                    Stage::Mean,
                    Stage::Variance,
                    Stage::VarianceSum,
                    Stage::Deviation,
                    Stage::InverseDeviation,
                    Stage::MeanSquare,
                    Stage::MeanSquareSum,
                    Stage::Root,
                    Stage::InverseRoot,
                ];
                match shape.last_mut() {
                    Some(last) if single.contains(&half.stage) => *last = 1,
                    _ => {}
                }
                shape
            }
        }
    }

    /// A node of one output.
    pub fn apply(
        &mut self,
        name: &str,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> Result<TensorId, Error> {
        Ok(self.graph.apply(name, operator.into(), inputs)?[0])
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

    /// A value, computed. Known numbers that are no single one are told like data.
    pub fn tensor_of(&mut self, name: &str, value: Value) -> Result<TensorId, Error> {
        match value {
            Value::Tensor(id) => Ok(id),
            Value::Weight(weight) => self.parameter(&weight),
            Value::Constant(constant) => match (constant.single(), constant.whole) {
                (Some(value), false) => {
                    self.apply(name, Fill { shape: constant.shape, value }, &[])
                }
                (_, whole) => {
                    let element = if whole { Element::Index } else { Element::Float };
                    Ok(self.graph.source(name, constant.shape, element, Role::Input))
                }
            },
            Value::Half(half) => self.finish(&half),
        }
    }

    /// What a half-way formula is by itself.
    fn finish(&mut self, half: &Half) -> Result<TensorId, Error> {
        let shape = self.graph.tensors[half.x].shape.clone();
        let (name, features) = (half.node.clone(), shape.last().copied().unwrap_or(1));
        match half.stage {
            Stage::Normal | Stage::ScaledNormal => {
                let gain = self.gain(half, features)?;
                let bias = self.fill(&name, features, 0.0)?;
                self.apply(&name, LayerNorm, &[half.x, gain, bias])
            }
            Stage::RootNormal => {
                let gain = self.gain(half, features)?;
                self.apply(&name, RmsNorm, &[half.x, gain])
            }
            Stage::Square => self.apply(&name, Arithmetic::Multiply, &[half.x, half.x]),
            Stage::Mean => self.mean(&name, half.x, &[shape.len() - 1], Summed::ToOne),
            Stage::Centred => {
                let mean = self.mean(&name, half.x, &[shape.len() - 1], Summed::ToOne)?;
                self.apply(&name, Arithmetic::Subtract, &[half.x, mean])
            }
            _ => {
                let message = format!("'{name}' is only supported as a part of {}", WHOLE);
                Err(Error::new(Kind::Operands, message))
            }
        }
    }

    fn gain(&mut self, half: &Half, features: usize) -> Result<TensorId, Error> {
        match half.gain {
            Some(gain) => Ok(gain),
            None => self.fill(&half.node, features, 1.0),
        }
    }

    fn fill(&mut self, name: &str, features: usize, value: f64) -> Result<TensorId, Error> {
        self.apply(&format!("{name}.fill"), Fill { shape: vec![features], value }, &[])
    }

    /// The mean over some dimensions.
    pub fn mean(
        &mut self,
        name: &str,
        x: TensorId,
        over: &[usize],
        becomes: Summed,
    ) -> Result<TensorId, Error> {
        let shape = self.graph.tensors[x].shape.clone();
        let of = |dim: usize| if over.contains(&dim) { becomes } else { Summed::No };
        let sum = Sum { dims: (0..shape.len()).map(of).collect() };
        let count: usize = over.iter().filter_map(|dim| shape.get(*dim)).product();
        let sum = self.apply(&format!("{name}.sum"), sum, &[x])?;
        self.apply(name, Scale(1.0 / count as f64), &[sum])
    }

    /// The same values along dimensions that are 1 long or missing.
    pub fn expand(
        &mut self,
        name: &str,
        x: TensorId,
        shape: Vec<usize>,
    ) -> Result<TensorId, Error> {
        let from = self.graph.tensors[x].shape.clone();
        let missing = shape.len().checked_sub(from.len());
        let fits = missing.is_some_and(|missing| {
            let mut pairs = from.iter().zip(&shape[missing..]);
            pairs.all(|(from, to)| from == to || *from == 1)
        });
        if !fits {
            let message = format!("shape {from:?} cannot become {shape:?}");
            return Err(Error::new(Kind::Operands, message));
        }
        if from == shape {
            return Ok(x);
        }
        let sum = Sum::back_to(&shape, &from);
        self.apply(name, Broadcast { shape, sum }, &[x])
    }

    /// What a softmax at the end is of: the loss has its own.
    fn before_softmax(&self, id: TensorId) -> TensorId {
        let node = self.graph.nodes.iter().find(|node| node.outputs.contains(&id));
        match node {
            Some(node) if node.operator.name() == "softmax" => node.inputs[0],
            _ => id,
        }
    }
}

/// What half-way formulas become.
const WHOLE: &str = "GELU, SiLU, layer norm, RMS norm or causal attention";
