//! Codec error: the relative squared error of one encoding.

use thinwire_wire::random::Key;

use crate::{Codec, Finite, Input, Write};

/// Returns `‖decode(encode(x)) − x‖² / ‖x‖²` of one encoding without feedback, with the random numbers of
/// `key`; 0 if all values are zero, 1 if the encoding cannot hold the values.
pub fn relative_error(codec: &dyn Codec, values: &[f32], key: Key) -> f64 {
    let mut bytes = vec![0; codec.encoded_len(values.len())];
    let mut decoded = vec![0.0; values.len()];
    let finite = codec.encode(Input::Plain(values), key, &mut bytes);
    if finite == Finite::No || codec.decode(&bytes, Write::Set, &mut decoded).is_err() {
        return 1.0;
    }
    let square = |x: f32| f64::from(x) * f64::from(x);
    let lost: f64 = values.iter().zip(&decoded).map(|(x, y)| square(x - y)).sum();
    let all: f64 = values.iter().map(|x| square(*x)).sum();
    if all > 0.0 { lost / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Choice;

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
