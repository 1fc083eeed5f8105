//! Draws against their exact distributions, by Pearson's chi-square test with fixed seeds.

use std::collections::BTreeMap;
use std::sync::Arc;

use thinwire_graph::{Adjacency, Draw, Sample, Sampler, Sampling, Weights};
use thinwire_wire::random::Key;

/// Draws `count` of the in-neighbours 1..=degree of vertex 0 many times, and counts the outcomes; ascending
/// if `sorted`.
fn outcomes(degree: u32, count: u32, draw: Draw, draws: u64) -> BTreeMap<Vec<u32>, u64> {
    let edges: Vec<(u32, u32)> = (1..=degree).map(|source| (source, 0)).collect();
    let graph = Adjacency::from_edges(degree + 1, &edges).unwrap();
    let sorted = matches!(draw, Draw::Distinct | Draw::Weighted(_));
    let mut sampler = Sampler::new(&graph, Sampling { draw, ..Sampling::new(&[count]) }).unwrap();
    let (mut sample, mut outcomes) = (Sample::new(), BTreeMap::new());
    for step in 0..draws {
        sampler.sample(&graph, &[0], Key { seed: 11, step, tensor: 1 }, &mut sample).unwrap();
        let mut drawn: Vec<u32> = sample.blocks[0].edges.iter().map(|edge| *edge as u32).collect();
        if sorted {
            drawn.sort_unstable();
        }
        *outcomes.entry(drawn).or_default() += 1;
    }
    outcomes
}

/// Asserts that outcomes have these probabilities: chi-square is at most its mean and 4.5 standard
/// deviations.
fn assert_chances(outcomes: &BTreeMap<Vec<u32>, u64>, chances: &BTreeMap<Vec<u32>, f64>) {
    let draws = outcomes.values().sum::<u64>() as f64;
    assert!((chances.values().sum::<f64>() - 1.0).abs() < 1e-9);
    assert!(outcomes.keys().all(|outcome| chances.contains_key(outcome)));
    let freedom = chances.len() as f64 - 1.0;
    let square: f64 = chances
        .iter()
        .map(|(outcome, chance)| {
            let expected = chance * draws;
            (outcomes.get(outcome).copied().unwrap_or(0) as f64 - expected).powi(2) / expected
        })
        .sum();
    assert!(square < freedom + 4.5 * (2.0 * freedom).sqrt(), "{square} of {freedom}");
}

/// Returns all ascending sets of `count` edges.
fn sets(degree: u32, count: u32) -> Vec<Vec<u32>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let last = |last: u32| {
        sets(last, count - 1).into_iter().map(move |mut set| {
            set.push(last);
            set
        })
    };
    (count - 1..degree).flat_map(last).collect()
}

fn even(outcomes: Vec<Vec<u32>>) -> BTreeMap<Vec<u32>, f64> {
    let chance = 1.0 / outcomes.len() as f64;
    outcomes.into_iter().map(|outcome| (outcome, chance)).collect()
}

#[test]
fn every_set_is_equally_likely() {
    // One, two and four lanes of comparison, and the bit set.
    for (degree, count) in [(6, 3), (7, 1), (9, 7), (12, 10), (20, 18), (35, 33), (70, 69)] {
        let sets = sets(degree, count);
        let draws = 200 * sets.len() as u64;
        assert_chances(&outcomes(degree, count, Draw::Distinct, draws), &even(sets));
    }
}

#[test]
fn every_sequence_with_replacement_is_equally_likely() {
    let pairs = (0..25).map(|number| vec![number / 5, number % 5]).collect();
    assert_chances(&outcomes(5, 2, Draw::Repeated, 10_000), &even(pairs));
}

const WEIGHTS: [f32; 4] = [1.0, 2.0, 0.0, 5.0];

fn weights() -> Arc<Weights> {
    Arc::new(Weights::new(WEIGHTS.to_vec()).unwrap())
}

fn chance(edge: u32, without: f32) -> f64 {
    f64::from(WEIGHTS[edge as usize]) / f64::from(8.0 - without)
}

#[test]
fn weighted_sets_have_the_chances_of_successive_draws() {
    let mut chances = BTreeMap::new();
    for set in [[0, 1], [0, 3], [1, 3]] {
        let [a, b] = set;
        let both = chance(a, 0.0) * chance(b, WEIGHTS[a as usize])
            + chance(b, 0.0) * chance(a, WEIGHTS[b as usize]);
        chances.insert(set.to_vec(), both);
    }
    assert_chances(&outcomes(4, 2, Draw::Weighted(weights()), 20_000), &chances);
}

#[test]
fn weighted_sequences_have_the_product_of_their_chances() {
    let mut chances = BTreeMap::new();
    for (a, b) in [0, 1, 3].into_iter().flat_map(|a| [0, 1, 3].map(|b| (a, b))) {
        chances.insert(vec![a, b], chance(a, 0.0) * chance(b, 0.0));
    }
    assert_chances(&outcomes(4, 2, Draw::WeightedRepeated(weights()), 20_000), &chances);
}
