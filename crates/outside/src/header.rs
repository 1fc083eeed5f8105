//! Law of frame headers.

use thinwire_wire::{HEADER_BYTES, Header, MAGIC, PAYLOAD_BYTES_MAX, VERSION, checksum};

use crate::draw::Draw;

/// Checks that any bytes are either refused with an error or read as a header within the limits, which is
/// written back unchanged.
pub fn header(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let sealed = draw.u8() & 1 == 0;
    let mut bytes: [u8; HEADER_BYTES] = draw.array();
    if sealed {
        // Random bytes never have the right magic, version and checksum.
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        let sum = checksum(&bytes[..36]);
        bytes[36..].copy_from_slice(&sum.to_le_bytes());
    }
    if let Ok(header) = Header::parse(&bytes) {
        assert!(header.length <= PAYLOAD_BYTES_MAX);
        assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
    }
}
