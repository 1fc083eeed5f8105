//! Any text is a model file, which writes itself back and whose graphs are sound, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::model(bytes));
