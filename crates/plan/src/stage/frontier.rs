//! The exact frontier dynamic programme: variables are eliminated one by one.
//!
//! Eliminating a variable replaces all tables that it is in by one over its neighbours, which holds
//! for each of their options the best that the variable can do. Transformers have a treewidth of
//! two or three without and little more with shared tensors, so tables stay small; time grows
//! with the number of variables. (Bertelè and Brioschi, "Nonserial dynamic programming".)
//!
//! Law: the result is the least that any choice costs; equal to an integer programme's.

use super::order::order;
use super::problem::Problem;

/// A problem with all but a few variables eliminated.
#[derive(Clone, Debug)]
pub struct Eliminated {
    /// What is left: the best cost for all options of the variables kept, the last running fastest.
    pub costs: Vec<f64>,
    kept: Vec<usize>,
    variables: usize,
    steps: Vec<Step>,
}

/// Costs of all options of some variables, the last one running fastest.
#[derive(Clone, Debug)]
struct Table {
    scope: Vec<usize>,
    costs: Vec<f64>,
}

/// Which option a variable takes, by those of its neighbours.
#[derive(Clone, Debug)]
struct Step {
    variable: usize,
    scope: Vec<usize>,
    sizes: Vec<usize>,
    best: Vec<u16>,
}

/// Eliminates all variables but `keep`, at this many seconds per byte.
///
/// # Panics
/// If a variable has no option, or more than 65,535.
pub fn eliminate(problem: &Problem, keep: &[usize], seconds_per_byte: f64) -> Eliminated {
    eliminate_in(&order(problem, keep), problem, keep, seconds_per_byte)
}

/// The same in a given order, which serves all problems with the same variables and edges.
///
/// # Panics
/// As [`eliminate`].
pub fn eliminate_in(
    order: &[usize],
    problem: &Problem,
    keep: &[usize],
    seconds_per_byte: f64,
) -> Eliminated {
    let sizes: Vec<usize> = problem.options.iter().map(Vec::len).collect();
    assert!(
        sizes.iter().all(|size| (1..=usize::from(u16::MAX)).contains(size)),
        "options: {sizes:?}"
    );
    let mut tables = tables(problem, seconds_per_byte);
    let mut steps = Vec::new();
    for variable in order.iter().copied() {
        let (with, without) = tables.into_iter().partition(|table| table.scope.contains(&variable));
        tables = without;
        let (table, step) = best(variable, &with, &sizes);
        tables.push(table);
        steps.push(step);
    }
    let costs = sum(&tables, keep, &sizes);
    Eliminated { costs, kept: keep.to_vec(), variables: sizes.len(), steps }
}

impl Eliminated {
    /// The best option of every variable, given those of the variables that were kept.
    pub fn choices(&self, kept: &[usize]) -> Vec<usize> {
        let mut choices = vec![0; self.variables];
        for (variable, choice) in self.kept.iter().zip(kept) {
            choices[*variable] = *choice;
        }
        for step in self.steps.iter().rev() {
            let place = step.scope.iter().zip(&step.sizes);
            let place = place.fold(0, |place, (variable, size)| place * size + choices[*variable]);
            choices[step.variable] = usize::from(step.best[place]);
        }
        choices
    }
}

/// The least cost of a whole problem, and the choice that has it.
pub fn solve(problem: &Problem, seconds_per_byte: f64) -> (f64, Vec<usize>) {
    let eliminated = eliminate(problem, &[], seconds_per_byte);
    (eliminated.costs[0], eliminated.choices(&[]))
}

fn tables(problem: &Problem, seconds_per_byte: f64) -> Vec<Table> {
    let at =
        |prices: &[super::Price]| prices.iter().map(|price| price.at(seconds_per_byte)).collect();
    let alone = problem.options.iter().enumerate();
    let alone = alone.map(|(variable, prices)| Table { scope: vec![variable], costs: at(prices) });
    let pairs = problem.edges.iter();
    let pairs = pairs.map(|edge| Table { scope: edge.ends.to_vec(), costs: at(&edge.prices) });
    alone.chain(pairs).collect()
}

/// What is left of tables without one of their variables.
fn best(variable: usize, tables: &[Table], sizes: &[usize]) -> (Table, Step) {
    let mut scope: Vec<usize> = tables.iter().flat_map(|table| table.scope.clone()).collect();
    scope.sort_unstable();
    scope.dedup();
    scope.retain(|other| *other != variable);
    let length: usize = scope.iter().map(|other| sizes[*other]).product();
    let (mut costs, mut best) = (Vec::with_capacity(length), Vec::with_capacity(length));
    let own: Vec<usize> = tables.iter().map(|table| stride(table, variable, sizes)).collect();
    let mut sums = vec![0.0; sizes[variable]];
    for_each(&scope, tables, sizes, |offsets| {
        sums.fill(0.0);
        for ((table, offset), stride) in tables.iter().zip(offsets).zip(&own) {
            let values = table.costs[*offset..].iter().step_by(*stride);
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        let least =
            |best: usize, option: usize| if sums[option] < sums[best] { option } else { best };
        let option = (0..sums.len()).fold(0, least);
        costs.push(sums[option]);
        best.push(option as u16);
    });
    let scope_sizes = scope.iter().map(|other| sizes[*other]).collect();
    (Table { scope: scope.clone(), costs }, Step { variable, scope, sizes: scope_sizes, best })
}

/// The sum of tables for all options of the variables in `scope`.
fn sum(tables: &[Table], scope: &[usize], sizes: &[usize]) -> Vec<f64> {
    let mut costs = Vec::new();
    for_each(scope, tables, sizes, |offsets| {
        costs.push(tables.iter().zip(offsets).map(|(table, offset)| table.costs[*offset]).sum());
    });
    costs
}

/// Calls `f` for all options of the variables in `scope`, the last running fastest, with the place
/// in every table that belongs to them and to the first option of any other variable.
fn for_each(scope: &[usize], tables: &[Table], sizes: &[usize], mut f: impl FnMut(&[usize])) {
    let strides: Vec<Vec<usize>> = scope
        .iter()
        .map(|variable| tables.iter().map(|table| stride(table, *variable, sizes)).collect())
        .collect();
    let mut at = vec![0; scope.len()];
    let mut offsets = vec![0; tables.len()];
    loop {
        f(&offsets);
        let mut place = scope.len();
        loop {
            if place == 0 {
                return;
            }
            place -= 1;
            at[place] += 1;
            let (size, stride) = (sizes[scope[place]], &strides[place]);
            if at[place] < size {
                offsets.iter_mut().zip(stride).for_each(|(offset, stride)| *offset += stride);
                break;
            }
            at[place] = 0;
            offsets
                .iter_mut()
                .zip(stride)
                .for_each(|(offset, stride)| *offset -= (size - 1) * stride);
        }
    }
}

/// How far apart the neighbouring options of a variable are in a table; 0 if it is not in there.
fn stride(table: &Table, variable: usize, sizes: &[usize]) -> usize {
    let Some(place) = table.scope.iter().position(|other| *other == variable) else { return 0 };
    table.scope[place + 1..].iter().map(|other| sizes[*other]).product()
}
