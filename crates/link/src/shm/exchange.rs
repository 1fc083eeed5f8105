//! The exchange by which two ranks of one host agree to share memory.
//!
//! The side that accepted the connection is the host, and its welcome contains an offer: a name and a
//! nonce. All records go over the authenticated connection, which carries the data itself if any step
//! fails:
//!
//! | from | record 1 | record 0 |
//! |---|---|---|
//! | guest | it has connected and shown the nonce | nobody listens at the name |
//! | host | the memory is handed over | no guest has shown the nonce |
//! | guest | it has the memory | what it got is no such memory |
//!
//! A record 0 is the last one. Law: both sides share memory, or neither does.

use crate::shm::Segment;
use crate::shm::handover::{OFFER_BYTES, Offer, Visit};
use crate::{Error, Kind};

const YES: &[u8] = &[1];
const NO: &[u8] = &[0];

/// State of one side in the exchange: the record that it waits for.
#[derive(Debug)]
pub enum Exchange {
    /// A host waits for the guest.
    Guest(Offer),
    /// A guest waits for the memory.
    Memory(Visit),
    /// A host waits for the guest to confirm that it has the memory.
    Receipt(Offer),
}

/// Result of a record.
#[derive(Debug)]
pub enum Turn {
    /// The exchange waits for another record.
    Awaits(Exchange),
    /// The exchange is over, with memory or without.
    Over(Option<Segment>),
}

impl Exchange {
    /// Begins as the host of rings of `length` bytes, and appends the offer to `welcome`. If the system
    /// cannot make such memory, the exchange is over, and TCP carries the data.
    pub fn host(length: usize, welcome: &mut Vec<u8>) -> Turn {
        let Ok(offer) = Offer::new(length) else { return Turn::Over(None) };
        welcome.extend_from_slice(&offer.to_bytes());
        Turn::Awaits(Exchange::Guest(offer))
    }

    /// Begins as a guest with the offer in the welcome; `send` sends the answer.
    ///
    /// # Errors
    /// If `offer` is not a valid offer.
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
    /// If no such record is expected.
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
    Error::new(Kind::Corrupt, "sent a malformed record about shared memory")
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    /// A host that waits for its guest, and its offer.
    fn host() -> (Exchange, Vec<u8>) {
        let mut offer = Vec::new();
        (awaits(Exchange::host(4096, &mut offer)), offer)
    }

    /// A side's turn after a record, and its answer.
    fn hears(side: Exchange, record: &[u8]) -> (Turn, Vec<u8>) {
        let mut answer = Vec::new();
        let turn = side.next(record, |word| answer.extend_from_slice(word)).unwrap();
        (turn, answer)
    }

    fn awaits(turn: Turn) -> Exchange {
        match turn {
            Turn::Awaits(exchange) => exchange,
            Turn::Over(_) => panic!("it is over"),
        }
    }

    fn guest(offer: &[u8]) -> (Turn, Vec<u8>) {
        let mut answer = Vec::new();
        let turn = Exchange::guest(offer, |word| answer.extend_from_slice(word)).unwrap();
        (turn, answer)
    }

    #[test]
    fn two_sides_that_find_each_other_share_memory() {
        let (host, offer) = host();
        let (guest, word) = guest(&offer);
        let (host, word) = hears(host, &word);
        let (guest, word) = hears(awaits(guest), &word);
        let (host, word) = hears(awaits(host), &word);
        assert!(matches!((host, guest), (Turn::Over(Some(_)), Turn::Over(Some(_)))));
        assert!(word.is_empty());
    }

    /// As in another network namespace, where nobody has such a socket.
    #[test]
    fn a_guest_that_finds_nobody_says_so_and_neither_shares_memory() {
        let (host, mut offer) = host();
        offer[0] ^= 1;
        let (guest, word) = guest(&offer);
        assert!(matches!(guest, Turn::Over(None)));
        assert!(matches!(hears(host, &word), (Turn::Over(None), answer) if answer.is_empty()));
    }

    #[test]
    fn a_guest_that_does_not_know_the_nonce_gets_nothing() {
        let (host, mut offer) = host();
        *offer.last_mut().unwrap() ^= 1;
        let (guest, word) = guest(&offer);
        let (host, word) = hears(host, &word);
        assert!(matches!(host, Turn::Over(None)));
        assert!(
            matches!(hears(awaits(guest), &word), (Turn::Over(None), answer) if answer.is_empty())
        );
    }

    #[test]
    fn a_guest_that_is_told_of_memory_and_finds_none_says_so() {
        let (host, offer) = host();
        let (early, _) = guest(&offer);
        let (turn, answer) = hears(awaits(early), YES);
        assert!(matches!(turn, Turn::Over(None)));
        let (_guest, word) = guest(&offer);
        let (host, _) = hears(host, &word);
        assert!(matches!(hears(awaits(host), &answer), (Turn::Over(None), _)));
    }

    #[test]
    fn nonsense_is_an_error() {
        for record in [&[][..], &[2], &[1, 1], &[0, 0]] {
            let error = host().0.next(record, |_| {}).unwrap_err();
            assert_eq!(error.kind, Kind::Corrupt);
        }
        assert!(Exchange::guest(&[1; OFFER_BYTES - 1], |_| {}).is_err());
        assert!(matches!(guest(&[]).0, Turn::Over(None)));
    }
}
