//! Any messages of clients are answered or refused by the coordinator of an elastic job.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::coordinator(bytes));
