//! Any text is a cluster, whose devices can be counted, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::cluster(bytes));
