//! Small rows of numbers that ranks send each other in every step. They become known some steps later,
//! so that no rank waits for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use thinwire_collective::{Address, Program};
use thinwire_schedule::Algorithm;

use crate::Error;
use crate::channel::Channel;
use crate::worker::sum;

/// Number of an exchange of rows among the tensors of a step.
const ROWS: u32 = u32::from_be_bytes(*b"rows");

/// Rows of all ranks, which become known `lag` steps after they were sent. A rank is never more than
/// `lag` steps ahead of another.
#[derive(Debug)]
pub struct DelayedRows {
    channel: Channel,
    program: Arc<Program>,
    width: usize,
    lag: usize,
    /// Number of rows that this rank has sent.
    told: u64,
    underway: VecDeque<Row>,
}

#[derive(Debug)]
enum Row {
    Coming(Receiver<Result<Vec<f32>, Error>>),
    Known(Vec<f32>),
}

impl Row {
    fn known(self) -> Result<Vec<f32>, Error> {
        match self {
            Row::Coming(row) => row.recv().unwrap_or(Err(Error::Stopped)),
            Row::Known(row) => Ok(row),
        }
    }
}

impl DelayedRows {
    /// Returns an exchange of rows of `width` finite numbers among the ranks of a channel. Ranks know
    /// each other's rows `lag` steps later.
    pub fn new(channel: Channel, width: usize, lag: usize) -> DelayedRows {
        let ranks = channel.ranks(&[]).expect("all ranks of a channel are of it");
        let program = ranks.sum(Algorithm::Gather.into(), width * channel.world().size());
        DelayedRows { channel, program, width, lag, told: 0, underway: VecDeque::new() }
    }

    /// Sends this rank's row of a step to the other ranks. Returns all ranks' rows of the step `lag`
    /// steps earlier, one after the other in rank order; `None` in the first steps.
    ///
    /// # Errors
    /// If a peer is lost.
    ///
    /// # Panics
    /// If the row has another width.
    pub fn tell(&mut self, row: &[f32]) -> Result<Option<Vec<f32>>, Error> {
        assert_eq!(row.len(), self.width, "a row of another width");
        let world = self.channel.world();
        // Each rank adds its own row to zeros, so that the sum has all of them.
        let mut rows = vec![0.0; self.width * world.size()];
        rows[self.width * world.rank().index()..][..self.width].copy_from_slice(row);
        let address = Address::counted(self.told, ROWS, "the rows of a step");
        let row = sum(&self.channel, world, Arc::clone(&self.program), address, rows);
        self.underway.push_back(Row::Coming(row));
        self.told += 1;
        match self.underway.len() > self.lag {
            true => self.underway.pop_front().map(Row::known).transpose(),
            false => Ok(None),
        }
    }

    /// Waits until no row is on its way; rows that have arrived are returned when they are due.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn settle(&mut self) -> Result<(), Error> {
        let underway = std::mem::take(&mut self.underway);
        let known = underway.into_iter().map(|row| row.known().map(Row::Known));
        self.underway = known.collect::<Result<_, _>>()?;
        Ok(())
    }
}
