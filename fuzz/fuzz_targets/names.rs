//! Any text is another name of the command line, which writes itself back, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::names(bytes));
