//! Builder of an outline, which has a variable for each node, and one for each tensor that several nodes
//! read.

use std::collections::HashMap;

use thinwire_model::{Layout, NodeId, Role, Sides, TensorId};

use super::order::{largest_table, order};
use super::outline::{Conversions, Parameter, TensorEdge};
use super::{Block, Outline, Pricing, Variable};
use crate::Error;
use crate::cost::Cost;

/// Largest number of entries of a table of an exact search, which then takes half a gigabyte.
const TABLE_ENTRIES_MAX: f64 = 67_108_864.0;

/// End of an edge: a variable. For each of its options, it has the layouts of a tensor, and the seconds of
/// computation after its gradient is ready.
struct End {
    variable: usize,
    sides: Vec<Sides>,
    behind_s: Vec<f64>,
}

impl End {
    /// Returns an end at which nothing is computed after the gradient is ready.
    fn new(variable: usize, sides: Vec<Sides>) -> End {
        let behind_s = vec![0.0; sides.len()];
        End { variable, sides, behind_s }
    }

    /// Returns the end for a gradient that must arrive at once.
    fn waiting(&self) -> End {
        End::new(self.variable, self.sides.clone())
    }

    fn values(&self) -> impl Iterator<Item = &Layout> {
        self.sides.iter().map(|sides| &sides.value)
    }

    fn gradients(&self) -> impl Iterator<Item = &Layout> {
        self.sides.iter().map(|sides| &sides.gradient)
    }
}

pub(super) struct Builder<'a> {
    block: &'a Block<'a>,
    mesh: &'a [usize],
    pricing: &'a dyn Pricing,
    options: Vec<Vec<Cost>>,
    edges: Vec<TensorEdge>,
    parameters: Vec<Parameter>,
    variables: Vec<Variable>,
    writers: HashMap<TensorId, End>,
    /// Readers of tensors, in the order in which tensors are first read.
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
            parameters: Vec::new(),
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
        let (strategies, costs) = self.pricing.options(id, &declaration, self.mesh);
        let variable = self.variables.len();
        for (place, tensor) in node.inputs.iter().enumerate() {
            let sides = strategies.iter().map(|strategy| declaration.input_sides(place, strategy));
            match graph.tensors[*tensor].role {
                Role::Parameter(_) => {
                    let sides: Vec<Sides> = sides.collect();
                    let (different, of) = distinct(sides.iter());
                    let sides = different.into_iter().cloned().collect();
                    self.parameters.push(Parameter { variable, tensor: *tensor, sides, of });
                }
                _ => {
                    let behind = |strategy| self.pricing.behind_s(id, place, strategy);
                    let behind_s = strategies.iter().map(behind).collect();
                    self.read(*tensor, End { variable, sides: sides.collect(), behind_s });
                }
            }
        }
        for (place, tensor) in node.outputs.iter().enumerate() {
            let sides = strategies.iter().map(|strategy| declaration.output_sides(place, strategy));
            self.writers.insert(*tensor, End::new(variable, sides.collect()));
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
                // Gradients of several readers are added before anything waits for their sum.
                readers.iter().for_each(|reader| self.edge(tensor, &between, &reader.waiting()));
            }
            (None, Some(sides)) if is_entry => {
                let between = self.between(tensor, sides);
                match readers {
                    [reader] => self.edge(tensor, &between, reader),
                    _ => readers
                        .iter()
                        .for_each(|reader| self.edge(tensor, &between, &reader.waiting())),
                }
            }
            (None, _) => return self.check_data(tensor),
        }
        Ok(())
    }

    /// Refuses a tensor of an earlier block; a tensor of the data may come in any layout.
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

    /// Adds a variable for a tensor.
    fn between(&mut self, tensor: TensorId, sides: Vec<Sides>) -> End {
        let shape = &self.block.graph.tensors[tensor].shape;
        let enters = self.block.entry.as_ref().is_some_and(|(entry, _)| *entry == tensor);
        let cost = |sides| if enters { self.pricing.entry(shape, sides) } else { Cost::ZERO };
        self.options.push(sides.iter().map(cost).collect());
        self.variables.push(Variable::Tensor(tensor, sides.clone()));
        End::new(self.variables.len() - 1, sides)
    }

    fn edge(&mut self, tensor: TensorId, from: &End, to: &End) {
        self.edges.push(TensorEdge {
            ends: [from.variable, to.variable],
            tensor,
            turned: false,
            forward: conversions(from.values(), to.values()),
            backward: conversions(to.gradients(), from.gradients()),
            behind_s: to.behind_s.clone(),
        });
    }

    /// Returns the outline.
    ///
    /// # Errors
    /// Returns an error if too many tensors of the block are alive at once: the tables of an exact search
    /// would not fit in memory.
    pub fn finish(self) -> Result<Outline, Error> {
        let find = |end: &Option<(TensorId, Vec<Sides>)>| {
            let tensor = end.as_ref().map(|(tensor, _)| *tensor)?;
            let is_it =
                |variable: &Variable| matches!(variable, Variable::Tensor(id, _) if *id == tensor);
            self.variables.iter().position(is_it)
        };
        let (entry, exit) = (find(&self.block.entry), find(&self.block.exit));
        let sizes: Vec<usize> = self.options.iter().map(Vec::len).collect();
        let edges = self.edges.iter().map(|edge| edge.ends);
        let keep: Vec<usize> = [entry, exit].into_iter().flatten().collect();
        let order = order(&sizes, edges.clone(), &keep);
        let largest = largest_table(&sizes, edges, &order);
        if largest > TABLE_ENTRIES_MAX {
            let name = &self.block.graph.nodes[self.block.nodes.start].name;
            return Err(Error::impossible(format!(
                "the nodes from '{name}' on need a table of {largest:.1e} entries on this mesh, expected at most {TABLE_ENTRIES_MAX:.1e}: too many tensors are alive at once for an exact search"
            )));
        }
        let mut edges = self.edges;
        edges.iter_mut().for_each(|edge| edge.turn(&order));
        Ok(Outline {
            order: order.into(),
            options: self.options,
            edges,
            parameters: self.parameters,
            variables: self.variables.into(),
            entry,
            exit,
        })
    }
}

/// Returns the distinct layouts of two ends and the layout of every option.
fn conversions<'a>(
    from: impl Iterator<Item = &'a Layout>,
    to: impl Iterator<Item = &'a Layout>,
) -> Conversions {
    let ((from, rows), (to, columns)) = (distinct(from), distinct(to));
    let owned = |layouts: Vec<&Layout>| layouts.into_iter().cloned().collect();
    Conversions { from: owned(from), to: owned(to), rows, columns }
}

/// Returns all layouts in which a writer gives a tensor or a reader needs it.
fn union(writer: &End, readers: &[End]) -> Vec<Sides> {
    let wanted = readers.iter().flat_map(|end| &end.sides);
    distinct(writer.sides.iter().chain(wanted)).0.into_iter().cloned().collect()
}

/// Returns the distinct items in order, and for each item the index of the distinct one that equals it.
fn distinct<'a, T: Eq>(items: impl Iterator<Item = &'a T>) -> (Vec<&'a T>, Vec<usize>) {
    let mut unique: Vec<&T> = Vec::new();
    let of = items.map(|item| {
        // Few are different: looking through them is faster than hashing.
        unique.iter().position(|known| *known == item).unwrap_or_else(|| {
            unique.push(item);
            unique.len() - 1
        })
    });
    let of = of.collect();
    (unique, of)
}
