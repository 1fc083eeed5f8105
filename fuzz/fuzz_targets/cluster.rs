//! Any text is a cluster with scenarios, whose devices can be counted, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::cluster(bytes));
