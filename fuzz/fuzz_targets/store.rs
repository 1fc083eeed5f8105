//! Whatever clients and strangers send, the store keeps its bounds and strangers stay strangers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::store(bytes));
