//! Laws of lengths and bytes.

use super::inputs::{
    KEY, any_bytes, any_numbers, decode, encode, extreme, feed, lengths, normal, ordinary,
    some_lengths,
};
use crate::{Codec, Finite, Kind, Write};

/// Checks that encoding overwrites every byte of the encoding, whatever the output held before.
pub fn the_length_is_exact_and_every_byte_is_written(codec: &dyn Codec) {
    for length in lengths(codec) {
        for (name, values) in ordinary(length) {
            let (bytes, _) = encode(codec, &values, KEY);
            let (again, ..) = feed(codec, &values, &vec![0.0; length], KEY);
            assert!(
                bytes == again,
                "{codec}: encodes {length} {name} values differently over other old bytes"
            );
        }
    }
}

/// Checks that decoding refuses a message of another length with an error that names both lengths.
pub fn other_lengths_are_refused_with_both_numbers(codec: &dyn Codec) {
    for length in lengths(codec) {
        let (bytes, _) = encode(codec, &normal(length), KEY);
        let right = bytes.len();
        for wrong in [right + 1, right.wrapping_sub(1), right + 4, 0] {
            // An encoding that states its length says none if there is nothing of it.
            if wrong == right || wrong == usize::MAX || wrong == 0 && codec.is_variable() {
                continue;
            }
            let mut bytes = bytes.clone();
            bytes.resize(wrong, 0);
            let result = codec.decode(&bytes, Write::Add, &mut vec![0.0; length]);
            let error = result.expect_err("the length is wrong");
            assert!(error.kind() == Kind::Length, "{codec}: {wrong} bytes: {error}");
            let expected = format!("found {wrong} bytes, expected {right} for {length} elements");
            assert!(
                error.to_string().ends_with(&expected),
                "{codec}: said \"{error}\", expected \"{expected}\""
            );
        }
    }
}

/// Checks that the encoding depends on nothing but the input and the key: it has no state, and no other
/// random numbers.
pub fn the_same_input_gives_the_same_bytes(codec: &dyn Codec) {
    for (length, key) in some_lengths() {
        let values = any_numbers(key, length);
        assert!(
            encode(codec, &values, key) == encode(codec, &values, key),
            "{codec}: encodes {length} values differently the second time"
        );
    }
}

/// Checks that decoding any bytes does not panic, and that with `Write::Add` it adds the values that it
/// writes with `Write::Set`.
pub fn any_bytes_decode_or_are_refused(codec: &dyn Codec) {
    for (length, key) in some_lengths() {
        let right = codec.encoded_len(length);
        for bytes in [any_bytes(key, right), vec![0; right], vec![0xff; right], vec![0x5a; 40]] {
            let start: Vec<f32> = (0..length).map(|i| i as f32 - 50.0).collect();
            let (mut set, mut added) = (start.clone(), start.clone());
            let result = codec.decode(&bytes, Write::Set, &mut set);
            assert!(
                result == codec.decode(&bytes, Write::Add, &mut added),
                "{codec}: refuses {length} elements only when it sets them, or only when it adds them"
            );
            let found = bytes.len();
            assert!(
                result.is_err() || found == right || codec.is_variable(),
                "{codec}: decodes {found} bytes as {length} elements, expected {right} bytes"
            );
            for at in (0..length).filter(|_| result.is_ok()) {
                let (found, expected) = (added[at], start[at] + set[at]);
                let same = found == expected || found.is_nan() && expected.is_nan();
                assert!(
                    same,
                    "{codec}: decodes element {at} of {length} to {found} by adding, expected \
                     {expected} as by setting"
                );
            }
        }
    }
}

/// Checks that encoding decoded values gives the same bytes, if the codec claims so.
pub fn encoding_what_was_decoded_changes_nothing(codec: &dyn Codec) {
    for length in lengths(codec).into_iter().filter(|_| codec.claims().idempotent) {
        for (name, values) in ordinary(length).into_iter().chain(extreme(length)) {
            let (bytes, finite) = encode(codec, &values, KEY);
            if finite == Finite::No {
                continue;
            }
            let decoded = decode(codec, &bytes, length);
            let (again, _) = encode(codec, &decoded, KEY);
            assert!(
                decode(codec, &again, length) == decoded,
                "{codec}: changes {length} decoded {name} values by encoding them again"
            );
            assert!(
                name == "minus zero" || again == bytes,
                "{codec}: encodes {length} decoded {name} values to other bytes than before"
            );
        }
    }
}

/// Checks that decoded values are finite unless encoding has reported otherwise, and that encoding
/// reports no values with magnitudes below 6e4.
pub fn any_numbers_decode_to_finite_ones_or_are_reported(codec: &dyn Codec) {
    for (length, key) in some_lengths() {
        let values = any_numbers(key, length);
        let tame = |x: &f32| if x.abs() < 6e4 { *x } else { 1.0 };
        let tame: Vec<f32> = values.iter().map(tame).collect();
        for values in [&values, &tame] {
            let (bytes, finite) = encode(codec, values, key);
            let decoded = decode(codec, &bytes, length);
            let all = decoded.iter().all(|x| x.is_finite());
            assert!(
                all || finite == Finite::No,
                "{codec}: decodes some of {length} values to NaN or infinity without reporting it"
            );
        }
        assert!(
            encode(codec, &tame, key).1 == Finite::Yes,
            "{codec}: reports {length} values below 60,000 as not finite"
        );
    }
}

/// Checks that one NaN or infinity anywhere, in values or residual, is reported.
pub fn one_number_that_is_none_is_noticed_wherever_it_is(codec: &dyn Codec) {
    for length in lengths(codec) {
        for at in [0, 1, length / 2, length.saturating_sub(2), length.saturating_sub(1)] {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                if at >= length {
                    continue;
                }
                let (good, mut values) = (vec![1.0; length], vec![0.5; length]);
                values[at] = bad;
                let plain = encode(codec, &values, KEY).1;
                let (bytes, _, in_values) = feed(codec, &values, &good, KEY);
                let in_residual = feed(codec, &good, &values, KEY).2;
                let found = [plain, in_values, in_residual];
                assert!(
                    found == [Finite::No; 3],
                    "{codec}: does not report {bad} as element {at} of {length}, in values or residual"
                );
                let _ = codec.decode(&bytes, Write::Add, &mut values);
            }
        }
    }
}
