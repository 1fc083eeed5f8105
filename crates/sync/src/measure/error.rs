//! Codec error on real gradients: the measure by which the planner keeps the error budget.
//!
//! The error of one encoding, `‖decode(encode(g)) − g‖² / ‖g‖²`, on a sample of this rank's
//! gradients, before any residual. It is what error feedback has to make good later; without
//! feedback it is lost.

use thinwire_codec::{Codec, Finite, Input, Write};
use thinwire_wire::random::Key;

/// Elements of all samples of a rank together, and of one bucket's at least and at most.
const ALL_MAX: usize = 1 << 19;
const BUCKET_MIN: usize = 1 << 12;
const BUCKET_MAX: usize = 1 << 16;

/// A sample is made of pieces of so many neighbouring elements: blocks of codecs stay whole.
const PIECE: usize = 1 << 12;

/// Pieces of `values`, evenly spread, where `buckets` buckets are sampled.
pub(crate) fn sample(values: &[f32], buckets: usize) -> Vec<f32> {
    let wanted = (ALL_MAX / buckets.max(1)).clamp(BUCKET_MIN, BUCKET_MAX);
    if values.len() <= wanted {
        return values.to_vec();
    }
    let pieces = wanted / PIECE;
    let place = |piece: usize| piece * (values.len() - PIECE) / (pieces - 1).max(1);
    (0..pieces).flat_map(|piece| &values[place(piece)..][..PIECE]).copied().collect()
}

/// The relative squared error of one encoding; 0 if there is nothing but zeros, 1 if the encoding
/// cannot hold the values.
pub(crate) fn relative_error(codec: &dyn Codec, values: &[f32]) -> f32 {
    let mut bytes = vec![0; codec.encoded_len(values.len())];
    let key = Key { seed: 0, step: 0, tensor: 0 };
    let mut decoded = vec![0.0; values.len()];
    let finite = codec.encode(Input::Plain(values), key, &mut bytes);
    if finite == Finite::No || codec.decode(&bytes, Write::Set, &mut decoded).is_err() {
        return 1.0;
    }
    let square = |x: f32| f64::from(x) * f64::from(x);
    let lost: f64 = values.iter().zip(&decoded).map(|(x, y)| square(x - y)).sum();
    let all: f64 = values.iter().map(|x| square(*x)).sum();
    if all > 0.0 { (lost / all) as f32 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use thinwire_codec::Choice;

    use super::*;

    #[test]
    fn a_sample_is_spread_over_all_values() {
        let values: Vec<f32> = (0..1 << 18).map(|i| i as f32).collect();
        let sampled = sample(&values, 1);
        assert_eq!((sampled.len(), sampled[0]), (BUCKET_MAX, 0.0));
        assert_eq!(sampled.last(), values.last());
        assert_eq!(sample(&values, 1000).len(), BUCKET_MIN);
        assert_eq!(sample(&values[..5000], 1).len(), 5000);
    }

    #[test]
    fn thinner_codecs_lose_more() {
        let key = Key { seed: 1, step: 0, tensor: 0 };
        let values: Vec<f32> = (0..1 << 14).map(|i| key.normal(i)).collect();
        let error = |name: &str| match Choice::parse(name).unwrap() {
            Choice::Bytes(codec) => relative_error(codec.as_ref(), &values),
            _ => unreachable!(),
        };
        let errors = ["none", "bf16", "int8", "int4", "int3", "topk:0.01"].map(error);
        assert!(errors.is_sorted() && errors[0] == 0.0, "{errors:?}");
        assert!((0.005..0.02).contains(&errors[3]) && (0.05..0.12).contains(&errors[4]));
        assert!(errors[5] > 0.8);
    }
}
