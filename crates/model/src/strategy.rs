//! Strategies: all ways to divide an operator over a mesh.
//!
//! On every dimension of the mesh, an operator puts one of its axes, or no axis. Without an axis, all
//! ranks along this dimension do the same work. The layouts of values and gradients follow, in the same
//! way for every operator:
//!
//! | an operand | value | gradient |
//! |---|---|---|
//! | with the axis | sharded | sharded |
//! | input without it | replicated | partial |
//! | input without it that is added, if the axis is summed | partial | replicated |
//! | output without it | partial | replicated |
//! | if no axis is cut | replicated | replicated |
//! | of a linear operator that carries partial sums | partial | replicated |

use std::fmt;

use crate::{Axis, Declaration, Dim, Layout, Operand, Part, Placement, Reduction, Region, Split};

/// Work of an operator along one dimension of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cut {
    /// All ranks do the same work.
    Whole,
    /// Every rank computes its part of this axis.
    Axis(usize),
    /// Every rank does all of the work on partial sums; only for linear operators.
    Sum,
}

/// One cut per dimension of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Strategy(pub Vec<Cut>);

/// Layouts of an operand's value and of its gradient.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sides {
    /// Layout in which the forward pass needs an input, or gives an output.
    pub value: Layout,
    /// Layout in which the backward pass gives the gradient of an input, or needs the gradient of an
    /// output.
    pub gradient: Layout,
}

impl Declaration {
    /// Returns all strategies on a mesh of these sizes. In the first strategy, all ranks do the same
    /// work.
    pub fn strategies(&self, mesh: &[usize]) -> Vec<Strategy> {
        let mut strategies = vec![Strategy(Vec::new())];
        for _ in mesh {
            let longer = |strategy: &Strategy| {
                let cuts = strategy.0.clone();
                self.cuts().map(move |cut| Strategy([&cuts[..], &[cut]].concat()))
            };
            strategies = strategies.iter().flat_map(longer).collect();
            strategies.retain(|strategy| self.allows(strategy, mesh));
        }
        strategies
    }

    /// Returns whether every axis can be cut into as many parts as a strategy requires. The strategy may
    /// have fewer dimensions than the mesh.
    pub fn allows(&self, strategy: &Strategy, mesh: &[usize]) -> bool {
        let linear = self.linear || !strategy.0.contains(&Cut::Sum);
        let even =
            |(index, axis): (usize, &Axis)| match (self.parts(index, strategy, mesh), axis.split) {
                (1, _) => true,
                (_, Split::Never) => false,
                (parts, Split::Even { multiple_of }) => axis.length % (parts * multiple_of) == 0,
            };
        linear && self.axes.iter().enumerate().all(even)
    }

    /// Returns the layouts of an input under a strategy.
    pub fn input_sides(&self, input: usize, strategy: &Strategy) -> Sides {
        let operand = &self.inputs[input];
        self.sides(strategy, |cut| self.input_placements(operand, cut))
    }

    /// Returns the layouts of an output under a strategy.
    pub fn output_sides(&self, output: usize, strategy: &Strategy) -> Sides {
        let operand = &self.outputs[output];
        self.sides(strategy, |cut| output_placements(operand, cut))
    }

    /// Returns the flops of one rank.
    pub fn local_flops(&self, strategy: &Strategy, mesh: &[usize]) -> f64 {
        let cut = strategy.0.iter().zip(mesh).filter(|(cut, _)| matches!(cut, Cut::Axis(_)));
        self.flops / cut.map(|(_, size)| *size as f64).product::<f64>()
    }

    /// Returns the number of elements that one rank reads and writes.
    pub fn local_elements(&self, strategy: &Strategy, mesh: &[usize]) -> usize {
        let local = |operand: &Operand| -> usize {
            let length = |dim: &Dim| {
                let parts = self.parts(dim.axis, strategy, mesh);
                self.axes[dim.axis].length / parts * dim.width
            };
            operand.dims.iter().map(length).product()
        };
        self.inputs.iter().chain(&self.outputs).map(local).sum()
    }

