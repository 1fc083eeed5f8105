//! Members of an elastic job that this launcher has started, with their numbers, devices and ranks.

use std::collections::BTreeSet;

use serde_json::Value;
use thinwire_job::elastic::Id;
use thinwire_job::supervisor::{Epoch, Event};

/// Members started by the launcher, in the order of their numbers, and the ranks of the last epoch.
#[derive(Debug, Default)]
pub struct Children {
    started: Vec<Started>,
    /// Ids of all members of the last epoch, in the order of their ranks.
    ranks: Vec<String>,
}

#[derive(Debug)]
struct Started {
    id: Id,
    /// Index among the running members of this machine; a replacement gets a free index.
    slot: u32,
    lives: bool,
}

impl Children {
    /// Adds a member, and returns its slot.
    pub fn start(&mut self, id: Id) -> u32 {
        let taken: BTreeSet<u32> =
            self.started.iter().filter(|member| member.lives).map(|member| member.slot).collect();
        let slot = (0..).find(|slot| !taken.contains(slot)).expect("slots do not run out");
        self.started.push(Started { id, slot, lives: true });
        slot
    }

    /// Records the end of a member's process.
    pub fn ended(&mut self, member: u32) {
        self.started[member as usize].lives = false;
    }

    /// Returns the id of a member that this launcher started.
    pub fn id(&self, member: u32) -> Id {
        self.started[member as usize].id
    }

    /// Returns rank 0 of the last epoch, if this launcher started it.
    pub fn first(&self) -> Option<u32> {
        self.ranks.first().and_then(|id| self.number(id))
    }

    /// Returns a text of the coordinator with the members' ids replaced by their numbers.
    pub fn named(&self, text: &str) -> String {
        let named = |text: String, (number, member): (u32, &Started)| {
            text.replace(&member.id.to_string(), &format!("member {number}"))
        };
        (0..).zip(&self.started).fold(text.to_owned(), named)
    }

    /// Records an event of the coordinator, and returns the resulting events of the job.
    pub fn note(&mut self, event: &Value) -> Vec<Event> {
        match event["event"].as_str() {
            Some("started") => vec![self.started(event)],
            Some("resized") => {
                let target = event["target"].as_u64().and_then(|target| u32::try_from(target).ok());
                target.into_iter().map(|target| Event::Resized { target }).collect()
            }
            Some("complete") => vec![Event::Complete],
            _ => Vec::new(),
        }
    }

    /// Records the ranks of all members of an epoch, because members may change ranks between epochs.
    fn started(&mut self, event: &Value) -> Event {
        let ids = event["members"].as_array().into_iter().flatten();
        self.ranks = ids.filter_map(Value::as_str).map(str::to_owned).collect();
        let members: BTreeSet<u32> = self.ranks.iter().filter_map(|id| self.number(id)).collect();
        let others = (self.ranks.len() - members.len()) as u32;
        Event::Epoch(Epoch { members, first: self.first(), others })
    }

    fn number(&self, id: &str) -> Option<u32> {
        let started = (0..).zip(&self.started);
        started.filter(|(_, member)| member.id.to_string() == id).map(|(number, _)| number).next()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn children<const N: usize>(ids: [u64; N]) -> Children {
        let mut children = Children::default();
        for id in ids {
            children.start(Id(id));
        }
        children
    }

    fn started(members: &[u64]) -> Value {
        let members: Vec<String> = members.iter().map(|id| Id(*id).to_string()).collect();
        json!({ "event": "started", "members": members })
    }

    #[test]
    fn an_epoch_names_members_by_number_and_counts_others() {
        let mut children = children([70, 71, 72]);
        let epoch = |members: &[u32], first, others| {
            let members = members.iter().copied().collect();
            Event::Epoch(Epoch { members, first, others })
        };
        assert_eq!(children.first(), None);
        assert_eq!(children.note(&started(&[71, 9, 70])), [epoch(&[0, 1], Some(1), 1)]);
        // Rank 0 was a step behind, and is no holder any more.
        assert_eq!(children.note(&started(&[70, 71])), [epoch(&[0, 1], Some(0), 0)]);
        assert_eq!(children.note(&started(&[8])), [epoch(&[], None, 1)]);
    }

    #[test]
    fn other_events_are_understood_or_ignored() {
        let mut children = children([1]);
        let resized = json!({ "event": "resized", "target": 3 });
        assert_eq!(children.note(&resized), [Event::Resized { target: 3 }]);
        assert_eq!(children.note(&json!({ "event": "complete" })), [Event::Complete]);
        assert_eq!(children.note(&json!({ "event": "waiting", "reason": "" })), []);
    }

    #[test]
    fn a_replacement_takes_the_slot_that_has_become_free() {
        let mut children = children([1, 2, 3]);
        children.ended(1);
        assert_eq!((children.start(Id(4)), children.start(Id(5))), (1, 3));
    }

    #[test]
    fn people_read_numbers_instead_of_ids() {
        let text = format!("joined: {}, {}", Id(7), Id(10));
        assert_eq!(children([10]).named(&text), format!("joined: {}, member 0", Id(7)));
    }
}
