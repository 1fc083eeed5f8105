//! Events in the life of a job's servers. Their kinds have other names than the kinds of workers'
//! events, because most readers of events look for the epochs of workers.

use serde_json::json;
use thinwire_member::{Epoch, Gone, Id, Note};

use super::{Change, Event, changes, count, interrupted, waiting, why_gone};
use crate::elastic::role::Role;

impl Event {
    /// Returns the event for a note of the servers' roster.
    pub(in crate::elastic) fn of_servers(note: &Note, epoch: Option<&Epoch>) -> Event {
        match note {
            Note::Started { number, joined, gone, interruption } => {
                started(*number, (joined, gone, *interruption), epoch)
            }
            Note::Rewound { number, .. } => Event::new(
                format!("epoch {number} of servers has no server of the previous epoch"),
                json!({ "event": "servers_replaced", "epoch": number }),
            ),
            Note::Adopted { number } => Event::new(
                format!("epoch {number} of servers continues under this coordinator"),
                json!({ "event": "servers_adopted", "epoch": number }),
            ),
            Note::Waiting(wait) => {
                let reason = waiting(Role::Server, *wait);
                Event::new(
                    format!("waiting for servers: {reason}"),
                    json!({ "event": "servers_waiting", "reason": reason }),
                )
            }
        }
    }
}

pub(super) fn resumed(place: &str, number: u32) -> Event {
    Event::new(
        format!("the coordinator continues with epoch {number} of servers from {place}"),
        json!({ "event": "servers_resumed", "epoch": number }),
    )
}

fn started(number: u32, change: Change<'_>, epoch: Option<&Epoch>) -> Event {
    let (joined, gone, interruption) = change;
    let members = epoch.map_or(&[][..], |epoch| &epoch.members);
    let servers = count(members.len(), Role::Server.noun());
    let why = |(id, why): &(Id, Gone)| json!({ "id": id.to_string(), "why": why_gone(*why) });
    let ids = |ids: &[Id]| ids.iter().map(Id::to_string).collect::<Vec<_>>();
    let json = json!({
        "event": "servers_started",
        "epoch": number,
        "servers": members.len(),
        "members": ids(members),
        "joined": ids(joined),
        "gone": gone.iter().map(why).collect::<Vec<_>>(),
        "interruption": interruption.map(interrupted),
    });
    Event::new(format!("epoch {number} of servers: {servers}{}", changes(change)), json)
}

#[cfg(test)]
mod tests {
    use thinwire_member::Wait;

    use super::*;

    #[test]
    fn an_epoch_of_servers_is_told_apart_from_one_of_workers() {
        let (first, second) = (Role::Server.id(1), Role::Server.id(2));
        let (coordinator, members) = (Id(9), vec![first]);
        let epoch = Epoch { number: 2, coordinator, members, state_sources: 1, done: 0, target: 4 };
        let gone = vec![(second, Gone::Ended)];
        let note = Note::Started { number: 2, joined: Vec::new(), gone, interruption: None };
        let event = Event::of_servers(&note, Some(&epoch));
        let said = "epoch 2 of servers: 1 server; gone: 8000000000000002 (ended)";
        assert_eq!(event.text, said);
        assert_eq!(event.json["event"], "servers_started");
        assert_eq!(event.json["members"], json!(["8000000000000001"]));
        let event = Event::of_servers(&Note::Waiting(Wait::Members { have: 1, min: 2 }), None);
        assert_eq!(event.text, "waiting for servers: 1 of at least 2 servers are there");
        assert_eq!(Event::refused(first, "no").text, "refused server 8000000000000001: no");
    }
}
