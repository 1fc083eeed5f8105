//! A block of a model on a mesh, as a problem of choice.
//!
//! Every node is a variable, its strategies the options. So is every tensor that several nodes read
//! or that enters or leaves the block: its options are the layouts that its writer gives and its
//! readers want, so that what two readers want alike is converted once and their gradients are
//! added before they are converted. Where a tensor has one reader, writer and reader share an edge.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use thinwire_model::{Cut, Declaration, Graph, Layout, NodeId, Role, Sides, Strategy, TensorId};

use super::problem::{Edge, Price, Problem};
use crate::Error;
use crate::cost::Cost;

/// What strategies and layouts cost.
pub trait Pricing {
    /// A node under a strategy, without its parameters and what travels.
    fn node(&self, id: NodeId, declaration: &Declaration, strategy: &Strategy) -> Cost;

    /// The strategies that a node may have.
    fn strategies(&self, _id: NodeId, declaration: &Declaration, mesh: &[usize]) -> Vec<Strategy> {
        declaration.strategies(mesh)
    }

    /// A parameter that lies so: keeping it, and bringing its gradient together.
    fn parameter(&self, shape: &[usize], sides: &Sides) -> Cost;

    /// Bringing a tensor, or its gradient, from one layout to another: seconds.
    fn conversion_s(&self, shape: &[usize], from: &Layout, to: &Layout) -> f64;

    /// The same for all pairs of some layouts, by the first, then by the second.
    fn conversions_s(&self, shape: &[usize], from: &[&Layout], to: &[&Layout]) -> Rc<[f64]> {
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
        let seconds = |(from, to): (&Layout, &Layout)| match from == to {
            true => 0.0,
            false => self.conversion_s(shape, from, to),
        };
        pairs.map(seconds).collect()
    }

    /// Keeping the tensor that enters.
    fn entry(&self, _shape: &[usize], _sides: &Sides) -> Cost {
        Cost::ZERO
    }
}

/// The part of a graph that is planned at once.
#[derive(Clone, Debug)]
pub struct Block<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Its nodes.
    pub nodes: Range<NodeId>,
    /// The tensor that enters, and the layouts that it may have.
    pub entry: Option<(TensorId, Vec<Sides>)>,
    /// The tensor that leaves, and the layouts that it may have.
    pub exit: Option<(TensorId, Vec<Sides>)>,
}

/// What a variable stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum Variable {
    /// A node, and its strategies.
    Node(NodeId, Vec<Strategy>),
    /// A tensor between nodes, and its layouts.
    Tensor(TensorId, Vec<Sides>),
}

/// What bringing a tensor from one layout to another takes, there and back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wire {
    /// Seconds of forward.
    pub forward_s: f64,
    /// Seconds of backward.
    pub backward_s: f64,
}

/// What costs come to in a whole step, and in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// How often forward counts.
    pub forward: f64,
    /// How often computing backward counts.
    pub backward: f64,
    /// How often collectives of backward count.
    pub backward_wire: f64,
    /// How often what happens once a step counts.
    pub step: f64,
    /// The same for bringing gradients together, of which something may be hidden.
    pub sync: f64,
    /// How often parameters and their state are kept.
    pub state: f64,
    /// How often what waits for backward is kept.
    pub kept: f64,
    /// How often what enters is kept.
    pub entry: f64,
}

impl Weights {
    /// Everything once.
    pub const ONCE: Weights = Weights {
        forward: 1.0,
        backward: 1.0,
        backward_wire: 1.0,
        step: 1.0,
        sync: 1.0,
        state: 1.0,
        kept: 1.0,
        entry: 1.0,
    };

    /// The price of a cost.
    pub fn price(&self, cost: &Cost) -> Price {
        let forward = self.forward * (cost.forward_s + cost.forward_wire_s);
        let backward = self.backward * cost.backward_s + self.backward_wire * cost.backward_wire_s;
        let step = self.step * cost.optimizer_s + self.sync * cost.sync_s;
        let waiting = self.kept * cost.kept_bytes + self.entry * cost.entry_bytes;
        Price { seconds: forward + backward + step, bytes: self.state * cost.state_bytes + waiting }
    }
}

/// A block's choices, with their costs, and what its variables stand for.
#[derive(Clone, Debug)]
pub struct Formulation {
    /// For every variable the cost of each option.
    pub options: Vec<Vec<Cost>>,
    /// For pairs of variables what every pair of their options costs.
    pub edges: Vec<([usize; 2], Vec<Wire>)>,
    /// One per variable.
    pub variables: Vec<Variable>,
    /// The variable of the tensor that enters.
    pub entry: Option<usize>,
    /// The variable of the tensor that leaves.
    pub exit: Option<usize>,
}

impl Formulation {
    /// The problem of a block on a mesh.
    ///
    /// # Errors
    /// If a node reads what neither the block computes, nor the data, nor `entry` gives.
    pub fn new(block: &Block<'_>, mesh: &[usize], pricing: &dyn Pricing) -> Result<Self, Error> {
        let mut builder = Builder::new(block, mesh, pricing);
        for node in block.nodes.clone() {
            builder.node(node);
        }
        builder.tensors()?;
        Ok(builder.finish())
    }

