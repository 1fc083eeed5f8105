//! Every codec takes any bytes for any number of values: an error or values, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thinwire_codec::{Choice, Write, all};

const ELEMENTS_MAX: usize = 1 << 17; // past the 64 Ki that block indices can reach

fuzz_target!(|input: (u8, u32, bool, bool, Vec<u8>)| {
    let (index, elements, fitting, add, mut bytes) = input;
    let choices = all();
    let Choice::Bytes(codec) = &choices[usize::from(index) % choices.len()] else { return };
    let elements = elements as usize % ELEMENTS_MAX;
    if fitting {
        // The length that the codec checks first: fill up by repeating what there is.
        let pattern = if bytes.is_empty() { vec![0] } else { bytes.clone() };
        bytes = pattern.into_iter().cycle().take(codec.encoded_len(elements)).collect();
    }
    let mut values = vec![0.0; elements];
    let write = if add { Write::Add } else { Write::Set };
    let result = codec.decode(&bytes, write, &mut values);
    if bytes.len() != codec.encoded_len(elements) {
        assert!(result.is_err(), "{codec} took {} bytes for {elements} values", bytes.len());
    }
});
