//! Fields of saved states and of messages, as bytes: little-endian, lists behind their length.

use thinwire_wire::WORLD_SIZE_MAX;

use crate::epoch::NUMBER_MAX;
use crate::{Corrupt, Epoch, Id};

/// Bytes of an epoch without its members.
pub(crate) const EPOCH_BYTES: usize = 32;
/// Bytes of an epoch with the most members.
pub(crate) const EPOCH_BYTES_MAX: usize = EPOCH_BYTES + 8 * WORLD_SIZE_MAX as usize;

/// Appends an epoch: number, coordinator, holders, done, target, members.
pub(crate) fn write_epoch(epoch: &Epoch, bytes: &mut Vec<u8>) {
    bytes.extend(epoch.number.to_le_bytes());
    bytes.extend(epoch.coordinator.0.to_le_bytes());
    bytes.extend(epoch.holders.to_le_bytes());
    bytes.extend(epoch.done.to_le_bytes());
    bytes.extend(epoch.target.to_le_bytes());
    write_ids(&epoch.members, bytes);
}

/// Appends the number of ids in four bytes, and the ids.
pub(crate) fn write_ids(ids: &[Id], bytes: &mut Vec<u8>) {
    bytes.extend((ids.len() as u32).to_le_bytes());
    bytes.extend(ids.iter().flat_map(|id| id.0.to_le_bytes()));
}

/// Fields that have not been read yet: little-endian integers, and bytes whose number is known.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Returns the fields of a message.
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let bytes = self.bytes(N)?;
        Ok(bytes.try_into().expect("as many bytes as asked for"))
    }

    /// Reads `count` bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Corrupt> {
        let short = Corrupt::Short { found: self.rest.len(), expected: count };
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(short)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Returns all bytes that are left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Reads an integer of one byte.
    ///
    /// # Errors
    /// If none is left.
    pub fn u8(&mut self) -> Result<u8, Corrupt> {
        self.array().map(u8::from_le_bytes)
    }

    /// Reads an integer of two bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u16(&mut self) -> Result<u16, Corrupt> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads an integer of four bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u32(&mut self) -> Result<u32, Corrupt> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads an integer of eight bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u64(&mut self) -> Result<u64, Corrupt> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn id(&mut self) -> Result<Id, Corrupt> {
        self.u64().map(Id)
    }

    /// Reads a code of `0..=max`.
    pub(crate) fn code(&mut self, field: &'static str, max: u8) -> Result<u8, Corrupt> {
        match self.u8()? {
            found if found > max => Err(Corrupt::Code { field, found, max }),
            code => Ok(code),
        }
    }

    /// Reads the number of an epoch.
    pub(crate) fn number(&mut self) -> Result<u32, Corrupt> {
        let found = self.u32()?;
        if found > NUMBER_MAX { Err(Corrupt::Number { found }) } else { Ok(found) }
    }

    /// Reads at most as many ids as a world has ranks.
    pub(crate) fn ids(&mut self) -> Result<Vec<Id>, Corrupt> {
        let found = self.u32()?;
        if found > WORLD_SIZE_MAX || self.rest.len() < 8 * found as usize {
            return Err(Corrupt::Members { found, bytes: self.rest.len() });
        }
        (0..found).map(|_| self.id()).collect()
    }

    /// Reads an epoch that is sound.
    pub(crate) fn epoch(&mut self) -> Result<Epoch, Corrupt> {
        let (number, coordinator) = (self.number()?, self.id()?);
        let (holders, done, target) = (self.u32()?, self.u64()?, self.u32()?);
        let members = self.ids()?;
        let epoch = Epoch { number, coordinator, members, holders, done, target };
        if epoch.is_sound() { Ok(epoch) } else { Err(Corrupt::Epoch { number }) }
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// If any byte is.
    pub fn end(self) -> Result<(), Corrupt> {
        match self.rest.len() {
            0 => Ok(()),
            found => Err(Corrupt::Long { found }),
        }
    }
}
