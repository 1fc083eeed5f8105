//! Any text is a codec that decodes what it encodes, or an error of one line with its place.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::language(bytes));
