//! Laws that hold at all times, under all faults.
//!
//! There is one history: any two servers apply the same n-th write. The history contains each push at most
//! once, and every acknowledged push. The ledger computes clocks and values from it independently.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thinwire_member::Id;
use thinwire_server::{Consistency, Pull, PushName, Write};
use thinwire_testkit::net::Random;

pub const ROWS: usize = 6;

/// State after a write.
#[derive(Clone, Debug, Default)]
struct Record {
    write: Option<Arc<Write>>,
    /// Last step of each worker; `None` before the first push of a worker that joined or returned.
    clocks: BTreeMap<Id, Option<u64>>,
    /// Greatest step of a push.
    newest: u64,
    /// Number of the last push of every worker so far.
    pushed: BTreeMap<Id, u64>,
    values: [f32; ROWS],
}

pub struct Ledger {
    consistency: Consistency,
    /// States: before any write, and after each.
    history: Vec<Record>,
    pushes: BTreeSet<(Id, u64)>,
    acknowledged: BTreeSet<(Id, u64)>,
    /// Greatest staleness of an answer.
    pub staleness: u64,
}

/// Returns the gradient of a push: whole numbers for some of the rows.
pub fn gradient(client: Id, number: u64) -> Vec<(u64, f32)> {
    let mut random = Random::new(client.0 << 32 | number);
    let mut rows = Vec::new();
    for row in 0..ROWS as u64 {
        if random.chance(0.4) {
            rows.push((row, random.range(1..100) as f32));
        }
    }
    rows
}

impl Ledger {
    pub fn new(consistency: Consistency) -> Ledger {
        Ledger {
            consistency,
            history: vec![Record::default()],
            pushes: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
            staleness: 0,
        }
    }

    /// Returns the number of writes.
    pub fn len(&self) -> u64 {
        self.history.len() as u64 - 1
    }

    /// Returns the number of pushes in all writes.
    pub fn pushes(&self) -> usize {
        self.pushes.len()
    }

    /// Returns the values after all writes.
    pub fn values(&self) -> &[f32] {
        &self.history.last().expect("there is a first state").values
    }

    /// Law: all servers apply one history.
    pub fn applies(&mut self, number: u64, write: &Arc<Write>) {
        match self.history.get(number as usize) {
            Some(known) => {
                assert_eq!(known.write.as_ref(), Some(write), "write {number} is another")
            }
            None => {
                assert_eq!(number, self.len() + 1, "a gap before write {number}");
                self.extend(write);
            }
        }
    }

    fn extend(&mut self, write: &Arc<Write>) {
        let mut record = self.history.last().expect("there is a first state").clone();
        record.write = Some(Arc::clone(write));
        match &**write {
            Write::Workers(workers) => {
                record.clocks.retain(|id, _| workers.ids.contains(id));
                let clock = (record.newest == 0).then_some(0);
                for id in &workers.ids {
                    record.clocks.entry(*id).or_insert(clock);
                }
            }
            Write::Update { pushes, .. } => {
                if self.consistency == Consistency::Sync {
                    check_step(pushes, &record);
                }
                pushes.iter().for_each(|push| self.takes(*push, &mut record));
                let steps = pushes.iter().map(|push| push.step);
                record.newest = steps.max().map_or(record.newest, |step| step.max(record.newest));
            }
        }
        self.history.push(record);
    }

    /// Laws: a push is applied once, after the worker's previous push, and within the bound.
    fn takes(&mut self, push: PushName, record: &mut Record) {
        let PushName { client: id, number, step } = push;
        assert!(self.pushes.insert((id, number)), "push {number} of {id} twice");
        let before = record.pushed.insert(id, number).unwrap_or(0);
        assert_eq!(number, before + 1, "a gap before push {number} of {id}");
        let slowest = least(&record.clocks).unwrap_or(record.newest);
        let clock = record.clocks.get_mut(&id).expect("it is a worker");
        *clock = Some(clock.unwrap_or(slowest).max(step));
        let ahead = clock.unwrap_or(0) - least(&record.clocks).expect("there is a worker");
        if let Some(bound) = self.consistency.bound() {
            assert!(ahead <= bound + 1, "push {number} of {id} is {ahead} steps ahead");
        }
        for (row, value) in gradient(id, number) {
            record.values[row as usize] -= value;
        }
    }

    /// Law: an acknowledged push is in the history.
    pub fn acknowledges(&mut self, id: Id, number: u64) {
        assert!(self.pushes.contains(&(id, number)), "push {number} of {id} was not applied");
        self.acknowledged.insert((id, number));
    }

    /// Laws: an answer has the values of its version, the worker's own pushes, and keeps the bound.
    pub fn answers(&mut self, pull: &Pull, version: u64, values: &[f32]) {
        let record = &self.history[version as usize];
        assert_eq!(values, record.values, "answer of version {version}");
        let Some(known) = record.clocks.get(&pull.client) else {
            return assert_eq!(pull.after, 0, "{} is no worker", pull.client);
        };
        let pushed = record.pushed.get(&pull.client).copied().unwrap_or(0);
        assert!(pushed >= pull.after, "{} does not read its own pushes", pull.client);
        // A worker has no clock before its first push.
        let Some(clock) = known else { return };
        let least = least(&record.clocks).expect("there is a worker");
        let ahead = (clock + pull.after).saturating_sub(pushed + least);
        self.staleness = self.staleness.max(ahead);
        if let Some(bound) = self.consistency.bound() {
            assert!(ahead <= bound, "{} reads {ahead} steps ahead", pull.client);
        }
    }
}

fn least(clocks: &BTreeMap<Id, Option<u64>>) -> Option<u64> {
    clocks.values().copied().flatten().min()
}

/// Law: under `sync`, a write contains pushes of one step. If the step is new, it contains a push of every
/// worker with a clock.
fn check_step(pushes: &[PushName], record: &Record) {
    let step = pushes[0].step;
    assert!(pushes.iter().all(|push| push.step == step), "{pushes:?} are of several steps");
    let has = |id: &Id| pushes.iter().any(|push| push.client == *id);
    for (id, clock) in &record.clocks {
        let is_due = step > record.newest && clock.is_some_and(|clock| clock < step);
        assert!(!is_due || has(id), "step {step} lacks the push of {id}");
    }
}
