//! Events in the life of an elastic job, for the log and for `--json`.

mod servers;

use std::time::SystemTime;

use serde_json::{Value, json};
use thinwire_member::{Epoch, Gone, Id, Interruption, Note, Wait};

use super::envelope::End;
use super::role::Role;

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

    /// Returns the event for a note of the workers' roster.
    pub(super) fn of(note: &Note, epoch: Option<&Epoch>) -> Event {
        match note {
            Note::Started { number, joined, gone, interruption } => {
                started(*number, (joined, gone, *interruption), epoch)
            }
            Note::Rewound { number, from, to } => rewound(*number, *from, *to),
            Note::Adopted { number } => {
                let ranks = count(epoch.map_or(0, |epoch| epoch.members.len()), "rank");
                Event::new(
                    format!("epoch {number} of {ranks} continues under this coordinator"),
                    json!({ "event": "adopted", "epoch": number }),
                )
            }
            Note::Waiting(wait) => {
                let reason = waiting(Role::Worker, *wait);
                Event::new(
                    format!("waiting: {reason}"),
                    json!({ "event": "waiting", "reason": reason }),
                )
            }
        }
    }

    pub(super) fn refused(id: Id, reason: &str) -> Event {
        let process = if id.is_server() { "server" } else { "process" };
        Event::new(
            format!("refused {process} {id}: {reason}"),
            json!({ "event": "refused", "id": id.to_string(), "reason": reason }),
        )
    }

    pub(super) fn resized(target: u32) -> Event {
        Event::new(
            format!("ranks wanted now: {target}"),
            json!({ "event": "resized", "target": target }),
        )
    }

    pub(super) fn resumed(role: Role, place: &str, number: u32) -> Event {
        if role == Role::Server {
            return servers::resumed(place, number);
        }
        Event::new(
            format!("the coordinator continues with epoch {number} from {place}"),
            json!({ "event": "resumed", "epoch": number }),
        )
    }

    pub(super) fn unsaved(place: &str, error: &str) -> Event {
        Event::new(
            format!(
                "cannot save the coordinator's state in {place}: {error}; nothing changes until it can"
            ),
            json!({ "event": "unsaved", "path": place, "reason": error }),
        )
    }

    /// Another process leads the job. This coordinator has found out when it had to save its state.
    pub(super) fn deposed(place: &str) -> Event {
        Event::new(
            format!("another coordinator has taken over at {place}; this one has ended"),
            json!({ "event": "deposed", "store": place }),
        )
    }

    /// This process coordinates a job that several processes could coordinate.
    pub(super) fn leading(address: &str) -> Event {
        Event::new(
            format!("this process coordinates the job, at {address}"),
            json!({ "event": "leading", "address": address }),
        )
    }

    /// Another process coordinates the job, and this one stands by.
    pub(super) fn following(address: &str) -> Event {
        Event::new(
            format!("standing by: the job's coordinator is at {address}"),
            json!({ "event": "following", "address": address }),
        )
    }

    /// The store does not answer.
    pub(super) fn storeless(reason: &str) -> Event {
        Event::new(
            format!("{reason}; training continues, and nothing else changes until it is back"),
            json!({ "event": "storeless", "reason": reason }),
        )
    }

    /// The store answers again.
    pub(super) fn stored(place: &str) -> Event {
        Event::new(format!("{place} is back"), json!({ "event": "stored", "store": place }))
    }

    /// An epoch has started, as a process that follows the coordinator sees it.
    pub(super) fn seen(epoch: u64, done: u64, members: &[String]) -> Event {
        let ranks = members.len();
        Event::new(
            format!("epoch {epoch}{}: {}", from_step(done), count(ranks, "rank")),
            json!({
                "event": "started", "epoch": epoch, "ranks": ranks, "step": done, "members": members,
            }),
        )
    }

    /// This process could lead, but cannot host the coordinator.
    pub(super) fn idle(reason: &str) -> Event {
        Event::new(
            format!("this process cannot coordinate the job: {reason}"),
            json!({ "event": "idle", "reason": reason }),
        )
    }

    pub(super) fn over(end: End) -> Event {
        match end {
            End::Complete => Event::complete(),
            End::Stop => Event::stopping(),
        }
    }

    fn complete() -> Event {
        Event::new("all steps are done".to_owned(), json!({ "event": "complete" }))
    }

    fn stopping() -> Event {
        Event::new("all processes are to leave".to_owned(), json!({ "event": "stopping" }))
    }
}

