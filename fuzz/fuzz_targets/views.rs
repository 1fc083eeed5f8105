//! Any requests about shards, saved states and epochs are decided by the coordinator or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::views(bytes));
