//! Any request for rows of a part is answered with those rows, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::parts(bytes));
