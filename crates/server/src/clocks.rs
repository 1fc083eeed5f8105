//! Clocks of the workers: the pushes that a state contains, and the step that each worker has reached.
//!
//! Clocks are part of the replicated state, so a state that contains the effect of a push also contains its
//! number. Clocks count steps of the job and are equal in all shards, no matter when a shard learned of a
//! worker. A worker that joins or returns has no clock until its first push; until then, no worker waits
//! for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de};
use thinwire_member::Id;

use crate::frontier::Frontier;
use crate::write::{PushName, Workers, Write};

/// Largest number of a push, entry or clock; sums of two such numbers fit in 64 bits.
pub const NUMBER_MAX: u64 = 1 << 62;

/// Reads a number of at most [`NUMBER_MAX`], which may be optional: `#[serde(deserialize_with =
/// "number")]`.
///
/// # Errors
/// If the number is larger.
pub fn number<'de, D: Deserializer<'de>, N: Deserialize<'de> + Copy + Into<Option<u64>>>(
    deserializer: D,
) -> Result<N, D::Error> {
    let number = N::deserialize(deserializer)?;
    let found = number.into().filter(|number| *number > NUMBER_MAX);
    found.map_or(Ok(number), |found| {
        Err(de::Error::custom(format!("number {found}, expected at most {NUMBER_MAX}")))
    })
}

/// Progress of the workers, as sent to one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Step of the slowest worker.
    #[serde(deserialize_with = "number")]
    pub step: u64,
    /// Number of workers that push, including the one that receives this; 0 before the first step, when all
    /// workers are expected to push.
    pub pushing: u32,
}

/// Clock and last push of every worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    version: u64,
    /// Greatest step of a push.
    #[serde(deserialize_with = "number")]
    newest: u64,
    workers: BTreeMap<Id, Worker>,
    /// Last push numbers of workers that have left: a worker that returns may repeat a push.
    gone: BTreeMap<Id, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Worker {
    /// Last step of the job that the worker made or skipped; `None` before its first push.
    #[serde(deserialize_with = "number")]
    clock: Option<u64>,
    /// Number of the worker's last push.
    #[serde(deserialize_with = "number")]
    pushed: u64,
}

impl Clocks {
    /// Counts the pushes of a write, or replaces the list of workers.
    pub fn apply(&mut self, write: &Write) {
        match write {
            Write::Update { pushes, .. } => {
                pushes.iter().for_each(|push| self.count(push));
            }
            Write::Workers(workers) => self.replace(workers),
        }
    }

    /// Counts one push. If a newcomer is behind, its first push raises its clock to the slowest worker's
    /// clock, so that no worker waits for it to catch up.
    fn count(&mut self, push: &PushName) {
        let least = self.least();
        if let Some(worker) = self.workers.get_mut(&push.client) {
            let clock = worker.clock.unwrap_or(least).max(push.step);
            *worker = Worker { clock: Some(clock), pushed: push.number };
        }
        self.newest = self.newest.max(push.step);
    }

    /// Replaces the list of workers. Before the first step of the job, shards wait for all workers.
    fn replace(&mut self, workers: &Workers) {
        let clock = (self.newest == 0).then_some(0);
        let mut known = std::mem::take(&mut self.workers);
        for id in &workers.ids {
            let pushed = self.gone.remove(id).unwrap_or(0);
            let worker = known.remove(id).unwrap_or(Worker { clock, pushed });
            self.workers.insert(*id, worker);
        }
        self.gone.extend(known.into_iter().map(|(id, worker)| (id, worker.pushed)));
        self.version = workers.version;
    }

    /// Reads clocks. Refuses clocks in which a worker is both in the list and among those that have
    /// left.
    pub(crate) fn sound<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Clocks, D::Error> {
        let clocks = Clocks::deserialize(deserializer)?;
        let is_sound =
            |(id, pushed): (&Id, &u64)| !clocks.workers.contains_key(id) && *pushed <= NUMBER_MAX;
        let is_sound = clocks.gone.iter().all(is_sound);
        is_sound
            .then_some(clocks)
            .ok_or_else(|| de::Error::custom("a worker that is there has left"))
    }

    /// Returns the version of the list of workers.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of a worker's last push, or `None` if the worker is not in the list.
    pub fn pushed(&self, id: Id) -> Option<u64> {
        self.workers.get(&id).map(|worker| worker.pushed)
    }

    /// Returns the newest push of each worker.
    pub fn frontier(&self) -> Frontier {
        let pushed = self.workers.iter().map(|(id, worker)| (*id, worker.pushed));
        Frontier { pushes: pushed.collect() }
    }

    /// Returns the workers that have a clock, with their clocks. Other workers wait for these.
    pub fn active(&self) -> impl Iterator<Item = (Id, u64)> {
        self.workers.iter().filter_map(|(id, worker)| Some((*id, worker.clock?)))
    }

    /// Returns the clock of the slowest worker, or the greatest step if no worker has a clock.
    pub fn least(&self) -> u64 {
        self.active().map(|(_, clock)| clock).min().unwrap_or(self.newest)
    }

