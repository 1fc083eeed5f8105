//! A formulation in the making: a variable per node, and per tensor that several nodes read.

use std::collections::HashMap;
use std::rc::Rc;

use thinwire_model::{Layout, NodeId, Role, Sides, TensorId};

use super::formulation::{Block, Carried, Formulation, Variable};
use super::pricing::{Pricing, Wire};
use crate::Error;
use crate::cost::{Carriage, Cost};

/// An end of an edge: a variable, and the layouts of a tensor under each of its options.
struct End {
    variable: usize,
    sides: Vec<Sides>,
}

pub(super) struct Builder<'a> {
    block: &'a Block<'a>,
    mesh: &'a [usize],
    pricing: &'a dyn Pricing,
    options: Vec<Vec<Cost>>,
    edges: Vec<([usize; 2], Vec<Wire>)>,
    carried: HashMap<usize, Vec<Vec<Carried>>>,
    variables: Vec<Variable>,
    writers: HashMap<TensorId, End>,
    /// In the order in which tensors are first read.
    readers: Vec<(TensorId, Vec<End>)>,
}

impl<'a> Builder<'a> {
    pub fn new(block: &'a Block<'a>, mesh: &'a [usize], pricing: &'a dyn Pricing) -> Self {
        Builder {
            block,
            mesh,
            pricing,
            options: Vec::new(),
            edges: Vec::new(),
            carried: HashMap::new(),
            variables: Vec::new(),
            writers: HashMap::new(),
            readers: Vec::new(),
        }
    }

    /// Adds a node.
    pub fn node(&mut self, id: NodeId) {
        let graph = self.block.graph;
        let node = &graph.nodes[id];
        let declaration = graph.declaration(node);
        let options = self.pricing.options(id, &declaration, self.mesh);
        let (strategies, mut costs) = (options.0.clone(), options.1.clone());
        let variable = self.variables.len();
        for (place, tensor) in node.inputs.iter().enumerate() {
            let sides = strategies.iter().map(|strategy| declaration.input_sides(place, strategy));
            match graph.tensors[*tensor].role {
                Role::Parameter(_) => {
                    let sides: Vec<Sides> = sides.collect();
                    self.parameter(variable, *tensor, &sides, &mut costs);
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

    /// Adds what a parameter costs to each option of its node.
    fn parameter(
        &mut self,
        variable: usize,
        tensor: TensorId,
        sides: &[Sides],
        costs: &mut [Cost],
    ) {
        let shape = &self.block.graph.tensors[tensor].shape;
        let (different, of) = distinct(sides);
        let usual: Vec<Cost> =
            different.iter().map(|sides| self.pricing.parameter(shape, sides)).collect();
        costs.iter_mut().zip(&of).for_each(|(sum, one)| *sum += usual[*one]);
        let ways = different.iter().map(|sides| self.pricing.carriages(shape, sides).into());
        let ways: Vec<Rc<[Carriage]>> = ways.collect();
        if ways.iter().any(|ways| !ways.is_empty()) {
            let empty = || vec![Vec::new(); sides.len()];
            let options = self.carried.entry(variable).or_insert_with(empty);
            for (option, ways) in options.iter_mut().zip(of.iter().map(|one| &ways[*one])) {
                if !ways.is_empty() {
                    option.push(Carried { tensor, ways: Rc::clone(ways) });
                }
            }
        }
    }

    fn read(&mut self, tensor: TensorId, end: End) {
        match self.readers.iter_mut().find(|(read, _)| *read == tensor) {
            Some((_, ends)) => ends.push(end),
            None => self.readers.push((tensor, vec![end])),
        }
    }

    /// Joins the writers and readers of all tensors.
    pub fn tensors(&mut self) -> Result<(), Error> {
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

    /// What it has become.
    pub fn finish(self) -> Formulation {
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
            carried: self.carried,
            variables: self.variables,
            entry,
            exit,
        }
    }
}

/// Seconds by what is different in two lists.
struct Matrix {
    width: usize,
    seconds: Vec<f64>,
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
