//! Trials of a codec before it is used.
//!
//! A text that checks may still be no codec: it may expand, have a larger codec error than claimed,
//! or not decode its own encodings. A trial on values of every shape takes a few milliseconds.

use thinwire_wire::random::Key;

use super::refusal::Refusal;
use crate::codec_error::{squared_distance, squared_length};
use crate::shown::apart;
use crate::{Bound, Codec, Finite, Input, Write};

const KEY: Key = Key { seed: 17, step: 3, tensor: 1 };

/// Number of trials of random rounding.
const SEEDS: u64 = 200;

/// Square of five standard deviations.
const SURE: f64 = 25.0;

/// Tries a codec.
///
/// # Errors
/// The first claim that does not hold, with the found and the claimed.
pub(crate) fn refuse(codec: &dyn Codec) -> Result<(), Refusal> {
    expansion(codec)?;
    let block = codec.block();
    for length in [1, 7, 65, block.max(2) - 1, block, block + 1, 3 * block + 5, 1009] {
        noise(codec, length)?;
        for (name, values) in inputs(length) {
            let what = format!("{length} {name} values");
            match codec.bound(length) {
                Bound::Contraction(claimed) => contraction(codec, &values, claimed, &what)?,
                _ => drop(round_trip(codec, &values, KEY, &what)?),
            }
        }
    }
    if let Bound::Variance(_) = codec.bound(1) {
        for length in [1, 9, 300] {
            for (name, values) in inputs(length) {
                variance(codec, &values, &format!("{length} {name} values"))?;
            }
        }
    }
    Ok(())
}

/// Returns values of every shape with their names.
fn inputs(length: usize) -> Vec<(&'static str, Vec<f32>)> {
    let of = |value: &dyn Fn(usize) -> f32| (0..length).map(value).collect::<Vec<f32>>();
    let normal = |i: usize| KEY.normal(i as u64);
    let heavy = |i: usize| 0.01 / (1.01 - KEY.uniform(i as u64)) * normal(i).signum();
    vec![
        ("zero", of(&|_| 0.0)),
        ("equal", of(&|_| 0.37)),
        ("one-hot", of(&|i| if i == length / 2 { -3.0 } else { 0.0 })),
        ("alternating", of(&|i| if i % 2 == 0 { 1.7 } else { -1.7 })),
        ("rising", of(&|i| (i as f32 - length as f32 / 2.0) / length as f32)),
        ("normal", of(&normal)),
        ("small normal", of(&|i| 1e-3 * normal(i))),
        ("heavy-tailed", of(&heavy)),
    ]
}

/// Refuses a codec whose encodings are longer than the values.
fn expansion(codec: &dyn Codec) -> Result<(), Refusal> {
    let elements = if codec.block() > 1 { codec.block() } else { 4096 };
    let (bytes, raw) = (codec.encoded_len(elements), 4 * elements);
    if bytes <= raw {
        return Ok(());
    }
    let message = format!("expands its input: {bytes} bytes for {elements} elements, {raw} as f32");
    Err(Refusal::codec(message))
}

/// Refuses a codec whose codec error is larger than claimed.
fn contraction(codec: &dyn Codec, values: &[f32], claimed: f64, what: &str) -> Result<(), Refusal> {
    let decoded = round_trip(codec, values, KEY, what)?;
    let (lost, whole) = (squared_distance(&decoded, values), squared_length(values));
    // Scales keep some of their digits.
    if lost <= (1.0 - claimed) * whole * (1.0 + 1e-4) + whole * 1e-9 {
        return Ok(());
    }
    if whole == 0.0 {
        return Err(Refusal::codec(format!("decodes {what} to other values")));
    }
    let (claimed, kept) = apart(claimed, 1.0 - lost / whole);
    Err(Refusal::codec(format!("claims a contraction of {claimed}, but for {what} it is {kept}")))
}

/// Refuses a codec that is biased, or whose variance is larger than claimed.
fn variance(codec: &dyn Codec, values: &[f32], what: &str) -> Result<(), Refusal> {
    let Bound::Variance(claimed) = codec.bound(values.len()) else { return Ok(()) };
    let (mut sum, mut errors) = (vec![0.0; values.len()], Vec::new());
    for seed in 0..SEEDS {
        let decoded = round_trip(codec, values, Key { seed, ..KEY }, what)?;
        errors.push(squared_distance(&decoded, values));
        let pairs = decoded.iter().zip(values);
        sum.iter_mut().zip(pairs).for_each(|(sum, (y, x))| *sum += f64::from(*y) - f64::from(*x));
    }
    let (seeds, whole) = (SEEDS as f64, squared_length(values));
    let mean = errors.iter().sum::<f64>() / seeds;
    let bias = sum.iter().map(|sum| (sum / seeds).powi(2)).sum::<f64>();
    // A rare event may not occur in any trial.
    if bias > SURE * (mean / seeds + whole / seeds.powi(2)) {
        let part = (bias / whole).sqrt();
        return Err(Refusal::codec(format!(
            "claims to be unbiased, but for {what} the mean of {SEEDS} encodings is off by {part:.3} of \
             their length"
        )));
    }
    let spread = errors.iter().map(|error| (error - mean).powi(2)).sum::<f64>().sqrt() / seeds;
    if mean > claimed * whole * (1.0 + 1e-4) + whole * 1e-9 + 5.0 * spread {
        let (claimed, found) = apart(claimed, mean / whole);
        let message = format!("claims a variance of {claimed}, but for {what} it is {found}");
        return Err(Refusal::codec(message));
    }
    Ok(())
}

/// Encodes and decodes values; refuses a codec that cannot, or not to finite numbers.
fn round_trip(
    codec: &dyn Codec,
    values: &[f32],
    key: Key,
    what: &str,
) -> Result<Vec<f32>, Refusal> {
    let mut bytes = vec![0; codec.encoded_len(values.len())];
    let finite = codec.encode(Input::Plain(values), key, &mut bytes);
    if finite == Finite::No {
        return Err(Refusal::codec(format!(
            "computes values that are not finite when it encodes {what}"
        )));
    }
    let mut decoded = vec![0.0; values.len()];
    codec.decode(&bytes, Write::Set, &mut decoded).map_err(|error| {
        Refusal::codec(format!("cannot decode its own encoding of {what}: {error}"))
    })?;
    match decoded.iter().find(|x| !x.is_finite()) {
        None => Ok(decoded),
        Some(x) => Err(Refusal::codec(format!("decodes {what} to {x}"))),
    }
}

/// Refuses a codec that does not decode any bytes to values, or refuse them as corrupt.
fn noise(codec: &dyn Codec, length: usize) -> Result<(), Refusal> {
    let bytes: Vec<u8> =
        (0..codec.encoded_len(length)).map(|at| KEY.word(at as u64) as u8).collect();
    let mut values = vec![0.0; length];
    match codec.decode(&bytes, Write::Set, &mut values) {
        Err(error) if error.kind() != crate::Kind::Corrupt => {
            Err(Refusal::codec(format!("does not decode {length} elements: {error}")))
        }
        _ => Ok(()),
    }
}
