//! State of an elastic job as JSON, for `thinwire top`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thinwire_link::endpoint::MESSAGE_BYTES_MAX;
use thinwire_member::{Id, Standing};

use super::envelope::End;
use super::event::waiting;
use super::roles::{RoleRegistry, RoleState, ServerRole};

/// Facts about a process, from its last report.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Activity of the process.
    pub standing: Option<Standing>,
    /// Last step of the process's state.
    pub done: Option<u64>,
    /// Figures that users see.
    pub figures: Option<Value>,
    /// Time of the last report, while the process is connected.
    pub heard: Option<Instant>,
}

impl Known {
    /// Returns the standing of the process in a word: `lost` if it is not connected, `silent` if its last
    /// report is older than `silence`.
    fn word(&self, now: Instant, silence: Duration) -> &'static str {
        let Some(heard) = self.heard else { return "lost" };
        match self.standing {
            // Four heartbeats are missing. A process that has not reported yet misses none.
            Some(_) if now.saturating_duration_since(heard) > silence / 2 => "silent",
            None | Some(Standing::Newcomer) => "newcomer",
            Some(Standing::Running) => "running",
            Some(Standing::Halted) => "halted",
        }
    }
}

/// Most bytes of a state with figures, since the figures of very many processes may be too long for a
/// message.
const BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;

/// Returns the state of the job: `epoch` (0 before the first), `step` with which it began, `target`, `min`,
/// `max`, `waiting` (a text or null), `end` (`complete`, `stop` or null), `members` by rank and `newcomers`.
/// Each of these has `id`, `rank` (null for a newcomer), `standing` (`newcomer`, `running`, `halted`,
/// `silent` or `lost`), `step` and `figures`. `servers` is null for a job without servers; otherwise it has
/// the same fields except `end`, and the figures of the view service.
pub fn describe(roles: &RoleRegistry, end: Option<End>, now: Instant) -> String {
    let text = |shown| state(roles, shown, end, now).to_string();
    let all = text(Shown::All);
    if all.len() > BYTES_MAX { text(Shown::Rank0) } else { all }
}

/// Processes whose figures are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    All,
    Rank0,
}

fn state(roles: &RoleRegistry, shown: Shown, end: Option<End>, now: Instant) -> Value {
    let mut state = role_state(&roles.workers, shown, now);
    state["end"] = json!(end.map(|end| match end {
        End::Complete => "complete",
        End::Stop => "stop",
    }));
    state["servers"] = json!(roles.servers.as_ref().map(|it| servers(it, shown, now)));
    state
}

fn servers(servers: &ServerRole, shown: Shown, now: Instant) -> Value {
    let mut state = role_state(&servers.role_state, shown, now);
    servers.views.stats().into_iter().for_each(|(name, figure)| state[name] = figure);
    state
}

fn role_state(role_state: &RoleState, shown: Shown, now: Instant) -> Value {
    let (coordinator_state, epoch) = (&role_state.coordinator_state, role_state.epoch());
    let members = epoch.map_or(&[][..], |epoch| &epoch.members);
    let options = coordinator_state.options();
    let unknown = Known::default();
    let process = |id: Id, rank: Option<usize>| {
        let known = role_state.known.get(&id).unwrap_or(&unknown);
        json!({
            "id": id.to_string(),
            "rank": rank,
            "standing": known.word(now, options.silence),
            "step": known.done,
            "figures": known.figures.as_ref().filter(|_| shown == Shown::All || rank == Some(0)),
        })
    };
    let ranks = members.iter().enumerate().map(|(rank, id)| process(*id, Some(rank)));
    let newcomers =
        role_state.known.keys().filter(|id| !members.contains(id)).map(|id| process(*id, None));
    let wait = coordinator_state.roster().and_then(|roster| roster.waiting());
    json!({
        "epoch": epoch.map_or(0, |epoch| epoch.number),
        "step": epoch.map_or(0, |epoch| epoch.done),
        "target": coordinator_state.target(),
        "min": options.min,
        "max": options.max,
        "waiting": wait.map(|wait| waiting(role_state.role, wait)),
        "members": ranks.collect::<Vec<_>>(),
        "newcomers": newcomers.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_connected_or_not_heard_of_is_not_running() {
        let (begun, silence) = (Instant::now(), Duration::from_secs(2));
        let known = |standing, heard| Known { standing, heard, ..Known::default() };
        let running = Some(Standing::Running);
        for (known, after_s, word) in [
            (known(running, Some(begun)), 0.9, "running"),
            (known(running, Some(begun)), 1.1, "silent"),
            (known(running, None), 0.0, "lost"),
            (known(Some(Standing::Halted), Some(begun)), 0.0, "halted"),
            (known(None, Some(begun)), 9.0, "newcomer"),
        ] {
            assert_eq!(known.word(begun + Duration::from_secs_f64(after_s), silence), word);
        }
    }
}
