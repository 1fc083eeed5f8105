//! The payload of a poison frame: the blamed rank and the reason.
//!
//! UTF-8 text: the blamed rank's number or `-`, a space, the reason. A rank that was poisoned
//! passes the original on, so that every survivor names the same lost rank.

use thinwire_wire::Rank;

use crate::{Error, Kind};

/// The longest payload of a poison frame in bytes; longer reasons are cut.
pub const POISON_BYTES_MAX: usize = 1024;

/// Returns `reason` as it is sent.
pub fn encode(reason: &Error) -> Vec<u8> {
    let rank = reason.rank.map_or("-".to_owned(), |rank| rank.0.to_string());
    let mut text = format!("{rank} {reason}");
    let mut end = text.len().min(POISON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.into_bytes()
}

/// Decodes a poison frame of `by`. It never fails: a payload that cannot be parsed is still poison.
pub fn decode(by: Rank, payload: &[u8]) -> Error {
    let text = String::from_utf8_lossy(payload);
    let (rank, reason) = text.split_once(' ').unwrap_or(("-", &text));
    let reason: String = reason.chars().filter(|c| !c.is_control()).collect();
    // A relay of a relay says so once.
    let reason = match reason.split_once(" reports: ") {
        Some((relay, original)) if relay.starts_with("rank ") => original,
        _ => &reason,
    };
    let error = Error::new(Kind::Poisoned { by }, format!("{by} reports: {reason}"));
    match rank.parse() {
        Ok(rank) => error.with_rank(Rank(rank)),
        Err(_) => error,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_original_rank_survives_any_number_of_relays() {
        let mut error = Error::lost(Rank(3), "connection reset");
        for by in 0..3 {
            error = decode(Rank(by), &encode(&error));
            assert_eq!(error.rank, Some(Rank(3)));
        }
        assert_eq!(error.to_string(), "rank 2 reports: lost rank 3: connection reset");
        assert_eq!(error.kind, Kind::Poisoned { by: Rank(2) });
    }

    #[test]
    fn long_reasons_are_cut() {
        assert!(encode(&Error::new(Kind::Timeout, "é".repeat(4000))).len() <= POISON_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn any_payload_is_poison(payload: Vec<u8>) {
            let error = decode(Rank(1), &payload);
            prop_assert_eq!(error.kind, Kind::Poisoned { by: Rank(1) });
        }
    }
}
