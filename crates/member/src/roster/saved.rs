//! Saved state of a coordinator, as bytes.
//!
//! Little-endian: `TWRO`, version, flags, id, number, floor, target, fingerprint, the epoch, CRC-32. An
//! epoch that was proposed but has not started need not be saved, only its number: the restored
//! coordinator stops again and proposes another one.

use std::fmt;
use std::time::Duration;

use thinwire_wire::{WORLD_SIZE_MAX, checksum};

use super::Roster;
use crate::epoch::NUMBER_MAX;
use crate::{Epoch, Id, Options};

const MAGIC: [u8; 4] = *b"TWRO";
const VERSION: u8 = 1;
const HAS_FINGERPRINT: u8 = 1 << 0;
const HAS_EPOCH: u8 = 1 << 1;
const HEAD_BYTES: usize = 34;
const EPOCH_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;

/// Most bytes of a saved state.
pub const SAVED_BYTES_MAX: usize =
    HEAD_BYTES + EPOCH_BYTES + 8 * WORLD_SIZE_MAX as usize + CHECKSUM_BYTES;

impl Roster {
    /// Returns what a restarted coordinator needs to go on.
    pub fn save(&self) -> Vec<u8> {
        let flags = if self.fingerprint.is_some() { HAS_FINGERPRINT } else { 0 }
            | if self.epoch.is_some() { HAS_EPOCH } else { 0 };
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, flags]);
        bytes.extend(self.id.0.to_le_bytes());
        for number in [self.number, self.floor, self.target] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.fingerprint.unwrap_or(0).to_le_bytes());
        if let Some(epoch) = &self.epoch {
            write_epoch(epoch, &mut bytes);
        }
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Goes on from a saved state. Members have the usual time to report again.
    ///
    /// # Errors
    /// If the bytes were not written by [`Roster::save`] of this version.
    pub fn restore(bytes: &[u8], options: Options, now: Duration) -> Result<Roster, Corrupt> {
        let mut reader = Reader::open(bytes)?;
        let flags = reader.flags;
        let mut roster = Roster::found(Id(reader.u64()?), options);
        (roster.number, roster.floor) = (reader.number()?, reader.number()?);
        let target = reader.u32()?;
        let fingerprint = reader.u64()?;
        roster.fingerprint = (flags & HAS_FINGERPRINT != 0).then_some(fingerprint);
        roster.epoch = if flags & HAS_EPOCH != 0 { Some(reader.epoch()?) } else { None };
        reader.end()?;
        roster.target = target.clamp(options.min, options.max);
        for id in roster.members().to_vec() {
            roster.peers.expect(id, now);
        }
        Ok(roster)
    }
}

fn write_epoch(epoch: &Epoch, bytes: &mut Vec<u8>) {
    bytes.extend(epoch.number.to_le_bytes());
    bytes.extend(epoch.coordinator.0.to_le_bytes());
    bytes.extend(epoch.holders.to_le_bytes());
    bytes.extend(epoch.done.to_le_bytes());
    bytes.extend(epoch.target.to_le_bytes());
    bytes.extend((epoch.members.len() as u32).to_le_bytes());
    bytes.extend(epoch.members.iter().flat_map(|id| id.0.to_le_bytes()));
}

/// Fields of a saved state that were not read yet.
struct Reader<'a> {
    flags: u8,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn open(bytes: &'a [u8]) -> Result<Reader<'a>, Corrupt> {
        let found = bytes.len();
        let (Some((content, tail)), true) =
            (bytes.split_last_chunk::<CHECKSUM_BYTES>(), found <= SAVED_BYTES_MAX)
        else {
            return Err(Corrupt::Length { found });
        };
        let Some((&[a, b, c, d, version, flags], rest)) = content.split_first_chunk::<6>() else {
            return Err(Corrupt::Length { found });
        };
        if [a, b, c, d] != MAGIC {
            return Err(Corrupt::Magic);
        }
        // Before the checksum: another version may compute it over other bytes.
        if version != VERSION {
            return Err(Corrupt::Version { found: version });
        }
        let (found, expected) = (u32::from_le_bytes(*tail), checksum(content));
        if found != expected {
            return Err(Corrupt::Checksum { found, expected });
        }
        if flags & !(HAS_FINGERPRINT | HAS_EPOCH) != 0 {
            return Err(Corrupt::Flags { found: flags });
        }
        Ok(Reader { flags, rest })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let (array, rest) =
            self.rest.split_first_chunk::<N>().ok_or(Corrupt::Length { found: self.rest.len() })?;
        self.rest = rest;
        Ok(*array)
    }

    fn u32(&mut self) -> Result<u32, Corrupt> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Corrupt> {
        self.array().map(u64::from_le_bytes)
    }

    fn number(&mut self) -> Result<u32, Corrupt> {
        let found = self.u32()?;
        if found > NUMBER_MAX { Err(Corrupt::Number { found }) } else { Ok(found) }
    }

    fn epoch(&mut self) -> Result<Epoch, Corrupt> {
        let (number, coordinator) = (self.number()?, Id(self.u64()?));
        let (holders, done, target) = (self.u32()?, self.u64()?, self.u32()?);
        let count = self.u32()?;
        if count > WORLD_SIZE_MAX || self.rest.len() != 8 * count as usize {
            return Err(Corrupt::Members { found: count, bytes: self.rest.len() });
        }
        let members: Result<_, _> = (0..count).map(|_| self.u64().map(Id)).collect();
        let epoch = Epoch { number, coordinator, members: members?, holders, done, target };
        if epoch.is_sound() { Ok(epoch) } else { Err(Corrupt::Epoch { number }) }
    }

    fn end(self) -> Result<(), Corrupt> {
        match self.rest.len() {
            0 => Ok(()),
            found => Err(Corrupt::Length { found }),
        }
    }
}

