//! Any plan and tensors are a state that a rank continues from, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::state(bytes));
