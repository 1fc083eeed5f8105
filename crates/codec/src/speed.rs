//! Speed of codecs on this machine.
//!
//! No other file of this crate reads the clock. All figures are bytes of f32 per second. For comparison,
//! a plain copy of the same values is measured in the same rounds.

use std::hint::black_box;
use std::time::Instant;

use thinwire_wire::random::Key;

use crate::{Choice, Codec, Input, IntSgd, PowerSgd, Rounds, Write, kernel};

/// Timing of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name: `copy`, `encode`, `encode with residual`, `decode` or `decode-add`.
    pub operation: &'static str,
    /// Median over all rounds, in bytes of f32 per second.
    pub bytes_per_s: f64,
    /// Median, over all rounds, of this speed divided by the copy's speed in the same round.
    pub relative_to_copy: f64,
}

const KEY: Key = Key { seed: 1, step: 2, tensor: 3 };

/// Times each operation of `choice` on `elements` normal values in `rounds` rounds; each round also times
/// a plain copy, which is the first row. Returns no rows if `choice` is PowerSGD and does not compress a
/// matrix of this size.
///
/// # Panics
/// If there are no elements or no rounds.
pub fn measure(choice: &Choice, elements: usize, rounds: usize) -> Vec<Row> {
    assert!(elements > 0 && rounds > 0, "{elements} elements, {rounds} rounds");
    let values: Vec<f32> = (0..elements).map(|i| normal(i as u64)).collect();
    match choice {
        Choice::Bytes(codec) => measure_bytes(codec.as_ref(), &values, rounds),
        Choice::LowRank(codec) => measure_low_rank(*codec, &values, rounds),
        Choice::Integers(codec) => measure_integers(*codec, &values, rounds),
    }
}

/// Approximates a normal number by the sum of four uniform ones.
fn normal(element: u64) -> f32 {
    let sum: i64 = KEY.words(element).iter().map(|word| i64::from(*word as i32)).sum();
    sum as f32 / 2.0f32.powi(31) * 0.01
}

fn measure_bytes(codec: &dyn Codec, values: &[f32], rounds: usize) -> Vec<Row> {
    let mut copy = values.to_vec();
    let mut residual: Vec<f32> = values.iter().rev().map(|x| x * 0.1).collect();
    let mut encoded = vec![0; codec.encoded_len(values.len())];
    let operations = ["copy", "encode", "encode with residual", "decode", "decode-add"];
    timed(&operations, rounds, size_of_val(values), |operation| match operation {
        "copy" => black_box(&mut copy).copy_from_slice(black_box(values)),
        "encode" => {
            let _ = black_box(codec.encode(Input::Plain(values), KEY, &mut encoded));
        }
        "encode with residual" => {
            let input = Input::Feedback { values: &mut copy, residual: &residual };
            let _ = black_box(codec.encode(input, KEY, &mut encoded));
        }
        _ => {
            let write = if operation == "decode" { Write::Set } else { Write::Add };
            let frame = &encoded[..codec.frame_len(&encoded)];
            codec.decode(frame, write, &mut residual).expect("own bytes");
        }
    })
}

/// Times low rank on a nearly square matrix of one rank.
fn measure_low_rank(codec: PowerSgd, values: &[f32], rounds: usize) -> Vec<Row> {
    let columns = values.len().isqrt();
    let rows_count = values.len() / columns;
    if !codec.compresses(rows_count, columns) {
        return Vec::new();
    }
    let values = &values[..rows_count * columns];
    if codec.rounds() == Rounds::One {
        let state = codec.alternating(rows_count, columns, KEY);
        let mut message = vec![0.0; state.message_len()];
        let encode = |matrix: &mut [f32], residual: &[f32], message: &mut Vec<f32>| {
            let _ = black_box(state.project(matrix, residual, message));
            state.subtract(message, matrix);
        };
        let decode = |message: &Vec<f32>, output: &mut [f32]| state.reconstruct(message, output);
        return measure_sums(values, rounds, &mut message, encode, decode);
    }
    let factor = codec.factor(rows_count, columns, KEY);
    let mut factors = (vec![0.0; factor.p_len()], vec![0.0; factor.q_len()]);
    let encode = |matrix: &mut [f32], residual: &[f32], (p, q): &mut (Vec<f32>, Vec<f32>)| {
        let _ = black_box(factor.project(matrix, residual, p));
        factor.project_back(matrix, p, q);
        factor.subtract(p, q, matrix);
    };
    let decode = |(p, q): &(Vec<f32>, Vec<f32>), output: &mut [f32]| {
        factor.reconstruct(p, q, output);
    };
    measure_sums(values, rounds, &mut factors, encode, decode)
}

