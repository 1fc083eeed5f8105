//! Pareto sets: everything that is not worse than something else in both time and memory.
//!
//! The frontier dynamic programme with sets in place of numbers: where it adds costs, every point
//! of one set meets every point of the other, and where it takes the least, sets are united. What
//! is dominated is dropped at once, which loses nothing, because prices only add up.
//!
//! Law: for every limit of memory the fastest point within it is the best choice within it.

use thinwire_plan::stage::{Price, Problem};

/// A choice that nothing dominates.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// What it takes.
    pub price: Price,
    /// The option of every variable.
    pub choices: Vec<usize>,
}

/// A price, and how it came about: a place in the history, or 0.
#[derive(Clone, Copy, Debug)]
struct Entry {
    price: Price,
    history: u32,
}

/// Either a variable with its option, or two histories together.
#[derive(Clone, Copy, Debug)]
enum History {
    Start,
    Option { variable: u32, option: u32 },
    Both(u32, u32),
}

#[derive(Debug)]
struct Table {
    scope: Vec<usize>,
    sets: Vec<Vec<Entry>>,
}

/// All choices that nothing dominates, the fastest first.
pub fn pareto(problem: &Problem) -> Vec<Point> {
    let sizes: Vec<usize> = problem.options.iter().map(Vec::len).collect();
    let mut history = vec![History::Start];
    let mut tables = tables(problem, &mut history);
    for variable in problem.order(&[]) {
        let (with, without) = tables.into_iter().partition(|table| table.scope.contains(&variable));
        tables = without;
        tables.push(eliminate(variable, &with, &sizes, &mut history));
    }
    let start = vec![Entry { price: Price::default(), history: 0 }];
    let all = tables.iter().fold(start, |set, table| meet(&set, &table.sets[0], &mut history));
    let point = |entry: &Entry| {
        let mut choices = vec![0; sizes.len()];
        recall(entry.history, &history, &mut choices);
        Point { price: entry.price, choices }
    };
    prune(all).iter().map(point).collect()
}

fn tables(problem: &Problem, history: &mut Vec<History>) -> Vec<Table> {
    let mut tables = Vec::new();
    for (variable, options) in problem.options.iter().enumerate() {
        let sets = options.iter().enumerate().map(|(option, price)| {
            history.push(History::Option { variable: variable as u32, option: option as u32 });
            vec![Entry { price: *price, history: history.len() as u32 - 1 }]
        });
        tables.push(Table { scope: vec![variable], sets: sets.collect() });
    }
    for edge in &problem.edges {
        let sets = edge.prices.iter().map(|price| vec![Entry { price: *price, history: 0 }]);
        tables.push(Table { scope: edge.ends.to_vec(), sets: sets.collect() });
    }
    tables
}

fn eliminate(
    variable: usize,
    tables: &[Table],
    sizes: &[usize],
    history: &mut Vec<History>,
) -> Table {
    let mut scope: Vec<usize> = tables.iter().flat_map(|table| table.scope.clone()).collect();
    scope.sort_unstable();
    scope.dedup();
    scope.retain(|other| *other != variable);
    let length: usize = scope.iter().map(|other| sizes[*other]).product();
    let mut at = vec![0; sizes.len()];
    let set = |place: usize| {
        let mut rest = place;
        for other in scope.iter().rev() {
            at[*other] = rest % sizes[*other];
            rest /= sizes[*other];
        }
        let mut union = Vec::new();
        for option in 0..sizes[variable] {
            at[variable] = option;
            let start = vec![Entry { price: Price::default(), history: 0 }];
            let met = tables
                .iter()
                .fold(start, |set, table| prune(meet(&set, entries(table, &at, sizes), history)));
            union.extend(met);
        }
        prune(union)
    };
    let sets = (0..length).map(set).collect();
    Table { scope, sets }
}

fn entries<'a>(table: &'a Table, at: &[usize], sizes: &[usize]) -> &'a [Entry] {
    let place =
        table.scope.iter().fold(0, |place, variable| place * sizes[*variable] + at[*variable]);
    &table.sets[place]
}

/// Every point of one set with every point of the other.
fn meet(one: &[Entry], other: &[Entry], history: &mut Vec<History>) -> Vec<Entry> {
    let mut met = Vec::with_capacity(one.len() * other.len());
    for a in one.iter().filter(|entry| entry.price.seconds.is_finite()) {
        for b in other.iter().filter(|entry| entry.price.seconds.is_finite()) {
            let both = match (a.history, b.history) {
                (history, 0) | (0, history) => history,
                (first, second) => {
                    history.push(History::Both(first, second));
                    history.len() as u32 - 1
                }
            };
            met.push(Entry { price: a.price + b.price, history: both });
        }
    }
    met
}

/// What nothing dominates, the fastest first.
fn prune(mut entries: Vec<Entry>) -> Vec<Entry> {
    let key = |entry: &Entry| (entry.price.seconds, entry.price.bytes);
    entries.sort_by(|a, b| key(a).partial_cmp(&key(b)).expect("prices are numbers"));
    let mut kept: Vec<Entry> = Vec::new();
    for entry in entries {
        if kept.last().is_none_or(|last| entry.price.bytes < last.price.bytes) {
            kept.push(entry);
        }
    }
    kept
}

fn recall(place: u32, history: &[History], choices: &mut [usize]) {
    let mut open = vec![place];
    while let Some(place) = open.pop() {
        match history[place as usize] {
            History::Start => {}
            History::Option { variable, option } => choices[variable as usize] = option as usize,
            History::Both(first, second) => open.extend([first, second]),
        }
    }
}
