//! One encoding of a law's input.

use thinwire_wire::random::Key;

use crate::{Codec, Finite, Input, Write};

/// Key of encodings that a law does not choose.
pub(super) const KEY: Key = Key { seed: 11, step: 5, tensor: 2 };

pub(super) fn encode(codec: &dyn Codec, values: &[f32], key: Key) -> (Vec<u8>, Finite) {
    let mut bytes = vec![0xaa; codec.encoded_len(values.len())];
    let finite = codec.encode(Input::Plain(values), key, &mut bytes);
    bytes.truncate(codec.frame_len(&bytes));
    (bytes, finite)
}

/// Encodes with feedback; returns the encoding, the new residual, and whether all was finite.
pub(super) fn feed(
    codec: &dyn Codec,
    values: &[f32],
    residual: &[f32],
    key: Key,
) -> (Vec<u8>, Vec<f32>, Finite) {
    let mut bytes = vec![0x55; codec.encoded_len(values.len())];
    let mut values = values.to_vec();
    let finite = codec.encode(Input::Feedback { values: &mut values, residual }, key, &mut bytes);
    bytes.truncate(codec.frame_len(&bytes));
    (bytes, values, finite)
}

pub(super) fn decode(codec: &dyn Codec, bytes: &[u8], length: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; length];
    codec.decode(bytes, Write::Set, &mut values).expect("an encoding of its own");
    values
}

pub(super) fn round_trip(codec: &dyn Codec, values: &[f32], key: Key) -> Vec<f32> {
    let (bytes, finite) = encode(codec, values, key);
    assert!(finite == Finite::Yes, "{codec}: reports {} values as not finite", values.len());
    decode(codec, &bytes, values.len())
}
