//! Any bytes are the saved state of a coordinator, which writes itself back and continues, or a one-line error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::roster(bytes));
