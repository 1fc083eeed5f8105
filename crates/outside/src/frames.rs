//! Law of the frames of a peer that has the token, and of the memory that a group keeps for them.

use thinwire_collective::replay;
use thinwire_wire::{Header, Kind, Tag, checksum};

use crate::draw::Draw;

/// Twice the memory for messages that no run awaits yet.
const CHARGED_BYTES_MAX: usize = 2 * (256 << 20);
/// Step of the first call outside of training.
const CALL: u64 = 1 << 63 | 1;
/// Largest number of payload bytes of a frame.
const PAYLOAD_BYTES_MAX: usize = 4096;

/// Checks that runs and inbox take in any frames within their bounds, wherever the stream is cut, or
/// refuse them.
pub fn frames(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let piece_bytes = 1 + usize::from(draw.u16());
    let mut stream = Vec::new();
    while !draw.is_over() {
        frame(&mut draw, &mut stream);
    }
    let taken = replay(&stream, piece_bytes);
    assert!(taken.charged_bytes <= CHARGED_BYTES_MAX, "{} bytes", taken.charged_bytes);
}

fn frame(draw: &mut Draw<'_>, stream: &mut Vec<u8>) {
    let how = draw.u8();
    if how == 0xff {
        return stream.extend_from_slice(draw.clone().slice(40));
    }
    let (step, tensor) = match how & 3 {
        0 => (CALL, checksum(b"all_reduce")),
        1 => (5, 0),
        2 => (u64::from(draw.u8()), u32::from(draw.u8())),
        _ => (CALL, u32::from(draw.u8())),
    };
    let tag = Tag { step, tensor, message: u32::from(draw.u8()) };
    let length = match how >> 2 & 3 {
        0 => 800,
        1 => 208,
        _ => usize::from(draw.u16()) % PAYLOAD_BYTES_MAX,
    };
    let kind = if how & 16 == 0 { Kind::Data } else { Kind::Ping };
    let epoch = u32::from(how & 32 != 0);
    let payload = vec![draw.u8(); length];
    let mut header = Header::new(kind, epoch, tag, length);
    header.payload_checksum = (how & 64 != 0).then(|| checksum(&payload));
    stream.extend_from_slice(&header.to_bytes());
    stream.extend_from_slice(&payload);
}
