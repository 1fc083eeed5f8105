//! Views of a shard: its servers, as the coordinator decides them.
//!
//! Views of a shard follow each other one by one. Law: the replicas of a view are replicas of the view
//! before, and the learner that was reported as ready in it. Each of them therefore has everything that
//! was acknowledged before.

use std::fmt;

use thinwire_member::Id;

/// Servers of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Number of the view: the job's epoch in the upper half, views within it in the lower.
    pub number: u64,
    /// Servers that have all that is acknowledged; the first is the primary, the others are backups.
    pub replicas: Vec<Id>,
    /// Servers that take over a copy.
    pub learners: Vec<Id>,
}

/// Occasion of a new view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// Epoch of the job.
    pub epoch: u32,
    /// Servers in this epoch.
    pub members: &'a [Id],
    /// Servers that should have the shard; the first should be the primary.
    pub target: &'a [Id],
    /// Learner that was reported as ready, and the number of the view in which it was.
    pub ready: Option<(u64, Id)>,
}

/// Refusal of a view: no replica of the last one is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The replicas.
    pub replicas: Vec<Id>,
}

/// Part that a server has in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Primary,
    Backup,
    Learner,
    None,
}

impl View {
    /// Returns the first view of a shard, whose servers all begin without a write.
    pub fn found(epoch: u32, target: &[Id]) -> View {
        View { number: u64::from(epoch) << 32, replicas: target.to_vec(), learners: Vec::new() }
    }

    /// Returns the server that orders the writes.
    pub fn primary(&self) -> Option<Id> {
        self.replicas.first().copied()
    }

    /// Returns the next view, or none if the change changes nothing.
    ///
    /// # Errors
    /// If no replica is a member of the epoch.
    pub fn next(&self, change: &Change<'_>) -> Result<Option<View>, Lost> {
        let ready = change.ready.filter(|(number, _)| *number == self.number).map(|(_, id)| id);
        let ready = ready.filter(|id| self.learners.contains(id));
        let lives = |id: &Id| change.members.contains(id);
        let mut replicas: Vec<Id> =
            self.replicas.iter().copied().chain(ready).filter(lives).collect();
        if replicas.is_empty() {
            return Err(Lost { replicas: self.replicas.clone() });
        }
        let target: Vec<Id> = change.target.iter().copied().filter(lives).collect();
        let learners: Vec<Id> =
            target.iter().copied().filter(|id| !replicas.contains(id)).collect();
        // Servers that give their copy away keep it until all that take one over have it.
        if learners.is_empty() && !target.is_empty() {
            replicas = target;
        }
        let number = (self.number + 1).max(u64::from(change.epoch) << 32);
        let is_new = replicas != self.replicas || learners != self.learners;
        Ok(is_new.then_some(View { number, replicas, learners }))
    }

    pub(crate) fn part(&self, id: Id) -> Part {
        match self.replicas.iter().position(|replica| *replica == id) {
            Some(0) => Part::Primary,
            Some(_) => Part::Backup,
            None if self.learners.contains(&id) => Part::Learner,
            None => Part::None,
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.replicas.iter().map(Id::to_string).collect();
        write!(f, "no replica of the shard is left, expected one of {}", names.join(", "))
    }
}

impl std::error::Error for Lost {}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids<const N: usize>(ids: [u64; N]) -> Vec<Id> {
        ids.map(Id).to_vec()
    }

    fn next(view: &View, members: &[Id], target: &[Id], ready: Option<(u64, Id)>) -> View {
        view.next(&Change { epoch: 2, members, target, ready }).unwrap().expect("another view")
    }

    #[test]
    fn a_backup_succeeds_and_a_learner_takes_its_place() {
        let view = View::found(1, &ids([1, 2]));
        let view = next(&view, &ids([2, 3]), &ids([3, 2]), None);
        let expected = View { number: 2 << 32, replicas: ids([2]), learners: ids([3]) };
        assert_eq!(view, expected);
        let view = next(&view, &ids([2, 3]), &ids([3, 2]), Some((view.number, Id(3))));
        let expected = View { number: (2 << 32) + 1, replicas: ids([3, 2]), learners: ids([]) };
        assert_eq!(view, expected);
    }

    #[test]
    fn a_copy_is_given_away_when_all_have_taken_it_over() {
        let (members, target) = (ids([1, 2, 3, 4]), ids([3, 4]));
        let view = next(&View::found(1, &ids([1, 2])), &members, &target, None);
        let view = next(&view, &members, &target, Some((view.number, Id(3))));
        assert_eq!((&view.replicas, &view.learners), (&ids([1, 2, 3]), &ids([4])));
        let view = next(&view, &members, &target, Some((view.number, Id(4))));
        assert_eq!((&view.replicas, &view.learners), (&target, &ids([])));
    }

    #[test]
    fn a_report_of_another_view_is_void() {
        let (members, target) = (ids([1, 2]), ids([1, 2]));
        let view = next(&View::found(1, &ids([1])), &members, &target, None);
        for ready in [Some((view.number - 1, Id(2))), Some((view.number, Id(9)))] {
            let change = Change { epoch: 2, members: &members, target: &target, ready };
            assert_eq!(view.next(&change), Ok(None));
        }
    }

    #[test]
    fn without_a_replica_the_shard_is_lost() {
        let view = View::found(1, &ids([1, 2]));
        let target = ids([3]);
        let change = Change { epoch: 2, members: &target, target: &target, ready: None };
        let lost = view.next(&change).unwrap_err();
        assert_eq!(
            lost.to_string(),
            "no replica of the shard is left, expected one of 0000000000000001, 0000000000000002"
        );
    }
}
