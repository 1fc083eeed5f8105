//! Data between one connection and the engine, as much as the limits grant.

use std::time::Instant;

use thinwire_wire::{Header, Rank, Tag};

use crate::tcp::peer::Peer;
use crate::{Counters, Error, Kind, Limiter, Place, Port};

/// Reads from one data connection as much as the limit grants.
pub fn receive(
    peer: &mut Peer,
    data: usize,
    limit: &mut Option<Limiter>,
    port: &mut Counted<'_>,
    now: Instant,
) -> Result<bool, Error> {
    let connection = &mut peer.data[data];
    // A paused reader has bytes in memory that the port may have a place for by now.
    if !connection.may_read() && !connection.reader.paused {
        return Ok(false);
    }
    let grant = limit.as_mut().map_or(usize::MAX, |limit| limit.grant(usize::MAX, now));
    if grant == 0 {
        return Ok(false);
    }
    let before = port.counters.received_frames;
    match connection.read(port, grant) {
        Ok(taken) => {
            if let Some(limit) = limit {
                limit.take(taken.bytes);
            }
            port.counters.received_bytes += taken.bytes as u64;
            if taken.bytes > 0 {
                peer.heard(now);
                if let Some(header) = peer.data[data].reader.arriving() {
                    port.arriving(peer.rank, header, taken.bytes);
                }
            }
            Ok(taken.bytes > 0 || port.counters.received_frames > before)
        }
        // The peer may have said on the control connection why; it is not lost yet.
        Err(error) if error.kind == Kind::Io => {
            peer.data[data].reader.ended = true;
            peer.suspect(error.context, now);
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
    port: &mut Counted<'_>,
    now: Instant,
) -> Result<bool, Error> {
    let connection = &mut peer.data[data];
    let wanted = connection.writable_bytes();
    let grant = limit.as_mut().map_or(usize::MAX, |limit| limit.grant(wanted, now));
    if wanted == 0 || grant == 0 {
        return Ok(false);
    }
    match connection.write(port, grant) {
        Ok(written) => {
            if let Some(limit) = limit {
                limit.take(written.bytes);
            }
            port.counters.sent_bytes += written.bytes as u64;
            if let Some(tag) = connection.writer.leaving().filter(|_| written.bytes > 0) {
                port.leaving(peer.rank, &tag);
            }
            Ok(written.bytes > 0)
        }
        Err(error) => {
            peer.suspect(error.context, now);
            Ok(false)
        }
    }
}

/// The engine's port, with frames counted.
pub struct Counted<'a> {
    pub port: &'a mut dyn Port,
    pub counters: &'a mut Counters,
}

impl Port for Counted<'_> {
    fn outgoing(&self, to: Rank, tag: &Tag) -> &[u8] {
        self.port.outgoing(to, tag)
    }

    fn sent(&mut self, to: Rank, tag: &Tag) {
        self.counters.sent_frames += 1;
        self.port.sent(to, tag);
    }

    fn leaving(&mut self, to: Rank, tag: &Tag) {
        self.port.leaving(to, tag);
    }

    fn incoming(&mut self, from: Rank, header: &Header) -> Result<Place<'_>, Error> {
        self.port.incoming(from, header)
    }

    fn arriving(&mut self, from: Rank, header: &Header, bytes: usize) {
        self.port.arriving(from, header, bytes);
    }

    fn received(&mut self, from: Rank, header: &Header) -> Result<(), Error> {
        self.counters.received_frames += 1;
        self.port.received(from, header)
    }
}
