//! What PowerSGD with one message per step must do.

use thinwire_codec::{Alternating, Finite, PowerSgd, kernel};
use thinwire_wire::random::Key;

const KEY: Key = Key { seed: 4, step: 0, tensor: 9 };
const SHAPES: [(usize, usize, usize); 4] = [(1, 40, 7), (2, 33, 65), (4, 128, 31), (8, 64, 64)];

fn matrix(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    (0..rows * columns).map(|i| Key { seed, ..KEY }.normal(i as u64)).collect()
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>())
}

/// One step of all ranks; gives back the sum, and leaves the residuals.
fn step(state: &mut Alternating, gradients: &[Vec<f32>], residuals: &mut [Vec<f32>]) -> Vec<f32> {
    let mut sum = vec![0.0; state.message_len()];
    for (gradient, residual) in gradients.iter().zip(residuals) {
        let (mut values, mut message) = (gradient.clone(), vec![f32::NAN; sum.len()]);
        assert_eq!(state.project(&mut values, residual, &mut message), Finite::Yes);
        state.subtract(&message, &mut values);
        assert!(norm(&values) <= (norm(gradient) + norm(residual)) * 1.000_01);
        *residual = values;
        kernel::add(&mut sum, &message);
    }
    let mut output = vec![f32::NAN; gradients[0].len()];
    state.reconstruct(&sum, &mut output);
    state.commit(&sum);
    output
}

#[test]
fn over_all_ranks_and_steps_nothing_is_lost() {
    for (low_rank, rows, columns) in SHAPES {
        let mut state = PowerSgd::new(low_rank).alternating(rows, columns, KEY);
        let mut residuals = vec![vec![0.0; rows * columns]; 3];
        let (mut sent, mut total) = (vec![0.0; rows * columns], vec![0.0; rows * columns]);
        for at in 0..8 {
            let gradients: Vec<_> =
                (0..3).map(|rank| matrix(rows, columns, 10 * at + rank)).collect();
            gradients.iter().for_each(|gradient| kernel::add(&mut total, gradient));
            kernel::add(&mut sent, &step(&mut state, &gradients, &mut residuals));
        }
        residuals.iter().for_each(|residual| kernel::add(&mut sent, residual));
        assert!(distance(&sent, &total) < 1e-5 * norm(&total), "{low_rank}, {rows} x {columns}");
    }
}

#[test]
fn the_basis_is_orthonormal_in_every_step() {
    for (low_rank, rows, columns) in SHAPES {
        let mut state = PowerSgd::new(low_rank).alternating(rows, columns, KEY);
        for at in 0..4 {
            let (basis, _) = state.basis();
            let length = basis.len() / low_rank;
            for (i, a) in basis.chunks(length).enumerate() {
                for (j, b) in basis.chunks(length).enumerate() {
                    let product: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum();
                    assert!((product - f64::from(u8::from(i == j))).abs() < 3e-6, "{i} {j}");
                }
            }
            let gradients = [matrix(rows, columns, at)];
            step(&mut state, &gradients, &mut [vec![0.0; rows * columns]]);
        }
    }
}

/// Two steps are one of subspace iteration: on one matrix the subspace is found.
#[test]
fn a_matrix_of_low_rank_is_found_in_two_steps() {
    let (rows, columns) = (48, 36);
    let (left, right) = (matrix(rows, 2, 1), matrix(2, columns, 2));
    let at = |i: usize| {
        let (row, column) = (i / columns, i % columns);
        left[row] * right[column] + left[rows + row] * right[columns + column]
    };
    let values: Vec<f32> = (0..rows * columns).map(at).collect();
    let mut state = PowerSgd::new(2).alternating(rows, columns, KEY);
    let mut errors = Vec::new();
    for _ in 0..3 {
        let gradients = std::slice::from_ref(&values);
        let output = step(&mut state, gradients, &mut [vec![0.0; rows * columns]]);
        errors.push(distance(&output, &values) / norm(&values));
    }
    assert!(errors[0] > 0.1 && errors[1] < 1e-5 && errors[2] < 1e-5, "{errors:?}");
}

#[test]
fn what_goes_on_from_a_state_goes_on_bit_for_bit() {
    for (low_rank, rows, columns) in SHAPES {
        let mut state = PowerSgd::new(low_rank).alternating(rows, columns, KEY);
        let mut residuals = vec![vec![0.0; rows * columns]];
        for at in 0..3 {
            let saved = state.state();
            assert_eq!(saved.len(), low_rank * (rows + columns), "the same in every step");
            let mut resumed =
                PowerSgd::new(low_rank).alternating(rows, columns, Key { seed: 5, ..KEY });
            resumed.resume(&saved);
            assert_eq!(resumed, state);
            step(&mut state, &[matrix(rows, columns, at)], &mut residuals);
        }
    }
}
