//! What PowerSGD must do, one rank and several.

use thinwire_codec::{Factor, Finite, PowerSgd, kernel};
use thinwire_wire::random::Key;

const KEY: Key = Key { seed: 8, step: 0, tensor: 4 };

fn matrix(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    let key = Key { seed, ..KEY };
    (0..rows * columns).map(|i| key.normal(i as u64)).collect()
}

/// A sum of `low_rank` outer products, each `decay` times the one before.
fn of_rank(low_rank: usize, rows: usize, columns: usize, decay: f32) -> Vec<f32> {
    let (left, right) = (matrix(low_rank, rows, 1), matrix(low_rank, columns, 2));
    let mut values = vec![0.0; rows * columns];
    for at in 0..values.len() {
        for one in 0..low_rank {
            let product = left[one * rows + at / columns] * right[one * columns + at % columns];
            values[at] += decay.powi(one as i32) * product;
        }
    }
    values
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>())
}

fn sum<'a>(all: impl IntoIterator<Item = &'a Vec<f32>>) -> Vec<f32> {
    let mut all = all.into_iter();
    let mut sum = all.next().unwrap().clone();
    all.for_each(|one| kernel::add(&mut sum, one));
    sum
}

/// One rank of a simulated world.
#[derive(Clone)]
struct Rank {
    factor: Factor,
    residual: Vec<f32>,
}

/// One step of all ranks: the sum of their matrices as each of them reconstructs it.
fn step(ranks: &mut [Rank], gradients: &[Vec<f32>]) -> Vec<f32> {
    let mut values = gradients.to_vec();
    let mut p: Vec<_> = ranks.iter().map(|rank| vec![0.0; rank.factor.p_len()]).collect();
    for ((rank, values), p) in ranks.iter().zip(&mut values).zip(&mut p) {
        assert_eq!(rank.factor.project(values, &rank.residual, p), Finite::Yes);
    }
    let p_sum = sum(&p);
    let mut q = Vec::new();
    for (rank, values) in ranks.iter().zip(&mut values) {
        let (mut p, mut own) = (p_sum.clone(), vec![0.0; rank.factor.q_len()]);
        rank.factor.project_back(values, &mut p, &mut own);
        rank.factor.subtract(&p, &own, values);
        q.push(own);
    }
    let q_sum = sum(&q);
    let mut outputs = Vec::new();
    for (rank, values) in ranks.iter_mut().zip(values) {
        let (mut p, mut own) = (p_sum.clone(), vec![0.0; rank.factor.q_len()]);
        rank.factor.project_back(&values, &mut p, &mut own);
        let mut output = vec![f32::NAN; values.len()];
        rank.factor.reconstruct(&p, &q_sum, &mut output);
        outputs.push(output);
        rank.factor.commit(&q_sum);
        rank.residual = values;
    }
    assert!(outputs.iter().all(|output| *output == outputs[0]), "replicas differ");
    outputs.swap_remove(0)
}

fn world(size: usize, low_rank: usize, rows: usize, columns: usize) -> Vec<Rank> {
    let factor = PowerSgd::new(low_rank).factor(rows, columns, KEY);
    vec![Rank { factor, residual: vec![0.0; rows * columns] }; size]
}

const SHAPES: [(usize, usize, usize); 6] =
    [(1, 3, 2), (1, 40, 7), (2, 33, 65), (4, 128, 31), (8, 64, 64), (3, 17, 1009)];

#[test]
fn p_becomes_orthonormal_whatever_it_was() {
    for (low_rank, rows, columns) in SHAPES {
        let factor = PowerSgd::new(low_rank).factor(rows, columns, KEY);
        let values = matrix(rows, columns, 5);
        let random = matrix(low_rank, rows, 6);
        let parallel: Vec<f32> = (0..random.len()).map(|i| random[i % rows] * 1.5).collect();
        let close: Vec<f32> = parallel.iter().zip(&random).map(|(a, b)| a + b * 1e-4).collect();
        let scaled = |factor: f32| random.iter().map(|x| x * factor).collect::<Vec<_>>();
        let zero = vec![0.0; random.len()];
        let all = [scaled(1.0), parallel, close, scaled(1e-30), scaled(1e-42), scaled(1e37), zero];
        for (case, mut p) in all.into_iter().enumerate() {
            let mut q = vec![0.0; factor.q_len()];
            factor.project_back(&values, &mut p, &mut q);
            for (i, a) in p.chunks(rows).enumerate() {
                for (j, b) in p.chunks(rows).enumerate() {
                    let product: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum();
                    let expected = if i == j { 1.0 } else { 0.0 };
                    assert!((product - expected).abs() < 3e-6, "case {case}: {i} {j} {product}");
                }
            }
        }
    }
}

