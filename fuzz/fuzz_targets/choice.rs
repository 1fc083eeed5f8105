//! Any text is the name of a codec, which writes itself back, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::choice(bytes));
