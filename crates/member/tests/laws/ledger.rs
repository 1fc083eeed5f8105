//! Laws that hold at every moment, whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use thinwire_member::{Epoch, Id, Note, Wait};

use crate::worker::Fact;

/// One membership of an epoch number, and who believes in it.
struct Variant {
    epoch: Epoch,
    believers: BTreeSet<Id>,
}

/// States of an epoch that has started.
pub struct Record {
    pub epoch: Epoch,
    /// Hash of the state after each step, and of that before any.
    states: BTreeMap<u64, u64>,
}

#[derive(Default)]
pub struct Ledger {
    min: u32,
    variants: BTreeMap<u32, Vec<Variant>>,
    pub records: BTreeMap<u32, Record>,
    /// Numbers of epochs that started from an older state, as was said.
    rewound: BTreeSet<u32>,
    /// Last step that each process has applied or received.
    done: BTreeMap<Id, u64>,
    /// What coordinators wait for, and when they said so last.
    pub waits: Vec<Wait>,
    pub notes: Vec<Note>,
    /// Number of steps that were applied.
    pub steps: u64,
}

impl Ledger {
    pub fn new(min: u32) -> Ledger {
        Ledger { min, ..Ledger::default() }
    }

    /// The last epoch that has started anywhere.
    pub fn latest(&self) -> Option<&Epoch> {
        self.records.last_key_value().map(|(_, record)| &record.epoch)
    }

    pub fn take(&mut self, id: Id, fact: Fact) {
        match fact {
            Fact::Accepted(epoch) => self.believes(id, &epoch),
            Fact::Started(epoch, done, hash) => self.starts(id, epoch, done, hash),
            Fact::Synced(number, done, hash) => self.synced(id, number, done, hash),
            Fact::Applied(number, done, hash) => self.applied(id, number, done, hash),
            Fact::Fenced => drop(self.done.remove(&id)),
            Fact::Said(note) => self.said(note),
        }
    }

    /// Law: of two epochs with the same number, at most one is accepted by most of its members.
    fn believes(&mut self, id: Id, epoch: &Epoch) {
        let variants = self.variants.entry(epoch.number).or_default();
        match variants.iter_mut().find(|variant| variant.epoch == *epoch) {
            Some(variant) => drop(variant.believers.insert(id)),
            None => {
                variants.push(Variant { epoch: epoch.clone(), believers: BTreeSet::from([id]) });
            }
        }
        let has_majority = |variant: &&Variant| {
            let members = &variant.epoch.members;
            2 * members.iter().filter(|id| variant.believers.contains(id)).count() > members.len()
        };
        let count = variants.iter().filter(has_majority).count();
        assert!(count <= 1, "epoch {} has {count} memberships with a majority", epoch.number);
    }

    fn starts(&mut self, id: Id, epoch: Epoch, done: u64, hash: u64) {
        let size = epoch.members.len() as u32;
        assert!(size >= self.min, "epoch {} of {size} ranks, at least {}", epoch.number, self.min);
        assert!(epoch.contains(id), "{id:?} starts epoch {} of others", epoch.number);
        self.believes(id, &epoch);
        let before = self.done.get(&id).copied().unwrap_or(0);
        let may_lose = epoch.state_sources == 0 || self.is_rewound(epoch.number);
        assert!(before <= epoch.done || may_lose, "{id:?} goes back from {before} to {epoch:?}");
        if !self.records.contains_key(&epoch.number) {
            self.opens(&epoch);
        }
        let record = self.records.get_mut(&epoch.number).expect("it was opened");
        assert_eq!(record.epoch, epoch, "two memberships have started");
        if epoch.has_state(id) || epoch.state_sources == 0 {
            assert_eq!(done, epoch.done, "{id:?} does not hold the state of {epoch:?}");
            let first = *record.states.entry(done).or_insert(hash);
            assert_eq!(hash, first, "holders of epoch {} differ", epoch.number);
            self.descends(epoch.number, done, hash);
        }
    }

