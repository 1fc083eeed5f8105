//! Any file is a graph whose arrays can be read, or a one-line error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::topology(bytes));