    /// Returns the step of the slowest worker and the number of workers that push, as they are sent to
    /// the worker `to`. A worker that has pushed nothing while others are beyond the first step counts
    /// as a worker that only reads.
    pub fn pace(&self, to: Id) -> Pace {
        let pushes =
            |worker: &Worker| worker.clock.is_some() && (worker.pushed > 0 || self.newest <= 1);
        let pushing = self.workers.iter().filter(|(id, worker)| **id == to || pushes(worker));
        let pushing = if self.newest == 0 { 0 } else { pushing.count() as u32 };
        Pace { step: self.least(), pushing }
    }

    /// Returns the greatest step of a push.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Returns the clock of a worker after its push `pushed`, past or future; `None` before its first push.
    pub fn after(&self, id: Id, pushed: u64) -> Option<u64> {
        let worker = self.workers.get(&id)?;
        Some((worker.clock? + pushed).saturating_sub(worker.pushed))
    }
}

/// Answers with this staleness in steps, or a larger one, are counted together.
pub const STALENESS_MAX: usize = 16;

/// Histogram of staleness: the number of steps that a worker was ahead of the slowest when its pull was
/// answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Staleness {
    counts: [u64; STALENESS_MAX + 1],
}

impl Staleness {
    pub(crate) fn record(&mut self, steps: u64) {
        self.counts[steps.min(STALENESS_MAX as u64) as usize] += 1;
    }

    /// Returns the number of answers with a staleness of 0, 1, ... steps; the last count is for
    /// [`STALENESS_MAX`] and more.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(version: u64, ids: &[u64]) -> Write {
        Write::Workers(Workers { version, ids: ids.iter().copied().map(Id).collect() })
    }

    fn push(id: u64, number: u64, step: u64) -> Write {
        let name = PushName { client: Id(id), number, step };
        Write::Update { pushes: vec![name], parts: Vec::new() }
    }

    fn clocks(writes: &[Write]) -> Clocks {
        let mut clocks = Clocks::default();
        writes.iter().for_each(|write| clocks.apply(write));
        clocks
    }

    #[test]
    fn newcomers_are_waited_for_from_their_first_push() {
        let mut clocks = clocks(&[workers(1, &[1, 2]), push(1, 1, 1), push(1, 2, 2)]);
        assert_eq!(clocks.least(), 0, "all workers are waited for in the first step");
        clocks.apply(&push(2, 1, 1));
        clocks.apply(&workers(2, &[1, 2, 3, 4]));
        assert_eq!(
            (clocks.least(), clocks.pushed(Id(3)), clocks.after(Id(3), 0)),
            (1, Some(0), None)
        );
        [push(1, 3, 3), push(2, 2, 2), push(3, 1, 1), push(4, 1, 4)]
            .iter()
            .for_each(|write| clocks.apply(write));
        assert_eq!(
            clocks.active().collect::<Vec<_>>(),
            [1, 2, 3, 4].map(Id).into_iter().zip([3, 2, 2, 4]).collect::<Vec<_>>()
        );
        assert_eq!((clocks.after(Id(1), 2), clocks.newest()), (Some(2), 4));
    }

    #[test]
    fn workers_that_only_read_do_not_count_as_pushing() {
        let pushing = |clocks: &Clocks, id| clocks.pace(Id(id)).pushing;
        let mut clocks = clocks(&[workers(1, &[1, 2])]);
        assert_eq!(pushing(&clocks, 1), 0, "nobody has pushed");
        clocks.apply(&push(1, 1, 1));
        assert_eq!(pushing(&clocks, 1), 2, "the second worker may be slow");
        clocks.apply(&push(1, 2, 2));
        assert_eq!((pushing(&clocks, 1), pushing(&clocks, 2)), (1, 2));
        clocks.apply(&workers(2, &[1, 2, 3]));
        clocks.apply(&push(2, 1, 1));
        assert_eq!((pushing(&clocks, 1), pushing(&clocks, 3)), (2, 3), "the third has joined");
    }

    #[test]
    fn without_workers_the_greatest_step_counts() {
        let mut clocks =
            clocks(&[workers(1, &[1]), push(1, 1, 5), workers(2, &[]), workers(3, &[9])]);
        assert_eq!((clocks.least(), clocks.pushed(Id(1))), (5, None));
        clocks.apply(&push(9, 1, 1));
        assert_eq!(clocks.after(Id(9), 1), Some(5));
    }

    #[test]
    fn a_worker_that_comes_back_goes_on_with_its_numbers() {
        let writes = [workers(1, &[1, 2]), push(1, 1, 1), push(1, 2, 2), push(2, 1, 1)];
        let mut clocks = clocks(&writes);
        clocks.apply(&workers(2, &[2]));
        clocks.apply(&workers(3, &[1, 2]));
        assert_eq!((clocks.pushed(Id(1)), clocks.after(Id(1), 2)), (Some(2), None));
    }

    #[test]
    fn the_last_count_has_no_upper_end() {
        let mut staleness = Staleness::default();
        [0, 0, 3, 16, 1 << 40].into_iter().for_each(|steps| staleness.record(steps));
        let counts = staleness.counts();
        assert_eq!((counts[0], counts[3], counts[STALENESS_MAX]), (2, 1, 2));
        assert_eq!(counts.iter().sum::<u64>(), 5);
    }
}
