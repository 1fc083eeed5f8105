//! Any bytes are a message between a process and its coordinator, which writes itself back, or a one-line error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::message(bytes));
