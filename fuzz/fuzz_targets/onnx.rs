//! Any file is a graph with its gradients, or an error.
//!
//! Half of all changes are of fields of the message, whose lengths are made right again.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use thinwire_outside::{onnx, protobuf};

fuzz_target!(|bytes: &[u8]| onnx(bytes));

fuzz_mutator!(|bytes: &mut [u8], size: usize, size_max: usize, seed: u32| {
    let choice = (u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
    let changed = protobuf::mutate(&bytes[..size], choice);
    if seed & 1 == 0 || changed.len() > size_max || changed == bytes[..size] {
        return fuzzer_mutate(bytes, size, size_max);
    }
    bytes[..changed.len()].copy_from_slice(&changed);
    changed.len()
});
