//! Identity of the job that meets at a store, so that the ranks of two jobs with the same address never mix.
//!
//! A store has the identity of its job before it accepts the first client. The identity is a nonce,
//! which differs for every rendezvous, and the launcher's name of the job, if it gives one. A rank whose
//! job has another name is refused. The nonce is part of the token of the links, so that a rank cannot
//! connect to another job that has taken over a peer's address.

use std::time::Duration;

use thinwire_link::store::Store;
use thinwire_link::{self as link, Kind, Token};

use crate::place::Place;

const KEY: &str = "job";

/// The identity of the job that meets at a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    nonce: String,
    /// The name of the job, empty if it has none.
    job: String,
}

impl Identity {
    /// Returns a fresh identity for the job of a place.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn fresh(place: &Place) -> Result<Identity, link::Error> {
        // Cut, since values in a store have a largest length.
        let job: String = place.job.iter().flat_map(|job| job.chars()).take(200).collect();
        Ok(Identity { nonce: Token::random()?, job })
    }

    /// Returns the store's entry that contains the identity.
    pub fn entry(&self) -> (&'static str, Vec<u8>) {
        (KEY, format!("{} {}", self.nonce, self.job).into_bytes())
    }

    /// Returns the identity of the job that meets at a store. If the store has no identity, the first
    /// rank that connects sets one.
    ///
    /// # Errors
    /// [`Kind::JobMismatch`] if the store's job is not the job of `place`.
    pub fn at(store: &dyn Store, place: &Place) -> Result<Identity, link::Error> {
        let mine = Identity::fresh(place)?;
        let (key, value) = mine.entry();
        match store.set(key, &value) {
            Ok(()) => return Ok(mine),
            Err(error) if error.kind == Kind::RankTaken => {}
            Err(error) => return Err(error),
        }
        let found = Identity::read(store)?;
        // Without a name on either side nothing speaks against it.
        if mine.job == found.job || mine.job.is_empty() || found.job.is_empty() {
            return Ok(found);
        }
        let (rank, address) = (place.rank, &place.coordinator);
        let context = format!("rank {rank} of {} found {} at {address}", mine.job, found.job);
        Err(link::Error::new(Kind::JobMismatch, context))
    }

    /// Checks that the job that meets at the store now has this identity.
    ///
    /// # Errors
    /// [`Kind::JobMismatch`] if another job has taken the address.
    pub fn check(&self, store: &dyn Store, address: &str) -> Result<(), link::Error> {
        if Identity::read(store)?.nonce == self.nonce {
            return Ok(());
        }
        let context = format!("another job meets at {address} by now");
        Err(link::Error::new(Kind::JobMismatch, context))
    }

    /// Returns the token of the links between the ranks of this meeting.
    pub fn of_links(&self, token: &Token) -> Token {
        token.of_meeting(&self.nonce)
    }

    fn read(store: &dyn Store) -> Result<Identity, link::Error> {
        let found = store.get(KEY, Duration::ZERO)?;
        let text = String::from_utf8_lossy(&found).replace(char::is_control, " ");
        let (nonce, job) = text.split_once(' ').unwrap_or((&text, ""));
        Ok(Identity { nonce: nonce.to_owned(), job: job.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use thinwire_link::store::mem::Mem;

    use super::*;
    use crate::Form;

    fn place(job: &str) -> Place {
        let job = Some(job.to_owned()).filter(|job| !job.is_empty());
        Place { job, ..Place::alone(Form::Flags) }
    }

    #[test]
    fn ranks_of_one_job_find_one_identity_and_those_of_another_none() {
        let store = Mem::new();
        let first = Identity::at(&store, &place("Slurm step 7.0")).unwrap();
        for same in ["Slurm step 7.0", ""] {
            assert_eq!(Identity::at(&store, &place(same)).unwrap(), first);
        }
        let error = Identity::at(&store, &place("Slurm step 7.1")).unwrap_err();
        assert_eq!(error.kind, Kind::JobMismatch);
        let said = "rank 0 of Slurm step 7.1 found Slurm step 7.0 at 127.0.0.1:29417";
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn a_store_that_another_meeting_has_taken_over_is_noticed() {
        let [first, second] = [Mem::new(), Mem::new()];
        let mine = Identity::at(&first, &place("")).unwrap();
        let other = Identity::at(&second, &place("")).unwrap();
        mine.check(&first, "h:1").unwrap();
        assert_eq!(mine.check(&second, "h:1").unwrap_err().kind, Kind::JobMismatch);
        let token = Token::new("same");
        assert!(mine.of_links(&token) != other.of_links(&token));
    }
}
