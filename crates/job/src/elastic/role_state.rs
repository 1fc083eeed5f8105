//! State of one role, as the coordinator knows it: its roster, and what is known of its processes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use thinwire_member::{Epoch, Id, Report};

use super::coordinator_state::CoordinatorState;
use super::job_spec::JobSpec;
use super::role::Role;
use super::status::Known;

/// Epochs whose keys are kept in the store: some process may still be on its way to one of them.
const EPOCHS_KEPT: usize = 4;

/// Processes of one role, as the coordinator knows them.
pub struct RoleState {
    pub role: Role,
    pub coordinator_state: CoordinatorState,
    /// Job spec of the role, once a process with its fingerprint has joined.
    spec: Option<JobSpec>,
    pub known: BTreeMap<Id, Known>,
    /// Numbers of the epochs whose keys may be in the store.
    epochs: BTreeSet<u32>,
    /// Whether there is somebody to wait for; before that, no news is worth telling.
    pub has_begun: bool,
}

impl RoleState {
    pub fn new(role: Role, coordinator_state: CoordinatorState) -> RoleState {
        let has_begun = coordinator_state.roster().is_some_and(|roster| roster.epoch().is_some());
        let (known, epochs) = (BTreeMap::new(), BTreeSet::new());
        RoleState { role, coordinator_state, spec: None, known, epochs, has_begun }
    }

    /// Returns the last epoch that has started.
    pub fn epoch(&self) -> Option<&Epoch> {
        self.coordinator_state.roster().and_then(|roster| roster.epoch())
    }

    /// Returns when a tick is due, if anybody needs one.
    pub fn deadline(&self) -> Option<Duration> {
        self.coordinator_state.deadline().filter(|_| self.has_begun)
    }

    /// Returns the reason why a process cannot take part, as it is told to the process and to people here.
    pub fn objection(&self, spec: &JobSpec) -> Option<(String, String)> {
        let noun = self.role.noun();
        let (here, there) = (format!("this {noun}"), "it".to_owned());
        let say = |what: &str, found: &str, expected: &str| {
            let say = |who| {
                format!("{noun}s disagree on {what}: {who} has {found}, the job has {expected}")
            };
            (say(here.as_str()), say(there.as_str()))
        };
        if let Some(job) = &self.spec {
            return spec.difference(job).map(|(name, found, expected)| say(name, found, expected));
        }
        // The coordinator was restarted, and knows the hash alone.
        let (found, expected) =
            (spec.fingerprint(), self.coordinator_state.roster()?.fingerprint()?);
        let said = |hash| format!("fingerprint {hash:016x}");
        let expected = (found != expected).then(|| format!("{expected:016x}"))?;
        Some(say("model, data or settings", &said(found), &expected))
    }

    /// Takes in a process whose job spec is that of its role.
    pub fn joined(&mut self, id: Id, spec: JobSpec, now: Instant, at: Duration) {
        self.spec.get_or_insert(spec);
        self.known.entry(id).or_default().heard = Some(now);
        self.has_begun = true;
        self.coordinator_state.arrived(at);
    }

    /// Takes note of the report of a process, for people.
    pub fn heard(&mut self, id: Id, report: &Report, now: Instant) {
        if let Some(known) = self.known.get_mut(&id) {
            (known.standing, known.heard) = (Some(report.standing), Some(now));
            known.done = report.state.map(|state| state.done);
        }
    }

    /// Takes note of an epoch that is proposed: its members may meet in the store.
    pub fn proposed(&mut self, number: u32) {
        self.epochs.insert(number);
    }

    /// Forgets old epochs; returns the parts of the store where their members met.
    pub fn forget_epochs(&mut self) -> Vec<String> {
        let mut parts = Vec::new();
        while self.epochs.len() > EPOCHS_KEPT
            && let Some(oldest) = self.epochs.pop_first()
        {
            parts.push(self.role.prefix(oldest));
        }
        parts
    }

    /// Forgets what is known of processes that are neither here nor in the epoch.
    pub fn forget_processes(&mut self, is_here: impl Fn(&Id) -> bool) {
        let epoch = self.coordinator_state.roster().and_then(|roster| roster.epoch());
        let is_member = |id: &Id| epoch.is_some_and(|epoch| epoch.contains(*id));
        self.known.retain(|id, _| is_here(id) || is_member(id));
    }
}