    /// The problem that it is where costs count so much.
    pub fn problem(&self, weights: &Weights) -> Problem {
        let wire = |wire: &Wire| {
            Price::seconds(
                weights.forward * wire.forward_s + weights.backward_wire * wire.backward_s,
            )
        };
        let edge = |(ends, wires): &([usize; 2], Vec<Wire>)| Edge {
            ends: *ends,
            prices: wires.iter().map(wire).collect(),
        };
        let options = |costs: &Vec<Cost>| costs.iter().map(|cost| weights.price(cost)).collect();
        Problem {
            options: self.options.iter().map(options).collect(),
            edges: self.edges.iter().map(edge).collect(),
        }
    }

    /// What a choice costs.
    pub fn cost(&self, choices: &[usize]) -> Cost {
        let chosen = self.options.iter().zip(choices).map(|(costs, choice)| costs[*choice]);
        let mut sum: Cost = chosen.sum();
        for ([first, second], wires) in &self.edges {
            let wire = wires[choices[*first] * self.options[*second].len() + choices[*second]];
            sum.forward_wire_s += wire.forward_s;
            sum.backward_wire_s += wire.backward_s;
        }
        sum
    }

    /// The strategies of a choice, by node.
    pub fn strategies<'a>(
        &'a self,
        choices: &'a [usize],
    ) -> impl Iterator<Item = (NodeId, &'a Strategy)> {
        let pairs = self.variables.iter().zip(choices);
        pairs.filter_map(|(variable, choice)| match variable {
            Variable::Node(node, strategies) => Some((*node, &strategies[*choice])),
            Variable::Tensor(..) => None,
        })
    }
}

/// An end of an edge: a variable, and the layouts of a tensor under each of its options.
struct End {
    variable: usize,
    sides: Vec<Sides>,
}

struct Builder<'a> {
    block: &'a Block<'a>,
    mesh: &'a [usize],
    pricing: &'a dyn Pricing,
    options: Vec<Vec<Cost>>,
    edges: Vec<([usize; 2], Vec<Wire>)>,
    variables: Vec<Variable>,
    writers: HashMap<TensorId, End>,
    /// In the order in which tensors are first read.
    readers: Vec<(TensorId, Vec<End>)>,
}

impl<'a> Builder<'a> {
    fn new(block: &'a Block<'a>, mesh: &'a [usize], pricing: &'a dyn Pricing) -> Self {
        Builder {
            block,
            mesh,
            pricing,
            options: Vec::new(),
            edges: Vec::new(),
            variables: Vec::new(),
            writers: HashMap::new(),
            readers: Vec::new(),
        }
    }

    fn node(&mut self, id: NodeId) {
        let graph = self.block.graph;
        let node = &graph.nodes[id];
        let declaration = graph.declaration(node);
        let mut strategies = self.pricing.strategies(id, &declaration, self.mesh);
        if strategies.is_empty() {
            strategies.push(Strategy(vec![Cut::Whole; self.mesh.len()]));
        }
        let variable = self.variables.len();
        let mut costs: Vec<Cost> = strategies
            .iter()
            .map(|strategy| self.pricing.node(id, &declaration, strategy))
            .collect();
        for (place, tensor) in node.inputs.iter().enumerate() {
            let sides = strategies.iter().map(|strategy| declaration.input_sides(place, strategy));
            match graph.tensors[*tensor].role {
                Role::Parameter(_) => {
                    let shape = &graph.tensors[*tensor].shape;
                    let of = |sides: Sides| self.pricing.parameter(shape, &sides);
                    costs.iter_mut().zip(sides.map(of)).for_each(|(sum, cost)| *sum += cost);
                }
                _ => self.read(*tensor, End { variable, sides: sides.collect() }),
            }
        }
        for (place, tensor) in node.outputs.iter().enumerate() {
            let sides = strategies.iter().map(|strategy| declaration.output_sides(place, strategy));
            self.writers.insert(*tensor, End { variable, sides: sides.collect() });
        }
        self.options.push(costs);
        self.variables.push(Variable::Node(id, strategies));
    }

    fn read(&mut self, tensor: TensorId, end: End) {
        match self.readers.iter_mut().find(|(read, _)| *read == tensor) {
            Some((_, ends)) => ends.push(end),
            None => self.readers.push((tensor, vec![end])),
        }
    }

    /// Joins the writers and readers of all tensors.
    fn tensors(&mut self) -> Result<(), Error> {
        if let Some((tensor, _)) = &self.block.exit
            && !self.readers.iter().any(|(read, _)| read == tensor)
        {
            self.readers.push((*tensor, Vec::new()));
        }
        for (tensor, readers) in std::mem::take(&mut self.readers) {
            self.tensor(tensor, &readers)?;
        }
        Ok(())
    }