type Change<'a> = (&'a [Id], &'a [(Id, Gone)], Option<Interruption>);

fn started(number: u32, change: Change<'_>, epoch: Option<&Epoch>) -> Event {
    let (joined, gone, interruption) = change;
    let members = epoch.map_or(&[][..], |epoch| &epoch.members);
    let ranks = members.len();
    let done = epoch.map_or(0, |epoch| epoch.done);
    let state_sources = epoch.map_or(0, |epoch| epoch.state_sources);
    let (from, changes) = (from_step(done), changes(change));
    let text = format!("epoch {number}{from}: {}{changes}", count(ranks, "rank"));
    let interruption = interruption.map(interrupted);
    let gone = gone.iter().map(|(id, why)| json!({ "id": id.to_string(), "why": why_gone(*why) }));
    let json = json!({
        "event": "started",
        "epoch": number,
        "ranks": ranks,
        "step": done,
        "holders": state_sources,
        "members": members.iter().map(Id::to_string).collect::<Vec<_>>(),
        "joined": joined.iter().map(Id::to_string).collect::<Vec<_>>(),
        "gone": gone.collect::<Vec<_>>(),
        "interruption": interruption,
    });
    Event::new(text, json)
}

/// Returns the step with which an epoch begins. Step 0 is not named: in the first epoch, ranks find out by themselves
/// whether there is a checkpoint, and workers of servers may count no steps.
fn from_step(done: u64) -> String {
    if done > 0 { format!(" from step {done}") } else { String::new() }
}

/// Returns which processes have joined and left, and the reason if it is not obvious.
fn changes((joined, gone, interruption): Change<'_>) -> String {
    let mut text = String::new();
    if !joined.is_empty() {
        text += &format!("; joined: {}", list(joined.iter().map(Id::to_string)));
    }
    if !gone.is_empty() {
        text += &format!("; gone: {}", list(gone.iter().map(|(id, why)| gone_text(*id, *why))));
    }
    // A loss explains itself, unless two members cannot reach each other.
    let is_cut = |(_, why): &(Id, Gone)| *why == Gone::Cut;
    let explains = (joined.is_empty() && gone.is_empty()) || gone.iter().any(is_cut);
    if let Some(reason) = interruption.filter(|_| explains) {
        text += &format!("; {}", interrupted(reason));
    }
    text
}

fn interrupted(interruption: Interruption) -> String {
    match interruption {
        Interruption::Lost { by, of } => format!("{by} has lost its connection to {of}"),
        Interruption::Halted(id) => format!("{id} has given up its step"),
        Interruption::Away(id) => format!("{id} was lost"),
        Interruption::Unstarted { number } => format!("epoch {number} did not start in time"),
    }
}

