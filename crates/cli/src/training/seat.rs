//! One process of a training.

use thinwire_job::{Meeting, Place};

use super::folder::FolderLock;
use super::interrupt::Interrupt;

/// One process of a training: its rank, how it meets the others, and what all its runs share.
pub struct Seat<'a> {
    /// The rank.
    pub place: &'a Place,
    /// Where ranks meet.
    pub meeting: Meeting,
    /// Signals.
    pub interrupt: Interrupt,
    /// The folder of checkpoints.
    pub lock: FolderLock,
}