/// Reason why bytes are no saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corrupt {
    /// Too few or too many bytes.
    Length {
        /// Number of bytes, in all or where the state should have ended.
        found: usize,
    },
    /// First bytes of something else.
    Magic,
    /// Version that this build does not read.
    Version {
        /// Version of the bytes.
        found: u8,
    },
    /// Unknown flags.
    Flags {
        /// Flags of the bytes.
        found: u8,
    },
    /// Checksum of other bytes.
    Checksum {
        /// Checksum that the state carries.
        found: u32,
        /// Checksum of its bytes.
        expected: u32,
    },
    /// Number that no epoch can have.
    Number {
        /// The number.
        found: u32,
    },
    /// Number of members that does not fit the bytes.
    Members {
        /// Number of members.
        found: u32,
        /// Bytes for them.
        bytes: usize,
    },
    /// Epoch without members, with one named twice, or with more holders than members.
    Epoch {
        /// Number of the epoch.
        number: u32,
    },
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Corrupt::Length { found } => {
                write!(
                    f,
                    "coordinator state of {found} bytes, expected at most {SAVED_BYTES_MAX} and no more than its fields"
                )
            }
            Corrupt::Magic => write!(f, "no coordinator state, expected it to start with 'TWRO'"),
            Corrupt::Version { found } => {
                write!(f, "coordinator state of version {found}, expected {VERSION}")
            }
            Corrupt::Flags { found } => {
                write!(f, "coordinator state with flags {found:#04x}, expected none but 0x3")
            }
            Corrupt::Checksum { found, expected } => {
                write!(f, "coordinator state checksum {found:#010x}, expected {expected:#010x}")
            }
            Corrupt::Number { found } => {
                write!(f, "epoch number {found}, expected at most {NUMBER_MAX}")
            }
            Corrupt::Members { found, bytes } => {
                write!(
                    f,
                    "{found} members in {bytes} bytes, expected at most {WORLD_SIZE_MAX} of 8 bytes each"
                )
            }
            Corrupt::Epoch { number } => {
                write!(
                    f,
                    "epoch {number} has no members, repeats one, or has more holders than members"
                )
            }
        }
    }
}

impl std::error::Error for Corrupt {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Authority;

    fn roster() -> Roster {
        let options = Options::new(Authority::Saved, 1, 8);
        let epoch = Epoch {
            number: 7,
            coordinator: Id(99),
            members: vec![Id(1), Id(2), Id(3)],
            holders: 2,
            done: 41,
            target: 4,
        };
        Roster {
            number: 8,
            target: 4,
            fingerprint: Some(5),
            epoch: Some(epoch),
            ..Roster::found(Id(99), options)
        }
    }

    #[test]
    fn a_saved_state_is_restored() {
        for roster in [roster(), Roster { epoch: None, fingerprint: None, ..roster() }] {
            let restored = Roster::restore(&roster.save(), roster.options, Duration::ZERO).unwrap();
            assert_eq!(restored.save(), roster.save());
            assert_eq!((restored.id, &restored.epoch), (roster.id, &roster.epoch));
        }
    }

    #[test]
    fn any_changed_byte_and_any_cut_is_refused() {
        let saved = roster().save();
        for place in 0..saved.len() {
            let mut bytes = saved.clone();
            bytes[place] ^= 0x10;
            let options = roster().options;
            assert!(Roster::restore(&bytes, options, Duration::ZERO).is_err(), "byte {place}");
            assert!(Roster::restore(&saved[..place], options, Duration::ZERO).is_err());
        }
        let mut other = saved;
        other[4] = 9;
        let error = Roster::restore(&other, roster().options, Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "coordinator state of version 9, expected 1");
    }

    proptest! {
        #[test]
        fn any_fields_are_an_error_or_a_state_that_writes_itself_back(
            flags in 0..4_u8, fields: [u8; 28], rest: Vec<u8>, members in 0..3_u32
        ) {
            let mut bytes = [&MAGIC[..], &[VERSION, flags], &fields, &rest].concat();
            if bytes.len() >= HEAD_BYTES + EPOCH_BYTES {
                bytes[HEAD_BYTES + 28..HEAD_BYTES + 32].copy_from_slice(&members.to_le_bytes());
                bytes.truncate(HEAD_BYTES + EPOCH_BYTES + 8 * members as usize);
            }
            bytes.extend(checksum(&bytes).to_le_bytes());
            let options = Options::new(Authority::Saved, 1, u32::MAX);
            if let Ok(roster) = Roster::restore(&bytes, options, Duration::ZERO) {
                let saved = roster.save();
                let again = Roster::restore(&saved, options, Duration::ZERO).unwrap();
                prop_assert_eq!(again.save(), saved);
            }
        }
    }
}
