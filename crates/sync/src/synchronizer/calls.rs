//! Collective calls between steps, which all ranks make together.

use thinwire_collective::{Group, all_gather, all_gather_bytes, barrier, broadcast};
use thinwire_wire::Rank;

use crate::{Error, Synchronizer};

impl Synchronizer {
    /// Makes sure that all ranks say the same of everything in `facts`, pairs of name and value.
    ///
    /// # Errors
    /// If they do not: what it is about, both values and the rank.
    pub fn agree(&self, facts: &[(String, String)]) -> Result<(), Error> {
        self.worker.channel.agree(facts)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn barrier(&self) -> Result<(), Error> {
        self.worker.channel.call(barrier)
    }

    /// Replaces `values` of all ranks by those of rank 0.
    ///
    /// # Errors
    /// If a peer is lost or has another length.
    pub fn broadcast(&self, values: &mut [f32]) -> Result<(), Error> {
        let mut copy = values.to_vec();
        let call = move |group: &mut Group| broadcast(group, &mut copy, Rank(0)).map(|()| copy);
        values.copy_from_slice(&self.worker.channel.call(call)?);
        Ok(())
    }

    /// The values of all ranks, in rank order.
    ///
    /// # Errors
    /// If a peer is lost or has another length.
    pub fn gather(&self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        let mine = mine.to_vec();
        self.worker.channel.call(move |group| all_gather(group, &mine))
    }
    /// The bytes of all ranks, in rank order, of any lengths.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn gather_bytes(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.worker.channel.call(move |group| all_gather_bytes(group, &mine))
    }
}
