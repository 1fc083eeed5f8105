//! Collective calls between steps, which all ranks make together.

use thinwire_collective::{Group, all_gather, barrier, broadcast};
use thinwire_wire::Rank;

use crate::{Error, Outcome, Synchronizer};

impl Synchronizer {
    /// Makes sure that all ranks say the same of everything in `facts`, pairs of name and value.
    ///
    /// # Errors
    /// If they do not: what it is about, both values and the rank.
    pub fn agree(&self, facts: &[(String, String)]) -> Result<(), Error> {
        self.worker.channel.agree(facts)
    }

    /// Returns what this rank has made of its state, after all ranks have made something of theirs and say the
    /// same of everything in `facts`.
    ///
    /// # Errors
    /// This rank's own, or that of another rank, or if a fact differs: the states were not saved together.
    pub fn agree_on_states<T>(
        &self,
        mine: Result<T, Error>,
        facts: &[(String, String)],
    ) -> Result<T, Error> {
        self.worker.channel.agree_on_states(mine, facts)
    }

    /// Waits for the averages, and keeps them only if the step counts on all these ranks, which exchange other
    /// gradients of the step with peers of their own; all of them call it.
    ///
    /// # Errors
    /// As [`Synchronizer::finish`], or if this rank is none of them.
    pub fn finish_beside(&mut self, ranks: &[Rank]) -> Result<Outcome, Error> {
        let mine = self.wait()?;
        let Some(beside) = self.worker.channel.among(ranks) else {
            let me = self.world.rank();
            return Err(Error::Invalid(format!(
                "{me} is not one of {ranks:?}, together with which it finishes"
            )));
        };
        let skipped = [u8::from(mine == Outcome::Skipped)];
        let all = beside.call(move |group| all_gather(group, &skipped))?;
        let outcome = if all.contains(&1) { Outcome::Skipped } else { mine };
        self.commit(outcome)?;
        Ok(outcome)
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
        self.worker.channel.gather(mine)
    }

    /// The bytes of all ranks, in rank order, of any lengths.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn gather_bytes(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.worker.channel.gather_bytes(mine)
    }
}
