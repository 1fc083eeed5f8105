//! Whatever is done to the bytes on the way, a side has a session only if it heard what was said.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::handshake(bytes));
