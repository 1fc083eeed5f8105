//! Order of elimination: the variable whose neighbours lack the fewest edges among each other goes
//! first (min-fill).

use std::collections::BTreeSet;

/// Returns all variables but `keep` in the order in which they are eliminated. `sizes` has the number of
/// options of each variable, and `edges` the pairs of variables that share a table.
pub fn order(
    sizes: &[usize],
    edges: impl Iterator<Item = [usize; 2]>,
    keep: &[usize],
) -> Vec<usize> {
    let mut neighbours = neighbours(sizes.len(), edges);
    let all = 0..sizes.len();
    let mut left: BTreeSet<usize> = all.filter(|variable| !keep.contains(variable)).collect();
    let mut order = Vec::with_capacity(left.len());
    while let Some(next) = cheapest(sizes, &neighbours, &left) {
        left.remove(&next);
        order.push(next);
        eliminate(&mut neighbours, next);
    }
    order
}

/// Returns the number of entries of the largest table when all variables of `order` are eliminated in this
/// order.
pub fn largest_table(
    sizes: &[usize],
    edges: impl Iterator<Item = [usize; 2]>,
    order: &[usize],
) -> f64 {
    let mut neighbours = neighbours(sizes.len(), edges);
    let mut largest = 0.0_f64;
    for next in order {
        let around = eliminate(&mut neighbours, *next);
        largest = largest.max(around.iter().map(|other| sizes[*other] as f64).product());
    }
    largest
}

/// Removes a variable, joins its neighbours with each other, and returns them.
fn eliminate(neighbours: &mut [BTreeSet<usize>], next: usize) -> BTreeSet<usize> {
    let around = std::mem::take(&mut neighbours[next]);
    for variable in &around {
        neighbours[*variable].remove(&next);
        neighbours[*variable].extend(around.iter().filter(|other| *other != variable));
    }
    around
}

fn neighbours(variables: usize, edges: impl Iterator<Item = [usize; 2]>) -> Vec<BTreeSet<usize>> {
    let mut neighbours = vec![BTreeSet::new(); variables];
    for [first, second] in edges {
        neighbours[first].insert(second);
        neighbours[second].insert(first);
    }
    neighbours
}

/// Returns the variable with the fewest edges to add; among several, the one with the smallest
/// table.
fn cheapest(
    sizes: &[usize],
    neighbours: &[BTreeSet<usize>],
    left: &BTreeSet<usize>,
) -> Option<usize> {
    let key = |variable: &usize| {
        let around = &neighbours[*variable];
        let missing = around.iter().map(|one| {
            let others = around.iter().filter(|other| *other > one);
            others.filter(|other| !neighbours[*one].contains(other)).count()
        });
        let table: f64 = around.iter().map(|one| (sizes[*one] as f64).ln()).sum();
        (missing.sum::<usize>(), (1e6 * table) as u64)
    };
    left.iter().copied().min_by_key(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_table_is_that_of_the_most_options_around_a_variable() {
        // A path needs the table of one neighbour or two, a clique that of all others.
        let sizes = [2, 3, 5, 7];
        let path = [[0, 1], [1, 2], [2, 3]];
        assert_eq!(largest_table(&sizes, path.into_iter(), &[0, 1, 2, 3]), 7.0);
        assert_eq!(largest_table(&sizes, path.into_iter(), &[1, 0, 2, 3]), 10.0);
        let clique = path.into_iter().chain([[0, 2], [0, 3], [1, 3]]);
        assert_eq!(largest_table(&sizes, clique, &[0, 1, 2, 3]), 105.0);
    }
}
