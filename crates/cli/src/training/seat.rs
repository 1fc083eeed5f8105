//! One process of a training.

use thinwire_job::Place;

use super::folder::FolderLock;
use super::interrupt::Interrupt;

/// One process of a training: its rank, and what all its runs or epochs share.
pub struct Seat<'a> {
    /// The rank.
    pub place: &'a Place,
    /// Signals.
    pub interrupt: &'a Interrupt,
    /// The folder of checkpoints.
    pub lock: &'a FolderLock,
}
