//! Every codec takes any values, NaN and infinities too, and decodes what it has encoded.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_outside::encode(bytes));
