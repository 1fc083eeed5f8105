//! Any manifest and headers, checksums made right, are a checkpoint or an error of one line.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::checkpoint(bytes));
