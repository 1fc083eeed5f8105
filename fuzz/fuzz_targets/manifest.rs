//! Any text is the manifest of a snapshot, or a one-line error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::manifest(bytes));
