//! Any text is a setting of a parameter server, which writes itself back, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::settings(bytes));
