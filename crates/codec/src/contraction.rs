//! The measured contraction: the part of the values that one encoding sends.
//!
//! Feedback sends later what is lost, so what is lost must be less than what there was: where it is
//! more, residuals grow from step to step, up to a length at which training falls behind.

use thinwire_wire::random::Key;

use crate::{Choice, Codec, Input, Write};

const KEY: Key = Key { seed: 1, step: 2, tensor: 3 };

/// The number of values: enough for two digits, in a few milliseconds.
const ELEMENTS: usize = 1 << 14;

/// The part of the squared length of normal values that one encoding sends: negative if the lost
/// part is longer than the values, NaN if the codec cannot decode its own encoding.
pub fn contraction(codec: &dyn Codec, elements: usize) -> f64 {
    let values: Vec<f32> = (0..elements as u64).map(|element| KEY.normal(element)).collect();
    let (mut bytes, mut decoded) = (vec![0; codec.encoded_len(elements)], vec![0.0; elements]);
    let _ = codec.encode(Input::Plain(&values), KEY, &mut bytes);
    if codec.decode(&bytes, Write::Set, &mut decoded).is_err() {
        return f64::NAN;
    }
    let squared = |x: f32| f64::from(x) * f64::from(x);
    let lost: f64 = values.iter().zip(&decoded).map(|(x, y)| squared(x - y)).sum();
    1.0 - lost / values.iter().map(|x| squared(*x)).sum::<f64>()
}

impl Choice {
    /// A one-line warning if residuals would grow from step to step.
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
}
