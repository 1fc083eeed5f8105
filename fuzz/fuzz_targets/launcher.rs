//! Any environment is the place of a rank that there is, none, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::launcher(bytes));
