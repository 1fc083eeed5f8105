//! The port of the control channel, which receives its frames.

use thinwire_wire::{Header, Kind as Frame, Rank, Tag};

use crate::poison::{self, POISON_BYTES_MAX};
use crate::{Error, Kind, Place, Port};

/// Receiver of all frames but data.
#[derive(Debug, Default)]
pub struct Control {
    /// Reason that this rank sends when it poisons the group.
    pub reason: Vec<u8>,
    incoming: Vec<u8>,
    /// Whether the peer has said goodbye.
    pub bye: bool,
}

impl Port for Control {
    fn outgoing(&self, _to: Rank, _tag: &Tag) -> &[u8] {
        &self.reason
    }

    fn sent(&mut self, _to: Rank, _tag: &Tag) {}

    fn incoming(&mut self, from: Rank, header: &Header) -> Result<Place<'_>, Error> {
        let length = header.length as usize;
        let most = if header.kind == Frame::Poison { POISON_BYTES_MAX } else { 0 };
        if length > most {
            let context =
                format!("{from} sent {:?} of {length} bytes, at most {most} allowed", header.kind);
            return Err(Error::new(Kind::Limit, context).with_rank(from));
        }
        self.incoming.resize(length, 0);
        Ok(Place::Here(&mut self.incoming))
    }

    fn received(&mut self, from: Rank, header: &Header) -> Result<(), Error> {
        match header.kind {
            Frame::Poison => Err(poison::decode(from, &self.incoming)),
            Frame::Bye => {
                self.bye = true;
                Ok(())
            }
            Frame::Ping | Frame::Data => Ok(()),
        }
    }
}