    /// Returns the part of every axis that the rank with these coordinates computes.
    pub fn region(&self, strategy: &Strategy, mesh: &[usize], coordinates: &[usize]) -> Region<'_> {
        let part = |(index, axis): (usize, &Axis)| {
            let cuts = strategy.0.iter().zip(mesh).zip(coordinates);
            let of_axis = cuts.filter(|((cut, _), _)| **cut == Cut::Axis(index));
            let (parts, at) = of_axis
                .fold((1, 0), |(parts, at), ((_, size), here)| (parts * size, at * size + here));
            let length = axis.length / parts;
            Part { start: at * length, length }
        };
        Region::new(self, self.axes.iter().enumerate().map(part).collect())
    }

    /// Returns the strategy of an operator's gradient: the same axes, found by their names. If a gradient
    /// does not have an axis, all ranks do the same work.
    pub fn carried(&self, strategy: &Strategy, gradient: &Declaration) -> Strategy {
        let carry = |cut: &Cut| match cut {
            Cut::Axis(axis) => gradient.axis(self.axes[*axis].name).map_or(Cut::Whole, Cut::Axis),
            Cut::Whole | Cut::Sum => Cut::Whole,
        };
        Strategy(strategy.0.iter().map(carry).collect())
    }

    /// Returns a strategy as text, with the names of its axes.
    pub fn describe(&self, strategy: &Strategy) -> String {
        let name = |cut: &Cut| match cut {
            Cut::Whole => '-',
            Cut::Axis(axis) => self.axes[*axis].name,
            Cut::Sum => '+',
        };
        strategy.0.iter().map(name).map(String::from).collect::<Vec<_>>().join(",")
    }

    fn cuts(&self) -> impl Iterator<Item = Cut> {
        let axes = self.axes.iter().enumerate().filter(|(_, axis)| axis.split != Split::Never);
        let axes = axes.map(|(index, _)| Cut::Axis(index));
        std::iter::once(Cut::Whole).chain(axes).chain(self.linear.then_some(Cut::Sum))
    }

    /// Returns the number of parts into which a strategy cuts an axis.
    fn parts(&self, axis: usize, strategy: &Strategy, mesh: &[usize]) -> usize {
        let cuts = strategy.0.iter().zip(mesh).filter(|(cut, _)| **cut == Cut::Axis(axis));
        cuts.map(|(_, size)| size).product()
    }

    fn sides(
        &self,
        strategy: &Strategy,
        placements: impl Fn(Cut) -> (Placement, Placement),
    ) -> Sides {
        let (value, gradient) = strategy.0.iter().map(|cut| placements(*cut)).unzip();
        Sides { value: Layout(value), gradient: Layout(gradient) }
    }

    fn input_placements(&self, operand: &Operand, cut: Cut) -> (Placement, Placement) {
        let sum = Placement::Partial(Reduction::Sum);
        match cut {
            Cut::Whole => (Placement::Replicated, Placement::Replicated),
            Cut::Sum => (sum, Placement::Replicated),
            Cut::Axis(axis) => match operand.dim_of(axis) {
                Some(dim) => (Placement::Sharded(dim), Placement::Sharded(dim)),
                None if operand.summand && self.is_summed(axis) => (sum, Placement::Replicated),
                None => (Placement::Replicated, sum),
            },
        }
    }

    /// Returns whether no output has the axis.
    fn is_summed(&self, axis: usize) -> bool {
        self.outputs.iter().all(|output| output.dim_of(axis).is_none())
    }
}

fn output_placements(operand: &Operand, cut: Cut) -> (Placement, Placement) {
    match cut {
        Cut::Whole => (Placement::Replicated, Placement::Replicated),
        Cut::Sum => (Placement::Partial(Reduction::Sum), Placement::Replicated),
        Cut::Axis(axis) => match operand.dim_of(axis) {
            Some(dim) => (Placement::Sharded(dim), Placement::Sharded(dim)),
            None => (Placement::Partial(operand.reduction), Placement::Replicated),
        },
    }
}

impl fmt::Display for Sides {
    /// Writes both layouts, such as `(S0,R) / (S0,P)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {}", self.value, self.gradient)
    }
}
