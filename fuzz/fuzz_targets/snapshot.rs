//! Any bytes are the state of a rank of an elastic job that others take over, or a one-line error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::snapshot(bytes));
