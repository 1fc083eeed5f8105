//! The order in which variables are eliminated: the one whose neighbours lack the fewest edges
//! among each other goes first (min-fill).

use std::collections::BTreeSet;

use super::problem::Problem;

/// All variables but those to keep, in the order in which they are eliminated.
pub fn order(problem: &Problem, keep: &[usize]) -> Vec<usize> {
    let mut neighbours = neighbours(problem);
    let all = 0..problem.options.len();
    let mut left: BTreeSet<usize> = all.filter(|variable| !keep.contains(variable)).collect();
    let mut order = Vec::with_capacity(left.len());
    while let Some(next) = cheapest(problem, &neighbours, &left) {
        left.remove(&next);
        order.push(next);
        let around = std::mem::take(&mut neighbours[next]);
        for variable in &around {
            neighbours[*variable].remove(&next);
            let others = around.iter().filter(|other| *other != variable);
            neighbours[*variable].extend(others);
        }
    }
    order
}

fn neighbours(problem: &Problem) -> Vec<BTreeSet<usize>> {
    let mut neighbours = vec![BTreeSet::new(); problem.options.len()];
    for [first, second] in problem.edges.iter().map(|edge| edge.ends) {
        neighbours[first].insert(second);
        neighbours[second].insert(first);
    }
    neighbours
}

/// The variable with the fewest edges to add; among several, the one with the smallest table.
fn cheapest(
    problem: &Problem,
    neighbours: &[BTreeSet<usize>],
    left: &BTreeSet<usize>,
) -> Option<usize> {
    let key = |variable: &usize| {
        let around = &neighbours[*variable];
        let missing = around.iter().map(|one| {
            let others = around.iter().filter(|other| *other > one);
            others.filter(|other| !neighbours[*one].contains(other)).count()
        });
        let table: f64 = around.iter().map(|one| (problem.options[*one].len() as f64).ln()).sum();
        (missing.sum::<usize>(), (1e6 * table) as u64)
    };
    left.iter().copied().min_by_key(key)
}
