//! Whatever clients say to a service, messages stay whole and in order and its server keeps its bounds.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::service(bytes));
