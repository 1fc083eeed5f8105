//! The costs of a partition.

use super::Parts;
use super::reach::Reach;
use crate::adjacency::Adjacency;

/// Figures of a partition. A balance is the size of the largest part divided by the mean; 1 is best.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Training vertices of every part.
    pub training: Vec<u64>,
    /// All vertices of every part.
    pub vertices: Vec<u64>,
    /// Vertices of every part's closure.
    pub closures: Vec<u64>,
    /// Number of vertices that are in at least one closure.
    pub reached: u64,
    /// Edges between two parts.
    pub cut: u64,
    /// Number of vertices that are in the closure of a part, but belong to another part. A pass with all
    /// neighbours requests their rows, each once.
    pub remote: u64,
}

impl Report {
    /// Computes the figures for closures of `hops` hops.
    pub fn new(graph: &Adjacency, training: &[u32], parts: &Parts, hops: u32) -> Report {
        let mut reach = Reach::new(graph, hops);
        let mut is_reached = vec![false; graph.vertices() as usize];
        let mut vertices = vec![0; parts.count() as usize];
        (0..graph.vertices()).for_each(|vertex| vertices[parts.of(vertex) as usize] += 1);
        let dealt = parts.deal(training);
        let (mut closures, mut remote) = (Vec::new(), 0);
        for (part, training) in (0..).zip(&dealt) {
            let closure = reach.of(training);
            closures.push(closure.len() as u64);
            remote += closure.iter().filter(|vertex| parts.of(**vertex) != part).count() as u64;
            closure.iter().for_each(|vertex| is_reached[*vertex as usize] = true);
        }
        Report {
            training: dealt.iter().map(|part| part.len() as u64).collect(),
            vertices,
            closures,
            reached: is_reached.iter().map(|is_reached| u64::from(*is_reached)).sum(),
            cut: graph.pairs().filter(|(a, b)| parts.of(*a) != parts.of(*b)).count() as u64,
            remote,
        }
    }

    /// Returns the balance of training vertices, on which the number of steps of a pass depends.
    pub fn training_balance(&self) -> f64 {
        balance(&self.training)
    }

    /// Returns the balance of vertices, on which the memory for features depends.
    pub fn vertex_balance(&self) -> f64 {
        balance(&self.vertices)
    }

    /// Returns the balance of closures, on which the memory of self-reliant parts depends.
    pub fn closure_balance(&self) -> f64 {
        balance(&self.closures)
    }

    /// Returns the size of all closures divided by the size of their union: copies per vertex; 1 is best.
    pub fn redundancy(&self) -> f64 {
        self.closures.iter().sum::<u64>() as f64 / self.reached.max(1) as f64
    }
}

/// Returns the index of the report with the least redundancy among those whose balance of training vertices
/// is at most `balance_max`. If there are none, returns the index of the report with the best balance.
pub fn choose(reports: &[Report], balance_max: f64) -> Option<usize> {
    let excess = |report: &Report| (report.training_balance() - balance_max).max(0.0);
    let worse = |a: &usize, b: &usize| {
        let (a, b) = (&reports[*a], &reports[*b]);
        excess(a).total_cmp(&excess(b)).then(a.redundancy().total_cmp(&b.redundancy()))
    };
    (0..reports.len()).min_by(worse)
}

fn balance(sizes: &[u64]) -> f64 {
    let (largest, sum) = (sizes.iter().max().copied().unwrap_or(0), sizes.iter().sum::<u64>());
    largest as f64 * sizes.len() as f64 / sum.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_small_partition() {
        // 0 -> 1 -> 2 -> 3 and 4 -> 3; parts {0, 1, 2} and {3, 4}.
        let graph = Adjacency::from_edges(5, &[(0, 1), (1, 2), (2, 3), (4, 3)]).unwrap();
        let parts = Parts::new(2, vec![0, 0, 0, 1, 1]).unwrap();
        let report = Report::new(&graph, &[2, 3], &parts, 2);
        // Closures {0, 1, 2} and {1, 2, 3, 4}.
        assert_eq!((report.closures.clone(), report.reached), (vec![3, 4], 5));
        assert_eq!((report.cut, report.remote), (1, 2));
        assert_eq!((report.training_balance(), report.vertex_balance()), (1.0, 1.2));
        assert_eq!((report.redundancy(), report.closure_balance()), (1.4, 8.0 / 7.0));
    }

    #[test]
    fn the_choice_is_the_least_redundancy_within_the_bound() {
        let report = |training: [u64; 2], closures: [u64; 2]| Report {
            training: training.to_vec(),
            vertices: vec![50, 50],
            closures: closures.to_vec(),
            reached: 100,
            cut: 0,
            remote: 0,
        };
        let reports =
            [report([50, 50], [90, 90]), report([51, 49], [60, 60]), report([60, 40], [50, 50])];
        assert_eq!(choose(&reports, 1.02), Some(1));
        assert_eq!(choose(&reports, 1.0), Some(0));
        assert_eq!(choose(&reports, 1.2), Some(2));
        assert_eq!(choose(&reports[2..], 1.0), Some(0));
        assert_eq!(choose(&[], 1.0), None);
    }
}
