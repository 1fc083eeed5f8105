//! Clocks of the workers: which of their pushes a state contains.
//!
//! They are part of the replicated state, so that a push is known wherever its effect is.

use std::collections::BTreeMap;

use thinwire_member::{Fields, Id};

use crate::frontier::Frontier;
use crate::wire::fields::{count, id, number, write_count, write_u64};
use crate::write::{Workers, Write};

/// Pushes of every worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    version: u64,
    /// Clock with which a worker begins when there are no others.
    floor: u64,
    workers: BTreeMap<Id, Worker>,
    /// Numbers of the last pushes of workers that have left: one that comes back may send a push again.
    gone: BTreeMap<Id, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worker {
    /// Steps of the job that it has made or was let off.
    clock: u64,
    /// Number of its last push.
    pushed: u64,
}

impl Clocks {
    /// Takes a write into account.
    pub fn apply(&mut self, write: &Write) {
        match write {
            Write::Update { pushes, .. } => {
                for (id, number) in pushes {
                    if let Some(worker) = self.workers.get_mut(id) {
                        *worker = Worker { clock: worker.clock + 1, pushed: *number };
                    }
                }
            }
            Write::Workers(workers) => self.replace(workers),
        }
    }

    /// Newcomers begin with the slowest, so that they neither wait nor are waited for.
    fn replace(&mut self, workers: &Workers) {
        let clock = self.least();
        let mut known = std::mem::take(&mut self.workers);
        for id in &workers.ids {
            let pushed = self.gone.remove(id).unwrap_or(0);
            let worker = known.remove(id).unwrap_or(Worker { clock, pushed });
            self.workers.insert(*id, worker);
        }
        self.gone.extend(known.into_iter().map(|(id, worker)| (id, worker.pushed)));
        (self.version, self.floor) = (workers.version, clock);
    }

    /// Appends version, floor, and the workers and those that have left, by id.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        [self.version, self.floor].iter().for_each(|field| write_u64(*field, bytes));
        write_count(self.workers.len(), bytes);
        for (id, worker) in &self.workers {
            [id.0, worker.clock, worker.pushed].iter().for_each(|field| write_u64(*field, bytes));
        }
        write_count(self.gone.len(), bytes);
        for (id, pushed) in &self.gone {
            [id.0, *pushed].iter().for_each(|field| write_u64(*field, bytes));
        }
    }

    /// Reads what [`Clocks::write`] writes, and nothing else.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Option<Clocks> {
        let (version, floor) = (fields.u64().ok()?, number(fields)?);
        let length = count(fields, 24)?;
        let worker = |_| {
            let id = id(fields)?;
            Some((id, Worker { clock: number(fields)?, pushed: number(fields)? }))
        };
        let workers = ascending((0..length).map(worker).collect::<Option<Vec<_>>>()?)?;
        let length = count(fields, 16)?;
        let gone = |_| Some((id(fields)?, number(fields)?));
        let gone = ascending((0..length).map(gone).collect::<Option<Vec<_>>>()?)?;
        let is_sound = gone.keys().all(|id| !workers.contains_key(id));
        is_sound.then_some(Clocks { version, floor, workers, gone })
    }

    /// Returns the version of the list of workers.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the workers in the order of their ids.
    pub fn workers(&self) -> impl ExactSizeIterator<Item = Id> {
        self.workers.keys().copied()
    }

    /// Returns the number of a worker's last push.
    pub fn pushed(&self, id: Id) -> Option<u64> {
        self.workers.get(&id).map(|worker| worker.pushed)
    }

    /// Returns the newest push of each worker.
    pub fn frontier(&self) -> Frontier {
        let pushed = self.workers.iter().map(|(id, worker)| (*id, worker.pushed));
        Frontier { pushes: pushed.collect() }
    }

    /// Returns the clock of the slowest worker.
    pub fn least(&self) -> u64 {
        let clocks = self.workers.values().map(|worker| worker.clock);
        clocks.min().unwrap_or(self.floor)
    }

    /// Returns how many steps a worker was or will be ahead of the slowest after `pushed` pushes.
    pub fn lead(&self, id: Id, pushed: u64) -> Option<u64> {
        let worker = self.workers.get(&id)?;
        Some((worker.clock + pushed).saturating_sub(worker.pushed + self.least()))
    }
}

fn ascending<T>(items: Vec<(Id, T)>) -> Option<BTreeMap<Id, T>> {
    let ascends = items.windows(2).all(|pair| pair[0].0 < pair[1].0);
    ascends.then(|| items.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(version: u64, ids: &[u64]) -> Write {
        Write::Workers(Workers { version, ids: ids.iter().copied().map(Id).collect() })
    }

    fn push(id: u64, number: u64) -> Write {
        Write::Update { pushes: vec![(Id(id), number)], parts: Vec::new() }
    }

    #[test]
    fn newcomers_begin_with_the_slowest() {
        let mut clocks = Clocks::default();
        let writes =
            [workers(1, &[1, 2]), push(1, 1), push(1, 2), push(2, 1), workers(2, &[1, 2, 3])];
        writes.iter().for_each(|write| clocks.apply(write));
        assert_eq!((clocks.least(), clocks.pushed(Id(3))), (1, Some(0)));
        assert_eq!([1, 2, 3].map(|id| clocks.lead(Id(id), 0)), [Some(0), Some(0), Some(0)]);
        assert_eq!(clocks.lead(Id(1), 2), Some(1));
        clocks.apply(&workers(3, &[]));
        clocks.apply(&workers(4, &[9]));
        assert_eq!((clocks.least(), clocks.pushed(Id(1))), (1, None));
    }

    #[test]
    fn a_worker_that_comes_back_goes_on_with_its_numbers() {
        let mut clocks = Clocks::default();
        let writes = [workers(1, &[1, 2]), push(1, 1), push(1, 2), push(2, 1), workers(2, &[2])];
        writes.iter().for_each(|write| clocks.apply(write));
        clocks.apply(&workers(3, &[1, 2]));
        assert_eq!((clocks.pushed(Id(1)), clocks.lead(Id(1), 2)), (Some(2), Some(0)));
    }
}