    fn tensor(&mut self, tensor: TensorId, readers: &[End]) -> Result<(), Error> {
        let writer = self.writers.remove(&tensor);
        let ends = [&self.block.entry, &self.block.exit].into_iter().flatten();
        let given = ends.clone().find(|(end, _)| *end == tensor).map(|(_, sides)| sides.clone());
        let is_entry = self.block.entry.as_ref().is_some_and(|(entry, _)| *entry == tensor);
        match (writer, given) {
            (Some(writer), None) if readers.len() == 1 => self.edge(tensor, &writer, &readers[0]),
            (Some(writer), given) => {
                let sides = given.unwrap_or_else(|| union(&writer, readers));
                let between = self.between(tensor, sides);
                self.edge(tensor, &writer, &between);
                readers.iter().for_each(|reader| self.edge(tensor, &between, reader));
            }
            (None, Some(sides)) if is_entry => {
                let between = self.between(tensor, sides);
                readers.iter().for_each(|reader| self.edge(tensor, &between, reader));
            }
            (None, _) => return self.check_data(tensor),
        }
        Ok(())
    }

    /// What comes from the data comes in any layout.
    fn check_data(&self, tensor: TensorId) -> Result<(), Error> {
        let tensor = &self.block.graph.tensors[tensor];
        if tensor.role == Role::Input {
            return Ok(());
        }
        let block = &self.block.nodes;
        let what = format!("nodes {} to {} read '{}'", block.start, block.end, tensor.name);
        Err(Error::impossible(format!(
            "{what} of an earlier block, expected one such tensor at most"
        )))
    }

    /// A variable for a tensor.
    fn between(&mut self, tensor: TensorId, sides: Vec<Sides>) -> End {
        let shape = &self.block.graph.tensors[tensor].shape;
        let enters = self.block.entry.as_ref().is_some_and(|(entry, _)| *entry == tensor);
        let cost = |sides| if enters { self.pricing.entry(shape, sides) } else { Cost::ZERO };
        self.options.push(sides.iter().map(cost).collect());
        self.variables.push(Variable::Tensor(tensor, sides.clone()));
        End { variable: self.variables.len() - 1, sides }
    }

    fn edge(&mut self, tensor: TensorId, from: &End, to: &End) {
        let shape = &self.block.graph.tensors[tensor].shape;
        let value = |end: &End| end.sides.iter().map(|sides| sides.value.clone()).collect();
        let gradient = |end: &End| end.sides.iter().map(|sides| sides.gradient.clone()).collect();
        let forward = self.one_way(shape, value(from), value(to));
        let backward = self.one_way(shape, gradient(to), gradient(from));
        let pairs = (0..from.sides.len()).flat_map(|a| (0..to.sides.len()).map(move |b| (a, b)));
        let wire = |(a, b)| Wire { forward_s: forward.at(a, b), backward_s: backward.at(b, a) };
        self.edges.push(([from.variable, to.variable], pairs.map(wire).collect()));
    }

    /// The seconds of all pairs of layouts, each different pair worked out once.
    fn one_way(&self, shape: &[usize], from: Vec<Layout>, to: Vec<Layout>) -> Matrix {
        let ((from, rows), (to, columns)) = (distinct(&from), distinct(&to));
        let seconds = self.pricing.conversions_s(shape, &from, &to);
        Matrix { width: to.len(), seconds, rows, columns }
    }

    fn finish(self) -> Formulation {
        let find = |end: &Option<(TensorId, Vec<Sides>)>| {
            let tensor = end.as_ref().map(|(tensor, _)| *tensor)?;
            let is_it =
                |variable: &Variable| matches!(variable, Variable::Tensor(id, _) if *id == tensor);
            self.variables.iter().position(is_it)
        };
        let (entry, exit) = (find(&self.block.entry), find(&self.block.exit));
        Formulation {
            options: self.options,
            edges: self.edges,
            variables: self.variables,
            entry,
            exit,
        }
    }
}

/// Seconds by what is different in two lists.
struct Matrix {
    width: usize,
    seconds: Rc<[f64]>,
    rows: Vec<usize>,
    columns: Vec<usize>,
}

impl Matrix {
    fn at(&self, from: usize, to: usize) -> f64 {
        self.seconds[self.rows[from] * self.width + self.columns[to]]
    }
}

/// All layouts that a writer gives or a reader wants.
fn union(writer: &End, readers: &[End]) -> Vec<Sides> {
    let all =
        readers.iter().fold(writer.sides.clone(), |all, end| [all, end.sides.clone()].concat());
    distinct(&all).0.into_iter().cloned().collect()
}

/// What is different in a list, in the order in which it comes, and for each item which of them.
fn distinct<T: Eq>(items: &[T]) -> (Vec<&T>, Vec<usize>) {
    let mut unique: Vec<&T> = Vec::new();
    let of = items.iter().map(|item| {
        // Few are different: looking through them is faster than hashing.
        unique.iter().position(|known| *known == item).unwrap_or_else(|| {
            unique.push(item);
            unique.len() - 1
        })
    });
    let of = of.collect();
    (unique, of)
}
