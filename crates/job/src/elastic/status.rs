//! State of an elastic job as JSON, for `thinwire top`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use thinwire_member::{Id, Standing};

use super::authority::Authority;
use super::envelope::End;
use super::event::waiting;

/// Last news of a process.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Activity of the process.
    pub standing: Option<Standing>,
    /// Last step of its state.
    pub done: Option<u64>,
    /// Figures for people.
    pub figures: Option<Value>,
}

/// Returns the state of the job: `epoch` (0 before the first), `step` with which it began, `target`, `min`,
/// `max`, `waiting` (a text or null), `end` (`complete`, `stop` or null), `members` by rank and
/// `newcomers`, each with `id`, `rank` (null for a newcomer), `standing`, `step` and `figures`.
pub fn describe(authority: &Authority, known: &BTreeMap<Id, Known>, end: Option<End>) -> String {
    let roster = authority.roster();
    let epoch = roster.and_then(|roster| roster.epoch());
    let members = epoch.map_or(&[][..], |epoch| &epoch.members);
    let ranks =
        members.iter().enumerate().map(|(rank, id)| process(*id, Some(rank), known.get(id)));
    let newcomers = known.iter().filter(|(id, _)| !members.contains(id));
    let newcomers = newcomers.map(|(id, known)| process(*id, None, Some(known)));
    let options = authority.options();
    json!({
        "epoch": epoch.map_or(0, |epoch| epoch.number),
        "step": epoch.map_or(0, |epoch| epoch.done),
        "target": authority.target(),
        "min": options.min,
        "max": options.max,
        "waiting": roster.and_then(|roster| roster.waiting()).map(waiting),
        "end": end.map(|end| match end {
            End::Complete => "complete",
            End::Stop => "stop",
        }),
        "members": ranks.collect::<Vec<_>>(),
        "newcomers": newcomers.collect::<Vec<_>>(),
    })
    .to_string()
}

fn process(id: Id, rank: Option<usize>, known: Option<&Known>) -> Value {
    let standing = known.and_then(|known| known.standing).map(|standing| match standing {
        Standing::Newcomer => "newcomer",
        Standing::Running => "running",
        Standing::Halted => "halted",
    });
    json!({
        "id": id.to_string(),
        "rank": rank,
        "standing": standing,
        "step": known.and_then(|known| known.done),
        "figures": known.and_then(|known| known.figures.as_ref()),
    })
}
