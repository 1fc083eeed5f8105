//! Backups and learners: they store the primary's entries and report their last one.

use thinwire_member::Id;

use crate::clocks::Clocks;
use crate::message::Message;
use crate::shard::{Action, Shard};
use crate::view::Part;
use crate::write::Entry;

impl Shard {
    /// Handles entries after number `after` from the primary of this view.
    pub(super) fn follow(
        &mut self,
        from: Id,
        after: u64,
        entries: Vec<Entry>,
        committed: u64,
        actions: &mut Vec<Action>,
    ) {
        let kept = self.entries_max();
        if let Some(copy) = &mut self.copy {
            for (number, entry) in (after + 1..).zip(entries) {
                // Entries after a gap are sent again.
                if number == copy.matched + 1 {
                    copy.log.put(number, entry);
                    copy.matched = number;
                }
            }
            while copy.log.committed() < committed.min(copy.matched) {
                actions.push(Action::Apply(copy.commit()));
            }
            copy.log.trim(kept);
        }
        self.answer(from, actions);
    }

    /// Adopts the state after entry `last`.
    pub(super) fn load(&mut self, from: Id, last: u64, clocks: Clocks, actions: &mut Vec<Action>) {
        let is_event = self.copy.as_ref().is_none_or(|copy| copy.log.committed() < last);
        if is_event && matches!(self.view.part(self.id), Part::Backup | Part::Learner) {
            let copy = self.copy.get_or_insert_default();
            copy.log.advance(last);
            (copy.clocks, copy.matched) = (clocks, copy.matched.max(last));
            actions.push(Action::Load);
        }
        self.answer(from, actions);
    }

    fn answer(&self, to: Id, actions: &mut Vec<Action>) {
        let last = self.copy.as_ref().map(|copy| copy.matched);
        let committed = self.committed().unwrap_or(0);
        let message = Message::Have { view: self.view.number, last, committed };
        actions.push(Action::Forward { to, message });
    }

    /// Number of committed entries that servers keep. A replica with all entries may lag by this many
    /// commits, since each entry carries the commits that made room for it.
    pub(super) fn entries_max(&self) -> u64 {
        self.options.uncommitted_max + 1
    }
}