#[test]
fn a_matrix_of_low_rank_is_exact() {
    for (low_rank, rows, columns) in SHAPES {
        for rank in 1..=low_rank {
            let values = of_rank(rank, rows, columns, 0.7);
            let mut ranks = world(1, low_rank, rows, columns);
            let output = step(&mut ranks, std::slice::from_ref(&values));
            let error = distance(&output, &values) / norm(&values);
            assert!(error < 1e-5, "{rank} of {low_rank}, {rows} x {columns}: {error}");
        }
    }
}

#[test]
fn the_residual_is_not_longer_than_the_matrix() {
    for (low_rank, rows, columns) in SHAPES {
        let values = matrix(rows, columns, 9);
        let mut ranks = world(1, low_rank, rows, columns);
        let output = step(&mut ranks, std::slice::from_ref(&values));
        let left = norm(&ranks[0].residual);
        assert!(left < norm(&values));
        // A projection: what is sent and what is left are at right angles.
        let total = (norm(&output).powi(2) + left.powi(2)).sqrt();
        assert!((total / norm(&values) - 1.0).abs() < 1e-5);
    }
}

#[test]
fn over_all_ranks_and_steps_nothing_is_lost() {
    for (low_rank, rows, columns) in SHAPES {
        let mut ranks = world(3, low_rank, rows, columns);
        let (mut sent, mut total) = (vec![0.0; rows * columns], vec![0.0; rows * columns]);
        for at in 0..8 {
            let gradients: Vec<_> =
                (0..3).map(|rank| matrix(rows, columns, 10 * at + rank)).collect();
            kernel::add(&mut total, &sum(&gradients));
            kernel::add(&mut sent, &step(&mut ranks, &gradients));
        }
        kernel::add(&mut sent, &sum(ranks.iter().map(|rank| &rank.residual)));
        let error = distance(&sent, &total) / norm(&total);
        assert!(error < 1e-5, "low rank {low_rank}, {rows} x {columns}: {error}");
    }
}

/// On one matrix every step is a step of subspace iteration: the error goes to the best possible.
#[test]
fn a_warm_start_finds_the_best_subspace() {
    let (rows, columns) = (60, 50);
    let values = of_rank(6, rows, columns, 0.5);
    let best = {
        let exact = of_rank(2, rows, columns, 0.5);
        distance(&values, &exact) / norm(&values)
    };
    let mut ranks = world(1, 2, rows, columns);
    let mut errors = Vec::new();
    for _ in 0..12 {
        ranks[0].residual.fill(0.0);
        let output = step(&mut ranks, std::slice::from_ref(&values));
        errors.push(distance(&output, &values) / norm(&values));
    }
    let (first, last) = (errors[0], errors[11]);
    assert!(last < first * 0.9 && last <= best, "{errors:?}, without the small parts {best}");
    assert!(errors.windows(2).all(|pair| pair[1] <= pair[0] * 1.001), "{errors:?}");
}

#[test]
fn a_matrix_that_was_zero_is_found_when_it_grows() {
    let (rows, columns) = (40, 30);
    let mut ranks = world(2, 2, rows, columns);
    for _ in 0..3 {
        let output = step(&mut ranks, &vec![vec![0.0; rows * columns]; 2]);
        assert!(output.iter().all(|x| *x == 0.0));
    }
    let values = of_rank(2, rows, columns, 1.0);
    for _ in 0..4 {
        step(&mut ranks, &[values.clone(), values.clone()]);
    }
    let left = norm(&sum(ranks.iter().map(|rank| &rank.residual)));
    assert!(left < 1e-3 * norm(&values), "{left}");
}

#[test]
fn a_number_that_is_none_is_reported_and_does_no_harm() {
    let (rows, columns) = (20, 30);
    let factor = PowerSgd::new(2).factor(rows, columns, KEY);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 31, 599] {
            let mut values = matrix(rows, columns, 1);
            values[at] = bad;
            let (mut p, mut q) = (vec![0.0; factor.p_len()], vec![0.0; factor.q_len()]);
            let finite = factor.project(&mut values, &vec![0.0; rows * columns], &mut p);
            assert_eq!(finite, Finite::No);
            factor.project_back(&values, &mut p, &mut q);
            assert!(p.iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
fn only_what_becomes_smaller_is_compressed() {
    let codec = PowerSgd::new(4);
    assert!(codec.compresses(100, 100));
    assert!(!codec.compresses(8, 8) && !codec.compresses(1, 100_000) && !codec.compresses(0, 9));
}
