//! Events in the life of an elastic job, for the log and for `--json`.

use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};
use thinwire_member::{Epoch, Gone, Id, Note, Wait};

/// Event in the life of an elastic job, as its coordinator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Time of the event.
    pub time: SystemTime,
    /// One line for people.
    pub text: String,
    /// The event as a JSON object: `event` names the kind, the other fields depend on it.
    pub json: Value,
}

impl Event {
    fn new(text: String, json: Value) -> Event {
        Event { time: SystemTime::now(), text, json }
    }

    /// The event that a coordinator's note tells of.
    pub(super) fn of(note: &Note, epoch: Option<&Epoch>) -> Event {
        match note {
            Note::Started { number, joined, gone } => started(*number, joined, gone, epoch),
            Note::Rewound { number, from, to } => rewound(*number, *from, *to),
            Note::Waiting(wait) => {
                let reason = waiting(*wait);
                Event::new(
                    format!("waiting: {reason}"),
                    json!({ "event": "waiting", "reason": reason }),
                )
            }
            Note::Superseded { by } => Event::new(
                format!("coordinator {by} has taken over"),
                json!({ "event": "superseded", "by": by.to_string() }),
            ),
        }
    }

    pub(super) fn refused(id: Id, reason: &str) -> Event {
        Event::new(
            format!("refused process {id}: {reason}"),
            json!({ "event": "refused", "id": id.to_string(), "reason": reason }),
        )
    }

    pub(super) fn resized(target: u32) -> Event {
        Event::new(
            format!("{target} ranks are wanted now"),
            json!({ "event": "resized", "target": target }),
        )
    }

    pub(super) fn resumed(path: &Path, number: u32) -> Event {
        Event::new(
            format!("the coordinator goes on with epoch {number} from {}", path.display()),
            json!({ "event": "resumed", "epoch": number }),
        )
    }

    pub(super) fn unsaved(path: &Path, error: &str) -> Event {
        let path = path.display().to_string();
        Event::new(
            format!(
                "cannot save the coordinator's state in {path}: {error}; nothing changes until it can"
            ),
            json!({ "event": "unsaved", "path": path, "reason": error }),
        )
    }

    pub(super) fn complete() -> Event {
        Event::new("all steps are done".to_owned(), json!({ "event": "complete" }))
    }

    pub(super) fn stopping() -> Event {
        Event::new("all processes are to leave".to_owned(), json!({ "event": "stopping" }))
    }
}

fn started(number: u32, joined: &[Id], gone: &[(Id, Gone)], epoch: Option<&Epoch>) -> Event {
    let members = epoch.map_or(&[][..], |epoch| &epoch.members);
    let ranks = members.len();
    let done = epoch.map_or(0, |epoch| epoch.done);
    let mut text = format!("epoch {number} from step {done}: {}", count(ranks, "rank"));
    if !joined.is_empty() {
        text += &format!("; joined: {}", list(joined.iter().map(Id::to_string)));
    }
    if !gone.is_empty() {
        text += &format!("; gone: {}", list(gone.iter().map(|(id, why)| gone_text(*id, *why))));
    }
    let gone = gone.iter().map(|(id, why)| json!({ "id": id.to_string(), "why": why_gone(*why) }));
    let json = json!({
        "event": "started",
        "epoch": number,
        "ranks": ranks,
        "step": done,
        "members": members.iter().map(Id::to_string).collect::<Vec<_>>(),
        "joined": joined.iter().map(Id::to_string).collect::<Vec<_>>(),
        "gone": gone.collect::<Vec<_>>(),
    });
    Event::new(text, json)
}

fn rewound(number: u32, from: u64, to: Option<u64>) -> Event {
    let state = match to {
        Some(step) => format!("step {step}"),
        None => "the last checkpoint, or begins anew".to_owned(),
    };
    Event::new(
        format!(
            "epoch {number} goes on from {state}: no process has the state of step {from} or later"
        ),
        json!({ "event": "rewound", "epoch": number, "from": from, "to": to }),
    )
}

fn gone_text(id: Id, why: Gone) -> String {
    format!("{id} ({})", why_gone(why))
}

fn why_gone(why: Gone) -> &'static str {
    match why {
        Gone::Left => "left",
        Gone::Ended => "ended",
        Gone::Silent => "silent",
        Gone::Cut => "cut off",
        Gone::Resized => "resized",
    }
}

/// Returns the reason why no epoch can be formed, in words.
pub(super) fn waiting(wait: Wait) -> String {
    match wait {
        Wait::Members { have, min } => format!("{have} of at least {min} ranks are there"),
        Wait::Quorum { have, need } => {
            format!(
                "{have} of {need} members of the last epoch are reachable, which others may go on with"
            )
        }
        Wait::Holder { done } => {
            format!("no reachable member has the state of step {done} or later")
        }
        Wait::Proposed { number } => {
            format!(
                "epoch {number} may have started elsewhere, and none of its members is reachable"
            )
        }
        Wait::Unknown => "no member of the job has been heard of".to_owned(),
    }
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Lists the first few of many texts, so that an event stays one short line.
fn list(texts: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 8;
    let more = texts.len().saturating_sub(SHOWN);
    let shown: Vec<String> = texts.take(SHOWN).collect();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_told_in_one_line_and_as_json() {
        let epoch = Epoch {
            number: 3,
            coordinator: Id(9),
            members: vec![Id(1), Id(3)],
            holders: 1,
            done: 40,
            target: 2,
        };
        let note =
            Note::Started { number: 3, joined: vec![Id(3)], gone: vec![(Id(2), Gone::Ended)] };
        let event = Event::of(&note, Some(&epoch));
        let said = "epoch 3 from step 40: 2 ranks; joined: 0000000000000003; \
                    gone: 0000000000000002 (ended)";
        assert_eq!(event.text, said);
        assert_eq!(event.json["gone"][0], json!({ "id": "0000000000000002", "why": "ended" }));
        assert_eq!(event.json["ranks"], 2);
        assert_eq!(event.json["members"], json!(["0000000000000001", "0000000000000003"]));
    }

    #[test]
    fn a_thousand_joiners_are_one_short_line() {
        let joined: Vec<Id> = (0..1000).map(Id).collect();
        let event = Event::of(&Note::Started { number: 1, joined, gone: Vec::new() }, None);
        assert!(event.text.ends_with("0000000000000007 and 992 more"), "{}", event.text);
    }

    #[test]
    fn waiting_names_both_values() {
        let event = Event::of(&Note::Waiting(Wait::Members { have: 1, min: 2 }), None);
        assert_eq!(event.text, "waiting: 1 of at least 2 ranks are there");
    }
}
