//! First epoch of a rank that trains with servers: waiting for it, and finding the reason for a long wait.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde_json::Value;
use thinwire_job::elastic::{JobAddress, Operator, Presence};
use thinwire_member::Epoch;

use super::messages;

/// Interval at which a waiting process checks for refusals.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest wait for the coordinator's answer about the reason.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for the first epoch that includes this process and has the given number of ranks, if one is given.
///
/// # Errors
/// If the job has ended or refuses this process, or no such epoch begins within `timeout`.
pub fn first_epoch(
    presence: &Presence,
    seat: &JobAddress,
    ranks: Option<u32>,
    timeout: Duration,
) -> Result<Epoch> {
    let (begun, mut seen, mut explained) = (Instant::now(), 0, false);
    let deadline = begun + timeout;
    loop {
        if begun.elapsed() > messages::EXPLAINED_AFTER && !std::mem::replace(&mut explained, true) {
            messages::delayed(&why_waiting(seat), timeout);
        }
        if let Some(epoch) = presence.wait(seen, LOOK_EVERY) {
            seen = epoch.number;
            if ranks.is_none_or(|ranks| epoch.members.len() == ranks as usize) {
                return Ok(epoch);
            }
        }
        if let Some(reason) = presence.refusal() {
            return Err(anyhow!("the coordinator refuses this rank: {reason}"));
        }
        if presence.is_over() {
            return Err(anyhow!("the job is over"));
        }
        if Instant::now() >= deadline {
            let of = ranks.map_or(String::new(), |ranks| format!(" with {ranks} ranks"));
            let seconds = timeout.as_secs_f64().ceil();
            return Err(anyhow!("no epoch of the job{of} began within {seconds:.0} s"));
        }
    }
}

/// Returns the reason why no epoch begins, and the absent members of the last epoch.
fn why_waiting(seat: &JobAddress) -> String {
    let operator = Operator::connect(&seat.coordinator, &seat.token, PATIENCE);
    let status = operator.and_then(|mut operator| operator.status());
    let Ok(status) = status else { return "the coordinator does not answer".to_owned() };
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    let reason = status["waiting"].as_str().unwrap_or("the ranks for an epoch are not there yet");
    let members = status["members"].as_array().into_iter().flatten();
    let away = members.filter(|it| matches!(it["standing"].as_str(), Some("lost" | "silent")));
    let away: Vec<String> = away
        .map(|it| format!("rank {} ({})", it["rank"], it["id"].as_str().unwrap_or_default()))
        .collect();
    match away.is_empty() {
        true => reason.to_owned(),
        false => format!("{reason}; away: {}", away.join(", ")),
    }
}
