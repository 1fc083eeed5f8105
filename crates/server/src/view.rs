//! Views of a shard: its replicas and learners, as decided by the coordinator.
//!
//! Each view follows from the previous one. Law: each replica of a view was a replica of the previous
//! view, or the learner that was reported as ready in it. So each replica has every write that was
//! acknowledged before.

use thinwire_member::Id;

/// Replicas and learners of a shard in one view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Number of the view: epoch of the servers in the upper 32 bits, count within the epoch in the lower.
    pub number: u64,
    /// Servers that have all acknowledged writes: the primary first, then the backups.
    pub replicas: Vec<Id>,
    /// Servers that are taking over a copy.
    pub learners: Vec<Id>,
}

/// Reason for a new view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// Epoch of the servers.
    pub epoch: u32,
    /// Servers in this epoch.
    pub members: &'a [Id],
    /// Servers that should have the shard, the intended primary first.
    pub target: &'a [Id],
    /// Learner that was reported as ready, with the number of the view in which it was reported.
    pub ready: Option<(u64, Id)>,
}

/// Error for a shard that has no replica left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no replica of the shard is left, expected one of {}",
    .replicas.iter().map(Id::to_string).collect::<Vec<_>>().join(", ")
)]
pub struct Lost {
    /// Replicas of the last view.
    pub replicas: Vec<Id>,
}

/// Role of a server in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Primary,
    Backup,
    Learner,
    None,
}

impl View {
    /// Returns the first view of a shard, on servers that all start without a write.
    pub fn found(epoch: u32, target: &[Id]) -> View {
        View { number: u64::from(epoch) << 32, replicas: target.to_vec(), learners: Vec::new() }
    }

    /// Returns the primary.
    pub fn primary(&self) -> Option<Id> {
        self.replicas.first().copied()
    }

    /// Returns the next view, or `None` if nothing changes.
    ///
    /// # Errors
    /// If no replica is in the epoch.
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
        // Replicas that are to be replaced stay until all learners have a complete copy, and while none of those
        // servers is there that should have the shard.
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
