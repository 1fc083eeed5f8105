//! A stream of data frames without a socket, for fuzz targets and tests of receivers of frames.

use thinwire_wire::Rank;

use crate::tcp::reader::Reader;
use crate::tcp::traffic::{Protection, Traffic};
use crate::{Error, Port};

/// Hands `port` the frames of epoch 0 in `bytes`, as if `from` had sent them on an unencrypted data
/// connection in pieces of at most `piece_bytes`. Ends early if the port has no place.
///
/// # Errors
/// If the bytes are no frames, and errors of the port.
pub fn replay(
    bytes: &[u8],
    piece_bytes: usize,
    from: Rank,
    port: &mut dyn Port,
) -> Result<(), Error> {
    let mut reader = Reader::new((from, 0), Traffic::Data, Protection::Checksum, &[]);
    let mut stream = bytes;
    while !reader.ended && !reader.paused {
        let taken = reader.read(&mut stream, None, port, piece_bytes.max(1))?;
        if let Some(header) = reader.arriving() {
            port.arriving(from, header, taken.bytes);
        }
    }
    Ok(())
}
