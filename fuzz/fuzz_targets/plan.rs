//! Any text is a plan file, which writes itself back and cuts every node, or an error of one line.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::plan(bytes));
