//! The hand-over of bytes from ranks that have them to those that do not.
//!
//! Ranks first tell each other the length and checksum of the bytes that they hold, so that holders of
//! different bytes are an error on all ranks before anything is sent. A holder sends from the bytes
//! that it was given, and a joiner receives into those that it returns: there is no other copy.

use thinwire_wire::{Rank, checksum};

use crate::error::Error;
use crate::{Group, start};

const OPERATION: &str = "hand_over";

/// Bytes that a rank tells the others: whether it holds the state, its checksum and its length.
const NOTICE_BYTES: usize = 16;

/// Gives the bytes of the first `holders` ranks to all other ranks, the joiners. All holders must have
/// the same bytes.
///
/// Holders give `state` and get it back; joiners give `None`. Whatever the number of ranks, the
/// hand-over takes little longer than one joiner takes to receive the bytes.
///
/// # Errors
/// As [`crate::all_reduce`]. On all ranks, if there are no holders or more holders than ranks, a holder
/// gives no bytes, a joiner gives bytes, or holders have different bytes. If a joiner has not enough
/// memory, which ends the group.
pub fn hand_over(
    group: &mut Group,
    holders: u32,
    state: Option<Vec<u8>>,
) -> Result<Vec<u8>, Error> {
    start::holders(OPERATION, holders, group)?;
    let notices = announce(group, holders, Notice::of(state.as_deref()))?;
    let length = agreed(&notices, holders).map_err(|text| Error::invalid(OPERATION, text))?;
    let mut state = match state {
        Some(state) => state,
        None => room(length).map_err(|text| stop(group, text))?,
    };
    let run = start::hand_over(group, state.as_mut_slice(), holders)?;
    group.complete(&mut [run])?;
    Ok(state)
}

/// Announcement of a rank: no bytes, or bytes with this length and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    Nothing,
    Bytes { length: u64, checksum: u32 },
}

impl Notice {
    fn of(state: Option<&[u8]>) -> Notice {
        state.map_or(Notice::Nothing, |state| Notice::Bytes {
            length: state.len() as u64,
            checksum: checksum(state),
        })
    }

    fn to_bytes(self) -> [u8; NOTICE_BYTES] {
        let mut bytes = [0; NOTICE_BYTES];
        if let Notice::Bytes { length, checksum } = self {
            bytes[0] = 1;
            bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
            bytes[8..].copy_from_slice(&length.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8; NOTICE_BYTES]) -> Notice {
        let [holds, _, _, _, checksum @ .., _, _, _, _, _, _, _, _] = *bytes;
        let [_, _, _, _, _, _, _, _, length @ ..] = *bytes;
        match holds {
            0 => Notice::Nothing,
            _ => Notice::Bytes {
                length: u64::from_le_bytes(length),
                checksum: u32::from_le_bytes(checksum),
            },
        }
    }
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Notice::Nothing => f.write_str("no bytes"),
            Notice::Bytes { length, checksum } => {
                write!(f, "{length} bytes with checksum {checksum:08x}")
            }
        }
    }
}

/// Returns the notices of all ranks, in rank order.
fn announce(group: &mut Group, holders: u32, mine: Notice) -> Result<Vec<Notice>, Error> {
    let world = group.world();
    let mut notices = vec![0_u8; NOTICE_BYTES * world.size()];
    notices[NOTICE_BYTES * world.rank().index()..][..NOTICE_BYTES]
        .copy_from_slice(&mine.to_bytes());
    let run = start::all_gather(group, notices.as_mut_slice());
    group.complete(&mut [run.called(format!("{OPERATION} of {holders} holders"))])?;
    let (notices, _) = notices.as_chunks();
    Ok(notices.iter().map(Notice::parse).collect())
}

/// Returns the length of the bytes that all holders, and only they, give.
fn agreed(notices: &[Notice], holders: u32) -> Result<u64, String> {
    let (held, joined) = notices.split_at(holders as usize);
    let first = held[0];
    for (rank, notice) in (0..).map(Rank).zip(held) {
        if *notice == Notice::Nothing {
            return Err(format!("{rank} gives no bytes, expected the bytes of a holder"));
        }
        if *notice != first {
            return Err(format!("holders differ: {rank} gives {notice}, {} {first}", Rank(0)));
        }
    }
    for (rank, notice) in (holders..).map(Rank).zip(joined) {
        if *notice != Notice::Nothing {
            return Err(format!(
                "{rank} gives {notice}, expected none: the first {holders} ranks are the holders"
            ));
        }
    }
    match first {
        Notice::Nothing => Ok(0),
        Notice::Bytes { length, .. } => Ok(length),
    }
}

fn room(length: u64) -> Result<Vec<u8>, String> {
    let refused = || format!("no memory for a state of {length} bytes");
    let length = usize::try_from(length).map_err(|_| refused())?;
    let mut state = Vec::new();
    state.try_reserve_exact(length).map_err(|_| refused())?;
    state.resize(length, 0);
    Ok(state)
}

/// Ends the group, since the other ranks would wait for this one.
fn stop(group: &mut Group, text: String) -> Error {
    let text = format!("{text} (in {OPERATION})");
    group.abort(&text);
    Error::stopped(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_return() {
        for state in [None, Some(&b""[..]), Some(b"state")] {
            let notice = Notice::of(state);
            assert_eq!(Notice::parse(&notice.to_bytes()), notice);
        }
        let large = Notice::Bytes { length: u64::MAX - 1, checksum: 7 };
        assert_eq!(Notice::parse(&large.to_bytes()), large);
    }

    #[test]
    fn bytes_beyond_memory_are_refused() {
        let text = room(u64::MAX).unwrap_err();
        assert_eq!(text, "no memory for a state of 18446744073709551615 bytes");
    }
}
