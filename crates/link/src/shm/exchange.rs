//! What two ranks of one host say to each other before they share memory.
//!
//! The side that was connected to is the host, and its welcome contains an offer: name and nonce. All of it
//! goes over the authenticated connection, which stays in use in memory's place if anything on the way does
//! not work:
//!
//! | from | record | meaning |
//! |---|---|---|
//! | guest | 1 or 0 | I have shown the nonce; there is nobody |
//! | host | 1 or 0 | the memory is handed over; I have not seen you |
//! | guest | 1 or 0 | I have it; it is none |
//!
//! A record 0 is the last one. Law: both sides share memory, or neither does.

use crate::shm::Segment;
use crate::shm::handover::{OFFER_BYTES, Offer, Visit};
use crate::{Error, Kind};

const YES: &[u8] = &[1];
const NO: &[u8] = &[0];

/// Position of one side in the exchange: the record that it waits for.
#[derive(Debug)]
pub enum Exchange {
    /// A host waits for the guest.
    Guest(Offer),
    /// A guest waits for the memory.
    Memory(Visit),
    /// A host waits for the word that the guest has the memory.
    Receipt(Offer),
}

/// Result of a record.
#[derive(Debug)]
pub enum Turn {
    /// Another record is to come.
    Awaits(Exchange),
    /// The exchange is over, with memory or without.
    Over(Option<Segment>),
}

impl Exchange {
    /// Begins as the host of rings of `length` bytes; none where there is no such memory, since TCP serves as
    /// well. The offer goes onto `welcome`.
    pub fn host(length: usize, welcome: &mut Vec<u8>) -> Turn {
        let Ok(offer) = Offer::new(length) else { return Turn::Over(None) };
        welcome.extend_from_slice(&offer.to_bytes());
        Turn::Awaits(Exchange::Guest(offer))
    }

    /// Begins as a guest with what the welcome contained; `send` sends the answer.
    ///
    /// # Errors
    /// If that is no offer.
    pub fn guest(offer: &[u8], send: impl FnOnce(&[u8])) -> Result<Turn, Error> {
        if offer.is_empty() {
            return Ok(Turn::Over(None));
        }
        let offer: &[u8; OFFER_BYTES] = offer.try_into().map_err(|_| nonsense())?;
        let visit = Visit::begin(offer).ok();
        send(if visit.is_some() { YES } else { NO });
        Ok(visit.map_or(Turn::Over(None), |visit| Turn::Awaits(Exchange::Memory(visit))))
    }

    /// Continues with a record of the other side; `send` sends the answer.
    ///
    /// # Errors
    /// If the record means nothing here.
    pub fn next(self, record: &[u8], send: impl FnOnce(&[u8])) -> Result<Turn, Error> {
        match (self, record) {
            (_, NO) => Ok(Turn::Over(None)),
            (Exchange::Guest(offer), YES) => {
                let handed_over = offer.hand_over();
                send(if handed_over { YES } else { NO });
                Ok(match handed_over {
                    true => Turn::Awaits(Exchange::Receipt(offer)),
                    false => Turn::Over(None),
                })
            }
            (Exchange::Memory(visit), YES) => {
                let segment = visit.take().ok();
                send(if segment.is_some() { YES } else { NO });
                Ok(Turn::Over(segment))
            }
            (Exchange::Receipt(offer), YES) => Ok(Turn::Over(Some(offer.into_segment()))),
            _ => Err(nonsense()),
        }
    }
}

fn nonsense() -> Error {
    Error::new(Kind::Corrupt, "sent what is no word about shared memory")
}
