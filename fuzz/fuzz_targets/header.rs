//! Any bytes are a header within the limits, which writes itself back, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::header(bytes));
