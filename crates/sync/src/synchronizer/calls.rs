//! Collective calls between steps, which all ranks make together.

use thinwire_collective::{Group, all_gather, barrier, broadcast};
use thinwire_wire::Rank;

use crate::{Error, Outcome, Synchronizer};

impl Synchronizer {
    /// Checks that everything in `facts`, pairs of name and value, is the same on all ranks.
    ///
    /// # Errors
    /// If a value differs. The error has the name, both values and the rank.
    pub fn agree(&self, facts: &[(String, String)]) -> Result<(), Error> {
        self.worker.channel.agree(facts)
    }

    /// Returns `mine`, this rank's result of reading a state, if all ranks have succeeded and
    /// everything in `facts` is the same on all.
    ///
    /// # Errors
    /// The error of this rank or of another one, or if a fact differs: the states were not saved
    /// together.
    pub fn agree_on_states<T>(
        &self,
        mine: Result<T, Error>,
        facts: &[(String, String)],
    ) -> Result<T, Error> {
        self.worker.channel.agree_on_states(mine, facts)
    }

    /// Waits for the averages, and keeps them only if none of `ranks` skips the step. These ranks
    /// exchange other gradients of the step with peers of their own; all of them make this call.
    ///
    /// # Errors
    /// As [`Synchronizer::finish`], or if this rank is not one of `ranks`.
    pub fn finish_beside(&mut self, ranks: &[Rank]) -> Result<Outcome, Error> {
        let mine = self.wait()?;
        let Some(beside) = self.worker.channel.among(ranks) else {
            let me = self.world.rank();
            return Err(Error::Invalid(format!(
                "{me} is not one of the ranks {ranks:?} that finish together"
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
    /// If a peer is lost or gives another number of values.
    pub fn broadcast(&self, values: &mut [f32]) -> Result<(), Error> {
        let mut copy = values.to_vec();
        let call = move |group: &mut Group| broadcast(group, &mut copy, Rank(0)).map(|()| copy);
        values.copy_from_slice(&self.worker.channel.call(call)?);
        Ok(())
    }

    /// Returns the values of all ranks, in rank order.
    ///
    /// # Errors
    /// If a peer is lost or gives another number of values.
    pub fn gather(&self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        self.worker.channel.gather(mine)
    }

    /// Returns the bytes of all ranks, in rank order; lengths may differ.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn gather_bytes(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.worker.channel.gather_bytes(mine)
    }
}
