//! Channels: the communication thread of a link, which several users may share.
//!
//! A training under a plan sends activations and gradients over one link: its executor runs the former,
//! a [`Synchronizer`](crate::Synchronizer) the latter, on one thread and with one set of connections, so
//! that messages which another rank waits for can overtake gradients.

use std::sync::Arc;

use thinwire_collective::{
    Driver, Error as Failure, Group, Stop, all_gather, all_gather_bytes, hand_over,
};
use thinwire_wire::{Rank, World};

use crate::Error;
use crate::agreement::{compare, decode_facts, encode_facts};
use crate::buffer::Tensor;
use crate::exchange::route::Ranks;
use crate::parameter::Parameter;

/// The name of a rank's own error among its facts.
const REFUSED: &str = "refused";

/// A communication thread, and the ranks of its link with which one user exchanges.
#[derive(Clone, Debug)]
pub struct Channel {
    driver: Arc<Driver<Tensor>>,
    ranks: Ranks,
    bulk: bool,
}

impl Channel {
    /// Starts the thread of a group.
    pub fn new(group: Group) -> Channel {
        let driver = Arc::new(Driver::start(group));
        Channel { ranks: Ranks::all(driver.world()), driver, bulk: false }
    }

    /// Returns the channel among some ranks of the link, in this order; `None` if this rank is not one
    /// of them.
    pub fn among(&self, members: &[Rank]) -> Option<Channel> {
        let ranks = Ranks::among(members, self.driver.world())?;
        Some(Channel { ranks, ..self.clone() })
    }

    /// Returns the channel among the ranks that exchange all `parameters`: all ranks of the channel, or
    /// a group that shares the network with other groups.
    pub(crate) fn peers(&self, parameters: &[Parameter]) -> Channel {
        let ranks = parameters.first().map_or(&[][..], |first| &first.ranks);
        let alike = parameters.iter().all(|parameter| *parameter.ranks == *ranks);
        let among = if alike && !ranks.is_empty() { self.among(ranks) } else { None };
        among.unwrap_or_else(|| self.clone())
    }

    /// Returns the channel with all of its messages as bulk: they give way to all others.
    #[must_use]
    pub fn bulk(self) -> Channel {
        Channel { bulk: true, ..self }
    }

    /// Returns this rank and the number of ranks of the channel.
    pub fn world(&self) -> World {
        self.ranks.world
    }

    /// Returns the thread, for runs among any ranks of the link.
    pub fn driver(&self) -> &Driver<Tensor> {
        &self.driver
    }

    /// Ends the thread and gives the group back.
    ///
    /// # Errors
    /// If another user still has the channel, or an error has ended the group.
    pub fn into_group(self) -> Result<Group, Error> {
        let driver = Arc::into_inner(self.driver).ok_or(Error::Stopped)?;
        driver.into_group().map_err(Error::Collective)
    }

    /// Returns a handle by which any thread can end the group.
    pub fn stop(&self) -> Stop {
        self.driver.stop()
    }

    /// Sends the bytes of the first `state_sources` ranks to all other ranks of the channel; see
    /// `thinwire_collective::hand_over`. The bytes must be the same on all state sources. No exchange of
    /// any rank may be on its way.
    ///
    /// # Errors
    /// If state sources have different bytes, or a peer is lost.
    pub fn hand_over(&self, state_sources: u32, state: Option<Vec<u8>>) -> Result<Vec<u8>, Error> {
        self.call(move |group| hand_over(group, state_sources, state))
    }

    /// Returns the number in the link of a rank of the channel.
    pub(crate) fn of_link(&self, rank: Rank) -> Rank {
        self.ranks.members().map_or(rank, |all| all[rank.index()])
    }

    /// Returns the values of all ranks, in the channel's order of ranks. No exchange of this rank may be
    /// on its way.
    ///
    /// # Errors
    /// If a peer is lost or gives another number of values.
    pub fn gather(&self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        let mine = mine.to_vec();
        self.call(move |group| all_gather(group, &mine))
    }

    /// Returns the bytes of all ranks, in the channel's order of ranks; lengths may differ. No exchange
    /// of this rank may be on its way.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn gather_bytes(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.call(move |group| all_gather_bytes(group, &mine))
    }

    /// Runs `call` among the channel's ranks and waits for its result. Nothing of this rank may be on
    /// its way.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Group) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        let members = self.ranks.members().cloned();
        let among = move |group: &mut Group| match members {
            Some(members) => group.among(&members, call),
            None => call(group),
        };
        self.driver.call(among).map_err(Error::Collective)
    }

    /// Checks that every fact has the same value on all ranks of the channel.
    pub(crate) fn agree(&self, facts: &[(String, String)]) -> Result<(), Error> {
        let all = self.gather_bytes(encode_facts(facts))?;
        compare(facts, &all, self.world())
    }

    /// Returns `mine`, this rank's result of reading a state, if all ranks have succeeded and
    /// everything in `facts` is the same on all.
    ///
    /// # Errors
    /// The error of this rank or of another one, or if a fact differs: the states were not saved
    /// together.
    pub(crate) fn agree_on_states<T>(
        &self,
        mine: Result<T, Error>,
        facts: &[(String, String)],
    ) -> Result<T, Error> {
        let refusal = mine.as_ref().err().map(|error| (REFUSED.to_owned(), error.to_string()));
        let told: Vec<_> = refusal.into_iter().chain(facts.iter().cloned()).collect();
        let rows = self.gather_bytes(encode_facts(&told));
        let (mine, rows) = (mine?, rows?);
        for (rank, row) in self.world().ranks().zip(&rows) {
            let facts = decode_facts(row);
            if let Some((_, why)) = facts.iter().find(|(name, _)| name == REFUSED) {
                return Err(Error::Invalid(format!("{rank} says: {why}")));
            }
        }
        match compare(facts, &rows, self.world()) {
            Err(Error::Disagreement { about, mine, rank, theirs }) => Err(Error::Invalid(format!(
                "the states of ranks were not saved together: {about} {mine} on this rank, {theirs} on {rank} \
                 (hint: load what all ranks have saved together)"
            ))),
            others => others.map(|()| mine),
        }
    }

    /// Returns the ranks of a bucket: those with these numbers in the link, or all of the channel.
    pub(crate) fn ranks(&self, members: &[Rank]) -> Option<Ranks> {
        match members {
            [] => Some(self.ranks.clone()),
            _ => Ranks::among(members, self.driver.world()),
        }
    }

    /// Returns whether messages give way to all others.
    pub(crate) fn is_bulk(&self) -> bool {
        self.bulk
    }
}
