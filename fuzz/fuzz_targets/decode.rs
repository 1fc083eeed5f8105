//! Every codec takes any bytes for any number of values: an error or values, never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::decode(bytes));
