//! Any bytes are images of the form that a model reads, or a one-line error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::images(bytes));
