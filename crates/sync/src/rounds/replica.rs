//! The copy of the parameters that a rank trains, and what rounds have done to it.

use std::ops::AddAssign;

/// The parameters of the copy that a rank trains.
pub trait Replica {
    /// Copies values of a parameter, from its element `start` on, until `values` is full.
    fn read(&self, parameter: usize, start: usize, values: &mut [f32]);
    /// Replaces values of a parameter from its element `start` on.
    fn write(&mut self, parameter: usize, start: usize, values: &[f32]);
}

/// Parameters in memory, one vector each.
impl Replica for Vec<Vec<f32>> {
    fn read(&self, parameter: usize, start: usize, values: &mut [f32]) {
        values.copy_from_slice(&self[parameter][start..start + values.len()]);
    }

    fn write(&mut self, parameter: usize, start: usize, values: &[f32]) {
        self[parameter][start..start + values.len()].copy_from_slice(values);
    }
}

/// The rounds that began and ended after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundRecord {
    /// Rounds that began; in mode `pair`, the rounds in which this rank has asked its partner.
    pub begun: u32,
    /// Rounds that ended; in mode `pair`, also the rounds in which this rank was asked.
    pub ended: u32,
    /// Rounds that ended without changing anything, since some rank had a number that is not finite.
    pub skipped: u32,
    /// Seconds of waiting for other ranks.
    pub wait_s: f64,
    /// Bytes that this rank has sent in rounds that ended, headers included.
    pub sent_bytes: u64,
}

impl AddAssign for RoundRecord {
    fn add_assign(&mut self, other: RoundRecord) {
        self.begun += other.begun;
        self.ended += other.ended;
        self.skipped += other.skipped;
        self.wait_s += other.wait_s;
        self.sent_bytes += other.sent_bytes;
    }
}

/// Returns all parameters, one after the other.
pub(super) fn flat(replica: &impl Replica, lengths: &[usize]) -> Vec<f32> {
    let mut values = vec![0.0; lengths.iter().sum()];
    let mut rest = &mut values[..];
    for (parameter, length) in lengths.iter().enumerate() {
        let (mine, after) = rest.split_at_mut(*length);
        replica.read(parameter, 0, mine);
        rest = after;
    }
    values
}

/// Replaces all parameters.
pub(super) fn put(values: &[f32], lengths: &[usize], replica: &mut impl Replica) {
    let mut rest = values;
    for (parameter, length) in lengths.iter().enumerate() {
        let (mine, after) = rest.split_at(*length);
        replica.write(parameter, 0, mine);
        rest = after;
    }
}

/// Returns the hash of values.
pub(super) fn checksum(values: &[f32]) -> u32 {
    thinwire_wire::checksum(bytemuck::cast_slice(values))
}
