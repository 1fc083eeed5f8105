//! Any plan file gives every rank a program, or an error of one line.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::program(bytes));
