//! Data between one connection and the engine, as much as the limits grant.

use std::time::Instant;

use crate::tcp::peer::Peer;
use crate::{Counters, Error, Kind, Limiter, Port};

/// Turn of the connections of a peer: the engine, the counters of the link, and the time.
pub struct Turn<'a> {
    pub port: &'a mut dyn Port,
    pub counters: &'a mut Counters,
    pub now: Instant,
}

/// Reads from one data connection as much as the limit grants.
pub fn receive(
    peer: &mut Peer,
    data: usize,
    limit: &mut Option<Limiter>,
    turn: &mut Turn<'_>,
) -> Result<bool, Error> {
    let connection = &mut peer.data[data];
    // A paused reader has bytes in memory that the port may have a place for by now.
    if !connection.may_read() && !connection.reader.paused {
        return Ok(false);
    }
    let grant = limit.as_mut().map_or(usize::MAX, |limit| limit.grant(usize::MAX, turn.now));
    if grant == 0 {
        return Ok(false);
    }
    let before = connection.reader.frames;
    match connection.read(turn.port, grant) {
        Ok(taken) => {
            let frames = connection.reader.frames - before;
            turn.counters.received_frames += frames;
            if let Some(limit) = limit {
                limit.take(taken.bytes);
            }
            turn.counters.received_bytes += taken.bytes as u64;
            if taken.bytes > 0 {
                peer.heard(turn.now);
                if let Some(header) = peer.data[data].reader.arriving() {
                    turn.port.arriving(peer.rank, header, taken.bytes);
                }
            }
            Ok(taken.bytes > 0 || frames > 0)
        }
        // The peer may have said on the control connection why; it is not lost yet.
        Err(error) if error.kind == Kind::Io => {
            peer.data[data].reader.ended = true;
            peer.suspect(error.context, turn.now);
            Ok(false)
        }
        Err(error) => Err(peer.blame(error)),
    }
}

/// Writes to one data connection as much as the limit grants.
pub fn transmit(
    peer: &mut Peer,
    data: usize,
    limit: &mut Option<Limiter>,
    turn: &mut Turn<'_>,
) -> Result<bool, Error> {
    let connection = &mut peer.data[data];
    let wanted = connection.writable_bytes();
    let grant = limit.as_mut().map_or(usize::MAX, |limit| limit.grant(wanted, turn.now));
    if wanted == 0 || grant == 0 {
        return Ok(false);
    }
    let before = connection.writer.frames;
    match connection.write(turn.port, grant) {
        Ok(written) => {
            turn.counters.sent_frames += connection.writer.frames - before;
            if let Some(limit) = limit {
                limit.take(written.bytes);
            }
            turn.counters.sent_bytes += written.bytes as u64;
            if let Some(tag) = connection.writer.leaving().filter(|_| written.bytes > 0) {
                turn.port.leaving(peer.rank, &tag);
            }
            Ok(written.bytes > 0)
        }
        Err(error) if error.kind == Kind::Io => {
            peer.suspect(error.context, turn.now);
            Ok(false)
        }
        Err(error) => Err(peer.blame(error)),
    }
}
