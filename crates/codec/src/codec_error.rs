//! Codec error: the part of the squared length of values that one encoding loses.
//!
//! Feedback sends the lost part later, so it must be shorter than the values: if it is longer,
//! residuals grow from step to step, up to a length at which training falls behind.

use thinwire_wire::random::Key;

use crate::{Choice, Codec, Finite, Input, Write};

const KEY: Key = Key { seed: 1, step: 2, tensor: 3 };

/// Number of values: enough for two digits, in a few milliseconds.
const ELEMENTS: usize = 1 << 14;

/// Rate and distortion of one encoding of some values without residual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distortion {
    /// `‖y − x‖² / ‖x‖²` with `y = decode(encode(x))`; 0 if all values are zero, 1 if the encoding cannot
    /// hold them.
    pub error: f64,
    /// `0.85 (‖y − x‖₁ / ‖x‖₁)²`, which is about the error for normal values. It exceeds the error if
    /// most values are much smaller than the largest ones and are lost.
    pub absolute: f64,
    /// Relative excess of energy, `2 ⟨y, y − x⟩ / ‖x‖²`: the amount by which `‖y‖²` exceeds `‖x‖² − ‖y −
    /// x‖²`, the energy of centroids with the same error. About twice the error if values are rounded to
    /// the middle of their levels.
    pub excess: f64,
    /// Length of the encoding in bytes.
    pub bytes: usize,
}

/// Ratio of the squared to the absolute error of a uniform quantiser of normal values.
const NORMAL: f64 = 0.85;

/// Weight of [`Distortion::excess`], relative to the error, in [`Distortion::weighted_error`].
const EXCESS_WEIGHT: f64 = 2.0;

impl Distortion {
    /// Returns the distortion of one encoding of `values`, with the random numbers of `key`.
    pub fn of(codec: &dyn Codec, values: &[f32], key: Key) -> Distortion {
        let mut bytes = vec![0; codec.encoded_len(values.len())];
        let mut decoded = vec![0.0; values.len()];
        let finite = codec.encode(Input::Plain(values), key, &mut bytes);
        bytes.truncate(codec.frame_len(&bytes));
        let is_held =
            codec.decode(&bytes, Write::Set, &mut decoded).is_ok() && finite == Finite::Yes;
        let (length, bytes) = (squared_length(values), bytes.len());
        if !is_held || length == 0.0 {
            let error = f64::from(!is_held);
            return Distortion { error, absolute: error, excess: 0.0, bytes };
        }
        let distance: f64 =
            values.iter().zip(&decoded).map(|(x, y)| f64::from((x - y).abs())).sum();
        let sum: f64 = values.iter().map(|x| f64::from(x.abs())).sum();
        let error = squared_distance(values, &decoded) / length;
        let excess = squared_length(&decoded) / length - 1.0 + error;
        Distortion { error, absolute: NORMAL * (distance / sum).powi(2), excess, bytes }
    }

    /// Returns the larger of the two errors, plus twice the excess of energy. The weights estimate the
    /// harm of error and excess to a training: Adam divides every gradient by its own root mean square,
    /// so small gradients count as much as large ones. Adam also mistakes the excess for larger gradients
    /// and makes smaller steps (docs/numerics.md).
    pub fn weighted_error(&self) -> f64 {
        self.error.max(self.absolute) + EXCESS_WEIGHT * self.excess.max(0.0)
    }
}

/// Returns [`Distortion::error`] of one encoding of `values`, with the random numbers of `key`.
pub fn relative_error(codec: &dyn Codec, values: &[f32], key: Key) -> f64 {
    Distortion::of(codec, values, key).error
}

/// Returns the fraction of the squared length that one encoding of `elements` normal values sends. It is
/// negative if the lost part is longer than the values, and 0 if the codec cannot encode them.
pub fn contraction(codec: &dyn Codec, elements: usize) -> f64 {
    let values: Vec<f32> = (0..elements as u64).map(|element| KEY.normal(element)).collect();
    1.0 - Distortion::of(codec, &values, KEY).error
}