/// Times integers of one rank. Integers have no residual, but adding one reads as much memory.
fn measure_integers(codec: IntSgd, values: &[f32], rounds: usize) -> Vec<Row> {
    let (unit, wire) = (codec.unit(IntSgd::follow(0.0, values), 1), codec.integers());
    let limit = codec.limit(1).expect("one rank is not too many");
    let mut encoded = vec![0; wire.encoded_len(values.len())];
    let encode = |values: &mut [f32], residual: &[f32], encoded: &mut Vec<u8>| {
        kernel::add(values, residual);
        let _ = black_box(codec.round(values, unit, limit, KEY));
        let _ = black_box(wire.encode(Input::Plain(values), KEY, encoded));
    };
    let decode = |encoded: &Vec<u8>, output: &mut [f32]| {
        wire.decode(encoded, Write::Set, output).expect("own bytes");
        output.iter_mut().for_each(|x| *x *= unit);
    };
    measure_sums(values, rounds, &mut encoded, encode, decode)
}

/// Times a compressor whose messages are summed.
fn measure_sums<M>(
    values: &[f32],
    rounds: usize,
    messages: &mut M,
    encode: impl Fn(&mut [f32], &[f32], &mut M),
    decode: impl Fn(&M, &mut [f32]),
) -> Vec<Row> {
    let mut copy = values.to_vec();
    let residual: Vec<f32> = values.iter().map(|x| x * 0.1).collect();
    let mut output = vec![0.0; values.len()];
    let operations = ["copy", "encode with residual", "decode"];
    timed(&operations, rounds, size_of_val(values), |operation| match operation {
        "copy" => black_box(&mut copy).copy_from_slice(black_box(values)),
        "decode" => decode(messages, black_box(&mut output)),
        _ => encode(&mut copy, &residual, messages),
    })
}

/// Times operations in turns; returns medians without the first round, which touches memory for the
/// first time.
fn timed(
    operations: &[&'static str],
    rounds: usize,
    bytes: usize,
    mut run: impl FnMut(&str),
) -> Vec<Row> {
    let mut times = vec![Vec::with_capacity(rounds); operations.len()];
    for round in 0..=rounds {
        for (operation, times) in operations.iter().zip(&mut times) {
            let start = Instant::now();
            run(operation);
            let elapsed_s = start.elapsed().as_secs_f64();
            times.extend((round > 0).then_some(elapsed_s));
        }
    }
    let row = |(operation, own): (&&'static str, &Vec<f64>)| {
        let speeds = own.iter().map(|time| bytes as f64 / time);
        let ratios = times[0].iter().zip(own).map(|(copy, time)| copy / time);
        Row { operation, bytes_per_s: median(speeds), relative_to_copy: median(ratios) }
    };
    operations.iter().zip(&times).map(row).collect()
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Returns the name of the kernels that are measured.
pub fn kernels() -> &'static str {
    kernel::name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_can_be_measured() {
        for choice in crate::all() {
            let rows = measure(&choice, 10_000, 1);
            assert!(rows.iter().all(|row| row.bytes_per_s > 0.0), "{choice}");
            assert_eq!(rows.first().map(|row| row.operation), Some("copy"), "{choice}");
        }
    }
}