fn rewound(number: u32, from: u64, to: Option<u64>) -> Event {
    let state = match to {
        Some(step) => format!("continues from step {step}"),
        None => "begins with the last checkpoint, or at step 0 if there is none".to_owned(),
    };
    Event::new(
        format!(
            "steps are lost: no process has the state of step {from} or later; epoch {number} {state}"
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
        Gone::Closed => "connection closed",
        Gone::Silent => "silent",
        Gone::Cut => "cut off",
        Gone::Resized => "resized",
    }
}

/// Returns in words why a process is a spare in a job that has this many ranks.
pub(super) fn spare(ranks: u32) -> String {
    let ranks = count(ranks as usize, "rank");
    format!(
        "the job has the {ranks} that it wants: this process is a spare, and joins when one is lost or \
         `thinwire resize` asks for more"
    )
}

/// Returns in words why no epoch can be formed.
pub(super) fn waiting(role: Role, wait: Wait) -> String {
    match wait {
        Wait::Members { have, min } => {
            format!("{have} of at least {min} {}s are there", role.noun())
        }
        Wait::Quorum { have, need } => {
            format!(
                "reachable members of the last epoch: {have}, expected at least {need}; the unreachable ones \
                 may continue by themselves"
            )
        }
        Wait::StateSource { done: 0 } => "no member of the last epoch is reachable".to_owned(),
        Wait::StateSource { done } => {
            format!("no reachable member has the state of step {done} or later")
        }
        Wait::Proposed { number } => {
            format!(
                "epoch {number} may have started elsewhere, and too few of its members are reachable to rule \
                 that out"
            )
        }
        Wait::Unknown => "no member of the job has reported yet".to_owned(),
    }
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Lists the first few of a number of texts, so that an event stays one short line.
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
            state_sources: 1,
            done: 40,
            target: 2,
        };
        let (joined, gone) = (vec![Id(3)], vec![(Id(2), Gone::Ended)]);
        let interruption = Some(Interruption::Away(Id(2)));
        let note = Note::Started { number: 3, joined, gone, interruption };
        let event = Event::of(&note, Some(&epoch));
        let said = "epoch 3 from step 40: 2 ranks; joined: 0000000000000003; \
                    gone: 0000000000000002 (ended)";
        assert_eq!(event.text, said);
        assert_eq!(event.json["gone"][0], json!({ "id": "0000000000000002", "why": "ended" }));
        assert_eq!(event.json["ranks"], 2);
        assert_eq!(event.json["members"], json!(["0000000000000001", "0000000000000003"]));
    }

    #[test]
    fn an_epoch_of_the_same_members_tells_who_has_reported_which_loss() {
        let lost = Some(Interruption::Lost { by: Id(1), of: Id(2) });
        let note = |gone| Note::Started { number: 3, joined: Vec::new(), gone, interruption: lost };
        let reason = "0000000000000001 has lost its connection to 0000000000000002";
        let event = Event::of(&note(Vec::new()), None);
        assert_eq!(event.text, format!("epoch 3: 0 ranks; {reason}"));
        assert_eq!(event.json["interruption"], reason);
        let cut = Event::of(&note(vec![(Id(2), Gone::Cut)]), None);
        assert!(cut.text.ends_with(&format!("(cut off); {reason}")), "{}", cut.text);
        let ended = Event::of(&note(vec![(Id(2), Gone::Ended)]), None);
        assert!(ended.text.ends_with("(ended)"), "{}", ended.text);
    }

    #[test]
    fn a_thousand_joiners_are_one_short_line() {
        let joined: Vec<Id> = (0..1000).map(Id).collect();
        let event = Event::of(
            &Note::Started { number: 1, joined, gone: Vec::new(), interruption: None },
            None,
        );
        assert!(event.text.ends_with("0000000000000007 and 992 more"), "{}", event.text);
    }

    #[test]
    fn an_epoch_whose_ranks_have_told_no_step_claims_none() {
        // The first epoch, and workers of servers that count no steps.
        for state_sources in [0, 1] {
            let epoch = Epoch {
                number: 1,
                coordinator: Id(9),
                members: vec![Id(1)],
                state_sources,
                done: 0,
                target: 1,
            };
            let (joined, gone) = (vec![Id(1)], vec![(Id(2), Gone::Closed)]);
            let note = Note::Started { number: 1, joined, gone, interruption: None };
            let event = Event::of(&note, Some(&epoch));
            let said = "epoch 1: 1 rank; joined: 0000000000000001; \
                        gone: 0000000000000002 (connection closed)";
            assert_eq!(event.text, said);
            assert_eq!(event.json["step"], 0);
        }
        assert_eq!(Event::seen(1, 0, &["1".to_owned()]).text, "epoch 1: 1 rank");
        assert_eq!(Event::seen(2, 7, &["1".to_owned()]).text, "epoch 2 from step 7: 1 rank");
        let waiting = Event::of(&Note::Waiting(Wait::StateSource { done: 0 }), None);
        assert_eq!(waiting.text, "waiting: no member of the last epoch is reachable");
    }

    #[test]
    fn waiting_names_both_values() {
        let event = Event::of(&Note::Waiting(Wait::Members { have: 1, min: 2 }), None);
        assert_eq!(event.text, "waiting: 1 of at least 2 ranks are there");
    }
}
