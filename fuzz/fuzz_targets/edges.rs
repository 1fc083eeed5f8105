//! Any bytes are the edges of a graph, or a one-line error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::edges(bytes));
