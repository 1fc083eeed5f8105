//! Pairs of processes that cannot reach each other, and the time for which they are kept apart.
//!
//! The younger process of a pair leaves the epoch, unless more members are out of reach of the older
//! one. It may come back after some time, which doubles at every repetition.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Id, Options};

#[derive(Clone, Copy, Debug)]
struct Cut {
    until: Duration,
    count: u32,
    /// Epoch of the last complaint.
    epoch: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Cuts {
    pairs: BTreeMap<(Id, Id), Cut>,
}

impl Cuts {
    /// Notes a complaint about a member of the epoch.
    pub(super) fn complain(
        &mut self,
        by: Id,
        of: Id,
        epoch: u32,
        options: &Options,
        now: Duration,
    ) {
        let new = Cut { until: now, count: 0, epoch: 0 };
        let cut = self.pairs.entry(sorted(by, of)).or_insert(new);
        // Members repeat a complaint in every report, and the other of the pair has its own: one per epoch counts.
        if cut.epoch < epoch {
            // The shift must not overflow, however often the two are parted.
            let time = options.silence * (1 << cut.count.min(16));
            cut.until = now + time.min(options.quarantine_max);
            (cut.count, cut.epoch) = (cut.count + 1, epoch);
        }
    }

    /// Returns whether any member of the epoch has complained about `id`.
    pub(super) fn is_missed(&self, id: Id, epoch: u32) -> bool {
        let mut pairs = self.pairs.iter();
        pairs.any(|((a, b), cut)| cut.epoch == epoch && (*a == id || *b == id))
    }

    /// Returns whether a member of the epoch has complained about another.
    pub(super) fn is_new(&self, epoch: u32) -> bool {
        self.pairs.values().any(|cut| cut.epoch == epoch)
    }

    /// Returns whether two processes are kept apart.
    pub(super) fn parts(&self, one: Id, other: Id, now: Duration) -> bool {
        self.pairs.get(&sorted(one, other)).is_some_and(|cut| now < cut.until)
    }

    /// Removes members, which are ordered with the oldest first, until no two of the rest are kept apart.
    pub(super) fn separate(&self, members: &mut Vec<Id>, now: Duration) {
        if self.pairs.is_empty() {
            return;
        }
        loop {
            let degree = |id: &Id| members.iter().filter(|of| self.parts(*id, **of, now)).count();
            // Whoever is kept apart from most goes, so that few go; of equal ones the newest.
            let worst = (0..members.len()).max_by_key(|place| (degree(&members[*place]), *place));
            match worst.filter(|place| degree(&members[*place]) > 0) {
                Some(place) => drop(members.remove(place)),
                None => return,
            }
        }
    }

    /// Forgets pairs that have been together again for a long time.
    pub(super) fn prune(&mut self, now: Duration) {
        // A pair that fails again within ten minutes is kept apart for longer than before.
        self.pairs.retain(|_, cut| now <= cut.until + Duration::from_secs(600));
    }
}

fn sorted(a: Id, b: Id) -> (Id, Id) {
    (a.min(b), a.max(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CoordinatorMode;

    const OPTIONS: fn() -> Options = || Options::new(CoordinatorMode::Saved, 1, 8);

    fn separated(complaints: &[(u64, u64)]) -> Vec<u64> {
        let mut cuts = Cuts::default();
        for (by, of) in complaints {
            cuts.complain(Id(*by), Id(*of), 1, &OPTIONS(), Duration::ZERO);
        }
        let mut members: Vec<Id> = (1..=4).map(Id).collect();
        cuts.separate(&mut members, Duration::ZERO);
        members.into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn the_younger_of_a_pair_goes_unless_the_other_misses_more() {
        assert_eq!(separated(&[(1, 3), (3, 1)]), [1, 2, 4]);
        assert_eq!(separated(&[(1, 3), (1, 4)]), [2, 3, 4]);
        assert_eq!(separated(&[(1, 2), (3, 4)]), [1, 3]);
    }

    #[test]
    fn a_pair_is_kept_apart_for_twice_as_long_each_time() {
        let (mut cuts, options, [by, of]) = (Cuts::default(), OPTIONS(), [Id(1), Id(2)]);
        let mut now = Duration::ZERO;
        for (epoch, factor) in [(1, 1), (2, 2), (3, 4)] {
            cuts.complain(by, of, epoch, &options, now);
            cuts.complain(by, of, epoch, &options, now + options.heartbeat());
            now += factor * options.silence;
            assert!(cuts.parts(by, of, now - options.heartbeat()) && !cuts.parts(by, of, now));
        }
        for epoch in 4..40 {
            cuts.complain(by, of, epoch, &options, now);
        }
        assert!(!cuts.parts(by, of, now + options.quarantine_max));
    }
}
