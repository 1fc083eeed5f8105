//! Any header and tensors are the file of a shard, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::shard(bytes));
