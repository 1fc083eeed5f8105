//! Frontier dynamic programme: the exact optimum by eliminating variables one by one.
//!
//! Eliminating a variable replaces all tables that contain it by one table over its neighbours, which has the
//! variable's best cost for each combination of their options. Transformers have a treewidth of two or
//! three without shared tensors, and a slightly larger one with shared tensors. So tables stay small,
//! and time grows with the number of variables. (Bertelè and Brioschi, "Nonserial dynamic programming".)
//!
//! Law: the result is the least cost of any choice, which equals the optimum of an integer programme.

use super::Problem;

/// Number of costs that are compared at once.
const LANES: usize = 8;

/// Problem with all but a few variables eliminated.
#[derive(Clone, Debug)]
pub struct Eliminated {
    /// Best cost for all options of the variables that were kept; the option of the last variable varies
    /// fastest.
    pub costs: Vec<f64>,
    kept: Vec<usize>,
    variables: usize,
    steps: Vec<Elimination>,
}

/// Costs of all options of some variables; the last variable runs fastest.
#[derive(Clone, Debug)]
struct Table {
    scope: Vec<usize>,
    costs: Vec<f64>,
}

/// Best option of an eliminated variable, by the options of its neighbours.
#[derive(Clone, Debug)]
struct Elimination {
    variable: usize,
    scope: Vec<usize>,
    sizes: Vec<usize>,
    best: Vec<u16>,
}

/// Eliminates the variables of `order`, which are all but `keep`, at `seconds_per_byte`.
///
/// # Panics
/// Panics if a variable has no option, or more than 65,535.
pub fn eliminate(
    problem: &Problem,
    order: &[usize],
    keep: &[usize],
    seconds_per_byte: f64,
) -> Eliminated {
    let (sizes, mut tables) = (problem.sizes(), tables(problem, seconds_per_byte));
    assert!(
        sizes.iter().all(|size| (1..=usize::from(u16::MAX)).contains(size)),
        "options: {sizes:?}"
    );
    let mut places = vec![usize::MAX; sizes.len()];
    order.iter().enumerate().for_each(|(place, variable)| places[*variable] = place);
    let mut steps = Vec::with_capacity(order.len());
    for variable in order.iter().copied() {
        let has = |table: &mut Table| table.scope.contains(&variable);
        let with: Vec<Table> = tables.extract_if(.., has).collect();
        let (table, step) = best(variable, with, &sizes, &places);
        tables.push(table);
        steps.push(step);
    }
    let costs = sum(&tables, keep, &sizes);
    Eliminated { costs, kept: keep.to_vec(), variables: sizes.len(), steps }
}

impl Table {
    /// Returns the table with one of its variables as the last.
    fn turned(self, variable: usize, sizes: &[usize]) -> Table {
        if self.scope.last() == Some(&variable) {
            return self;
        }
        let (apart, options) = (stride(&self, variable, sizes), sizes[variable]);
        let mut scope = self.scope.clone();
        scope.retain(|other| *other != variable);
        let mut costs = Vec::with_capacity(self.costs.len());
        for_each(&scope, std::slice::from_ref(&self), sizes, |offsets| {
            costs.extend(self.costs[offsets[0]..].iter().step_by(apart).take(options));
        });
        scope.push(variable);
        Table { scope, costs }
    }
}

impl Eliminated {
    /// Returns the best option of every variable, given the options of the variables that were kept.
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

/// Returns the least cost of a whole problem, and the choice that has it.
pub fn solve(problem: &Problem, seconds_per_byte: f64) -> (f64, Vec<usize>) {
    let eliminated = eliminate(problem, &problem.order(&[]), &[], seconds_per_byte);
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

/// Eliminates a variable from its tables. Of the remaining variables, the one to be eliminated next is put
/// last, so that it is read contiguously.
fn best(
    variable: usize,
    tables: Vec<Table>,
    sizes: &[usize],
    places: &[usize],
) -> (Table, Elimination) {
    let mut scope: Vec<usize> = tables.iter().flat_map(|table| table.scope.clone()).collect();
    scope.sort_unstable_by_key(|other| (std::cmp::Reverse(places[*other]), *other));
    scope.dedup();
    scope.retain(|other| *other != variable);
    let length: usize = scope.iter().map(|other| sizes[*other]).product();
    let (mut costs, mut best) = (Vec::with_capacity(length), Vec::with_capacity(length));
    let tables = rows(variable, tables, sizes);
    let options = sizes[variable];
    let mut sums = vec![0.0; options];
    for_each(&scope, &tables, sizes, |offsets| {
        let mut rows = tables.iter().zip(offsets).map(|(table, at)| &table.costs[*at..][..options]);
        sums.copy_from_slice(rows.next().expect("a variable has a table"));
        for row in rows {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        let (option, cost) = least(&sums);
        costs.push(cost);
        best.push(option as u16);
    });
    let scope_sizes = scope.iter().map(|other| sizes[*other]).collect();
    (
        Table { scope: scope.clone(), costs },
        Elimination { variable, scope, sizes: scope_sizes, best },
    )
}

/// Returns tables in which a variable is the last one. The variable's own costs are added to the smallest
/// table, which takes the fewest additions.
fn rows(variable: usize, tables: Vec<Table>, sizes: &[usize]) -> Vec<Table> {
    let is_alone = |table: &Table| table.scope == [variable];
    let (mut alone, others): (Vec<Table>, Vec<Table>) = tables.into_iter().partition(is_alone);
    let mut others: Vec<Table> =
        others.into_iter().map(|table| table.turned(variable, sizes)).collect();
    let Some(smallest) = others.iter_mut().min_by_key(|table| table.costs.len()) else {
        return alone;
    };
    for costs in alone.drain(..).map(|table| table.costs) {
        for row in smallest.costs.chunks_exact_mut(costs.len()) {
            row.iter_mut().zip(&costs).for_each(|(sum, cost)| *sum += cost);
        }
    }
    others
}

/// Returns the first of the least costs and its index. Lanes avoid waiting for each comparison.
fn least(costs: &[f64]) -> (usize, f64) {
    let mut lanes = [f64::INFINITY; LANES];
    let (chunks, rest) = costs.as_chunks::<LANES>();
    let lower = |least: f64, cost: f64| if cost < least { cost } else { least };
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(least, cost)| *least = lower(*least, *cost));
    }
    let least = lanes.iter().chain(rest).copied().fold(f64::INFINITY, lower);
    (costs.iter().position(|cost| *cost == least).unwrap_or(0), least)
}

/// Returns the sum of tables for all options of the variables in `scope`.
fn sum(tables: &[Table], scope: &[usize], sizes: &[usize]) -> Vec<f64> {
    let mut costs = Vec::new();
    for_each(scope, tables, sizes, |offsets| {
        costs.push(tables.iter().zip(offsets).map(|(table, offset)| table.costs[*offset]).sum());
    });
    costs
}

/// Calls `f` for all options of the variables in `scope`, the last running fastest. `f` gets the offset in
/// every table of these options and the first option of any other variable.
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

/// Returns the distance between neighbouring options of a variable in a table; 0 if the table lacks
/// it.
fn stride(table: &Table, variable: usize, sizes: &[usize]) -> usize {
    let Some(place) = table.scope.iter().position(|other| *other == variable) else { return 0 };
    table.scope[place + 1..].iter().map(|other| sizes[*other]).product()
}