/// Returns the sum of squares, in f64.
pub(crate) fn squared_length(values: &[f32]) -> f64 {
    values.iter().map(|x| f64::from(*x).powi(2)).sum()
}

/// Returns the sum of squares of differences, in f64.
pub(crate) fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
}

impl Choice {
    /// Returns a warning in one line if residuals would grow from step to step.
    pub fn warning(&self) -> Option<String> {
        let Choice::Bytes(codec) = self else { return None };
        if !codec.needs_feedback() {
            return None;
        }
        let found = contraction(codec.as_ref(), ELEMENTS);
        (found < 0.0).then(|| {
            let lost = 1.0 - found;
            format!(
                "codec {self} has feedback, but one encoding loses {lost:.2} of the squared length of \
                 normal values (a contraction of {found:.2}): residuals grow, and training falls \
                 behind; leave out feedback, or round to the nearest"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::{Text, compile};

    /// Three levels, rounded at random.
    const LEVELS: &str = include_str!("../../../examples/codecs/terngrad.codec");

    #[test]
    fn feedback_of_more_than_there_was_gets_a_warning() {
        let with = |source: &str| {
            compile(&Text { path: "levels.codec", source, parameters: &[] }).unwrap().warning()
        };
        assert_eq!(with(LEVELS), None);
        let feedback = LEVELS.lines().filter(|line| !line.starts_with("variance"));
        let feedback = feedback.collect::<Vec<_>>().join("\n");
        let feedback = feedback.replace("block 128", "block 128\nfeedback");
        let warning = with(&feedback).unwrap();
        assert!(warning.starts_with("codec levels#"), "{warning}");
        assert!(warning.contains(" (a contraction of -0."), "{warning}");
        assert_eq!(with(&feedback.replace("round_random(", "round(")), None);
    }

    #[test]
    fn no_codec_of_the_table_gets_a_warning() {
        assert_eq!(crate::all().iter().find_map(Choice::warning), None);
    }

    #[test]
    fn centroids_have_no_excess_of_energy_and_middles_have() {
        let values: Vec<f32> = (0..1 << 14).map(|i| KEY.normal(i)).collect();
        let distortion = |name: &str| match Choice::parse(name).unwrap() {
            Choice::Bytes(codec) => Distortion::of(codec.as_ref(), &values, KEY),
            _ => unreachable!(),
        };
        for name in ["none", "ecsq:0.5", "ecsq:1.4", "topk:0.01"] {
            let Distortion { error, excess, .. } = distortion(name);
            assert!(excess.abs() < 0.1 * error + 1e-9, "{name}: {excess} beside {error}");
        }
        for name in ["int4", "int3", "int8:stochastic"] {
            let found = distortion(name);
            assert!((1.0..3.0).contains(&(found.excess / found.error)), "{name}: {found:?}");
            assert!(found.weighted_error() > 3.0 * found.error, "{name}: {found:?}");
        }
    }

    #[test]
    fn thinner_codecs_lose_more() {
        let key = Key { seed: 1, step: 0, tensor: 0 };
        let values: Vec<f32> = (0..1 << 14).map(|i| key.normal(i)).collect();
        let error = |name: &str| match Choice::parse(name).unwrap() {
            Choice::Bytes(codec) => relative_error(codec.as_ref(), &values, Key { seed: 0, ..key }),
            _ => unreachable!(),
        };
        let errors = ["none", "bf16", "int8", "int4", "int3", "topk:0.01"].map(error);
        assert!(errors.is_sorted() && errors[0] == 0.0, "{errors:?}");
        assert!((0.005..0.02).contains(&errors[3]) && (0.05..0.12).contains(&errors[4]));
        assert!(errors[5] > 0.8);
    }
}
