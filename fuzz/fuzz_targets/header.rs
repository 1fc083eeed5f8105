//! Any bytes are a header within the limits, which writes itself back, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thinwire_wire::{HEADER_BYTES, Header, MAGIC, PAYLOAD_BYTES_MAX, VERSION, checksum};

fuzz_target!(|input: ([u8; HEADER_BYTES], bool)| {
    let (mut bytes, sealed) = input;
    if sealed {
        // Past the magic, the version and the checksum, which random bytes never get through.
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        let sum = checksum(&bytes[..36]);
        bytes[36..].copy_from_slice(&sum.to_le_bytes());
    }
    if let Ok(header) = Header::parse(&bytes) {
        assert!(header.length <= PAYLOAD_BYTES_MAX);
        assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
    }
});
