//! Rounds that continue among other ranks.
//!
//! Rounds under way are dropped, as if they had never begun: their changes are still part of the difference between a
//! rank's own parameters and the common ones, or of its residuals, and travel in its next rounds. All ranks then take
//! over the common parameters of rank 0: ranks that join, and ranks that lost each other before the end of a round that
//! some of them have seen. A rank that has missed the end of a round cannot separate the changes that it sent in that
//! round from its codec's errors, so it sends all of them again, less the average.
//!
//! Law: afterwards all ranks have the same common parameters and the same state of the outer optimiser. Ranks that stay
//! keep their own parameters and residuals as they were before the dropped rounds.

use serde::{Deserialize, Serialize};
use thinwire_collective::Group;
use thinwire_link::mem;
use thinwire_wire::{Rank, World};

use super::{Averager, Parties, Progress, Replica, agree_on_mode};
use crate::channel::Channel;
use crate::rounds::mode::Mode;
use crate::{Error, Options, Parameter, State};

/// State of a rank's rounds that it sends to the others.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Standing {
    steps: u64,
    /// Number of rounds of each fragment, and hash of its common parameters; empty for a rank that
    /// joins.
    fragments: Vec<[u64; 2]>,
}

impl Averager {
    /// Joins the rounds of the other ranks of a channel, which call [`Averager::reform`]. This rank
    /// must not be rank 0. It begins with the common parameters; in mode `pair`, with its own.
    ///
    /// # Errors
    /// As [`Averager::start`].
    pub fn join(
        channel: Channel,
        parameters: &[Parameter],
        mode: Mode,
        options: &Options,
        replica: &mut impl Replica,
    ) -> Result<Averager, Error> {
        let mut averager = Averager::form(channel, parameters, mode, options, replica)?;
        averager.unite(Standing::default(), replica)?;
        Ok(averager)
    }

    /// Continues among the ranks of another channel, between steps or after a peer was lost; ranks
    /// without state call [`Averager::join`]. All continue after rank 0's last step, with its common
    /// parameters.
    ///
    /// # Errors
    /// If ranks disagree, or a peer is lost. The call may then be made again with another channel.
    pub fn reform(&mut self, channel: Channel, replica: &mut impl Replica) -> Result<(), Error> {
        agree_on_mode(&channel, self.mode, self.seed)?;
        match &mut self.parties {
            Parties::All(fragments) => {
                fragments.iter_mut().try_for_each(|fragment| fragment.reform(&channel))?;
            }
            Parties::Pair(pairs) => pairs.reform(&channel),
        }
        self.channel = channel;
        self.unite(self.standing(), replica)
    }

    /// Releases the other ranks after [`Averager::settle`], so that this rank's connections to them
    /// end. The rounds can then be continued only by [`Averager::reform`].
    pub fn release(&mut self) {
        self.channel = Channel::new(Group::new(mem::alone()));
        if let Parties::All(fragments) = &mut self.parties {
            fragments.iter_mut().for_each(|fragment| fragment.release());
        }
    }

    fn standing(&self) -> Standing {
        let fragments = match &self.parties {
            Parties::All(fragments) => {
                fragments.iter().map(|it| [it.counts()[0], it.checksum()]).collect()
            }
            Parties::Pair(_) => Vec::new(),
        };
        Standing { steps: self.steps, fragments }
    }

    /// Takes over the common parameters of rank 0, if this rank's differ.
    fn unite(&mut self, mine: Standing, replica: &mut impl Replica) -> Result<(), Error> {
        let row = serde_json::to_vec(&mine).expect("it has numbers only");
        let rows = self.channel.gather_bytes(row)?;
        let rows: Vec<Standing> = rows.iter().map(|row| parsed(row)).collect::<Result<_, _>>()?;
        self.steps = rows[0].steps;
        let ranks = (0..).map(Rank).zip(&rows);
        let concerned =
            ranks.filter(|(rank, row)| *rank == Rank(0) || row.fragments != rows[0].fragments);
        let concerned: Vec<Rank> = concerned.map(|(rank, _)| rank).collect();
        if let Some(few) = self.channel.among(&concerned).filter(|_| concerned.len() > 1) {
            let gives = few.world().rank() == Rank(0);
            let state = gives.then(|| self.in_common().to_bytes(World::alone())).transpose()?;
            let state = few.hand_over(1, state)?;
            if !gives {
                let state = State::from_bytes(&state, World::alone()).map_err(Error::Invalid)?;
                self.take_over(state, &rows[0], &mine, replica)?;
            }
        }
        match self.parties {
            Parties::All(_) => self.agree_on_parameters(replica),
            Parties::Pair(_) => Ok(()),
        }
    }

    /// Returns the part of the state that is equal on all ranks.
    fn in_common(&self) -> State {
        let state = self.state();
        State { tensors: state.tensors, plan: state.progress }.shared()
    }

    /// Takes over fragments that differ; a rank that joins begins with their parameters.
    fn take_over(
        &mut self,
        state: State,
        theirs: &Standing,
        mine: &Standing,
        replica: &mut impl Replica,
    ) -> Result<(), Error> {
        let progress = Progress::parse(&state.plan)?;
        let Parties::All(fragments) = &mut self.parties else { return Ok(()) };
        let all = fragments.iter_mut().zip(progress.fragments).enumerate();
        for (number, (fragment, counts)) in all {
            let before = mine.fragments.get(number);
            if before != theirs.fragments.get(number) {
                fragment.take_over(counts, state.clone())?;
                if before.is_none() {
                    fragment.draw(0.0, replica);
                }
            }
        }
        Ok(())
    }
}

fn parsed(row: &[u8]) -> Result<Standing, Error> {
    serde_json::from_slice(row)
        .map_err(|error| Error::Invalid(format!("what another rank tells of its rounds: {error}")))
}