    /// Whether it was said that steps are lost since the last epoch before this one that had a state: epochs
    /// in between may have ended before anyone has started them.
    fn is_rewound(&self, number: u32) -> bool {
        let mut before = self.records.range(..number).rev();
        let last =
            before.find(|(_, record)| !record.states.is_empty()).map_or(0, |(last, _)| *last);
        self.rewound.range(last + 1..=number).next().is_some()
    }

    /// Law: steps are lost only if this is said.
    fn opens(&mut self, epoch: &Epoch) {
        let last = self.records.range(..epoch.number).next_back();
        if let Some((number, last)) = last {
            let applied = last.states.keys().next_back().copied().unwrap_or(last.epoch.done);
            let is_rewound = self.is_rewound(epoch.number);
            assert!(
                epoch.done >= last.epoch.done || is_rewound,
                "epoch {} starts at {}, and {number} at {}",
                epoch.number,
                epoch.done,
                last.epoch.done
            );
            // Only the last step may have reached a member that is lost.
            assert!(
                applied <= epoch.done + 1 || is_rewound,
                "step {applied} of epoch {number} is lost: {epoch:?}"
            );
        }
        let record = Record { epoch: epoch.clone(), states: BTreeMap::new() };
        self.records.insert(epoch.number, record);
    }

    /// Law: the state of an epoch is one of those of the epoch before, unless the loss was said.
    fn descends(&self, number: u32, done: u64, hash: u64) {
        // An epoch may end before any state source has started it.
        let has_states = |(_, record): &(&u32, &Record)| !record.states.is_empty();
        let Some((_, last)) = self.records.range(..number).rev().find(has_states) else { return };
        if self.is_rewound(number) || self.records[&number].epoch.state_sources == 0 {
            return;
        }
        let known = last.states.get(&done).copied();
        assert!(known.is_none_or(|known| known == hash), "epoch {number} has another step {done}");
        let is_known = known.is_some();
        assert!(
            is_known,
            "epoch {number} starts from step {done}, which {} has not",
            last.epoch.number
        );
    }

    /// Law: all members begin with the state of the state sources.
    fn synced(&mut self, id: Id, number: u32, done: u64, hash: u64) {
        self.done.insert(id, done);
        let record = self.records.get_mut(&number).expect("it has started");
        assert_eq!(done, record.epoch.done, "{id:?} begins epoch {number} elsewhere");
        let first = *record.states.entry(done).or_insert(hash);
        assert_eq!(hash, first, "{id:?} begins epoch {number} with another state");
    }

    /// Laws: members of an epoch apply equal steps, one after another; who is left behind by a later epoch
    /// applies at most the step that was under way.
    fn applied(&mut self, id: Id, number: u32, done: u64, hash: u64) {
        self.done.insert(id, done);
        self.steps += 1;
        let later = self.records.range(number + 1..).next().map(|(_, record)| &record.epoch);
        if let Some(later) = later {
            let is_behind = !later.contains(id) && done <= later.done + 1;
            let is_said = self.is_rewound(later.number);
            assert!(
                is_behind || is_said,
                "{id:?} applies step {done} of epoch {number} after {later:?}"
            );
        }
        let record = self.records.get_mut(&number).expect("it has started");
        assert!(record.states.contains_key(&(done - 1)), "{id:?} skips step {}", done - 1);
        let first = *record.states.entry(done).or_insert(hash);
        assert_eq!(hash, first, "{id:?} diverges in step {done} of epoch {number}");
    }

    fn said(&mut self, note: Note) {
        match &note {
            Note::Rewound { number, .. } => drop(self.rewound.insert(*number)),
            Note::Waiting(wait) => self.waits.push(*wait),
            Note::Started { .. } | Note::Adopted { .. } => {}
        }
        self.notes.push(note);
    }
}
