//! Laws of error feedback.

use thinwire_wire::random::Key;

use super::inputs::{KEY, decode, encode, extreme, feed, lengths, ordinary};
use crate::{Codec, Finite};

/// Checks `decode(encode(x + e)) + e' == x + e`: bit for bit if the codec claims so, otherwise up to the
/// last digit.
pub fn what_is_sent_and_what_is_left_is_what_there_was(codec: &dyn Codec) {
    for length in lengths(codec) {
        for (name, values) in ordinary(length).into_iter().chain(extreme(length)) {
            let residual: Vec<f32> = values.iter().rev().map(|x| x * 0.3).collect();
            let sum: Vec<f32> = values.iter().zip(&residual).map(|(x, e)| x + e).collect();
            let (bytes, left, finite) = feed(codec, &values, &residual, KEY);
            let (plain, same) = encode(codec, &sum, KEY);
            assert!(
                bytes == plain && finite == same,
                "{codec}: encodes {length} {name} values with a residual differently than their sum"
            );
            if finite == Finite::No {
                continue;
            }
            let sent = decode(codec, &bytes, length);
            for at in 0..length {
                let (found, expected) = (sent[at] + left[at], sum[at]);
                let larger = sent[at].abs().max(expected.abs());
                let most = if codec.claims().exact { 0.0 } else { larger * 2.0f32.powi(-23) };
                let error = (found - expected).abs();
                assert!(
                    error <= most,
                    "{codec}: of {length} {name} values element {at} was {expected:e}, but sent value \
                     plus residual are {found:e}"
                );
            }
        }
    }
}

/// Checks that, after 50 steps, all sent values plus the residual are the sum of all gradients.
pub fn over_many_steps_nothing_is_lost(codec: &dyn Codec) {
    const STEPS: u64 = 50;
    for length in lengths(codec) {
        let (mut residual, mut sent) = (vec![0.0; length], vec![0.0f64; length]);
        let mut total = vec![0.0f64; length];
        for step in 0..STEPS {
            let key = Key { step, ..KEY };
            let gradient: Vec<f32> = (0..length as u64).map(|i| key.normal(i)).collect();
            let (bytes, left, finite) = feed(codec, &gradient, &residual, key);
            assert!(finite == Finite::Yes, "{codec}: reports {length} normal values as not finite");
            residual = left;
            let decoded = decode(codec, &bytes, length);
            sent.iter_mut().zip(decoded).for_each(|(sum, x)| *sum += f64::from(x));
            total.iter_mut().zip(&gradient).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        for at in 0..length {
            let error = (sent[at] + f64::from(residual[at]) - total[at]).abs();
            assert!(
                error < STEPS as f64 * 1e-5,
                "{codec}: after {STEPS} steps of {length} values, {error:e} of element {at} was \
                 neither sent nor left in the residual"
            );
        }
    }
}

/// Checks that zeros are decoded to zeros and leave no residual, if the codec claims so.
pub fn nothing_in_nothing_out(codec: &dyn Codec) {
    for length in lengths(codec).into_iter().filter(|_| codec.claims().zero) {
        for zero in [0.0, -0.0] {
            let values = vec![zero; length];
            let (bytes, left, finite) = feed(codec, &values, &values, KEY);
            assert!(finite == Finite::Yes, "{codec}: reports {length} zeros as not finite");
            let left = left.iter().find(|x| **x != 0.0);
            assert!(left.is_none(), "{codec}: {length} zeros leave a residual of {left:?}");
            let decoded = decode(codec, &bytes, length);
            let other = decoded.iter().find(|x| **x != 0.0);
            assert!(other.is_none(), "{codec}: of {length} zeros one decodes to {other:?}");
        }
    }
}
