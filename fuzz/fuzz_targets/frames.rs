//! Any frames of a peer with the token are taken in within the bounds of runs and inbox, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::frames(bytes));
