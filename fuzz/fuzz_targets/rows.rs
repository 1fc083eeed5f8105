//! Any messages of clients and another server are answered by a parameter server or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::rows(bytes));
