//! Roles that a coordinator manages: the workers, and, if the job has servers, the servers with their views.
//!
//! Each role has a roster, and a record of its processes. A coordinator that has no state and may be a
//! replacement first listens for a while. If a process of a running job reports, the coordinator adopts that
//! job; otherwise it founds one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use thinwire_member::{
    CoordinatorMode, Epoch, Id, Options, Report, Roster, RosterAction, RosterEvent,
};

use super::job_spec::JobSpec;
use super::role::Role;
use super::status::Known;
use crate::elastic::job_address::fresh_id;
use crate::elastic::persistence::{Parts, Persistence, RETURN};
use crate::elastic::views::{Job, Publication, Servers};
use crate::error::Error;

/// Number of epochs whose keys stay in the store, since some process may still be connecting in one of them.
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
    /// Whether the role has begun to wait for processes; before that, no event is reported.
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

    /// Returns when the next tick is due, if one is.
    pub fn deadline(&self) -> Option<Duration> {
        self.coordinator_state.deadline().filter(|_| self.has_begun)
    }

    /// Returns the reason why a process cannot take part, as a text for that process and a text for the
    /// users of the coordinator.
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

    /// Adds a process whose job spec equals its role's.
    pub fn joined(&mut self, id: Id, spec: JobSpec, now: Instant, at: Duration) {
        self.spec.get_or_insert(spec);
        self.known.entry(id).or_default().heard = Some(now);
        self.has_begun = true;
        self.coordinator_state.arrived(at);
    }

    /// Records the report of a process, for display.
    pub fn heard(&mut self, id: Id, report: &Report, now: Instant) {
        if let Some(known) = self.known.get_mut(&id) {
            (known.standing, known.heard) = (Some(report.standing), Some(now));
            known.done = report.state.map(|state| state.done);
        }
    }

    /// Records that an epoch is proposed, because its members may write to the store.
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

    /// Forgets processes that are neither connected nor in the epoch.
    pub fn forget_processes(&mut self, is_here: impl Fn(&Id) -> bool) {
        let epoch = self.coordinator_state.roster().and_then(|roster| roster.epoch());
        let is_member = |id: &Id| epoch.is_some_and(|epoch| epoch.contains(*id));
        self.known.retain(|id, _| is_here(id) || is_member(id));
    }
}

/// State of a coordinator: it has a roster, or does not know yet whether a job exists.
pub enum CoordinatorState {
    /// The coordinator of a job.
    Decided(Box<Roster>),
    /// The coordinator waits for reports, to find out if a job is running.
    Listening {
        /// Id of the coordinator.
        id: Id,
        /// Settings of the job.
        options: Options,
        /// Time of the first arrival.
        since: Option<Duration>,
        /// Time of the next check.
        next: Duration,
    },
}

impl CoordinatorState {
    /// Returns a coordinator that finds out whether a job is under way.
    pub fn listen(id: Id, options: Options) -> CoordinatorState {
        CoordinatorState::Listening { id, options, since: None, next: Duration::ZERO }
    }

    /// Returns the id of the coordinator.
    pub fn id(&self) -> Id {
        match self {
            CoordinatorState::Decided(roster) => roster.id(),
            CoordinatorState::Listening { id, .. } => *id,
        }
    }

    /// Returns the settings of the job.
    pub fn options(&self) -> Options {
        match self {
            CoordinatorState::Decided(roster) => roster.options(),
            CoordinatorState::Listening { options, .. } => *options,
        }
    }

    /// Returns the roster, once there is one.
    pub fn roster(&self) -> Option<&Roster> {
        match self {
            CoordinatorState::Decided(roster) => Some(roster),
            CoordinatorState::Listening { .. } => None,
        }
    }

    /// Returns the number of ranks that the job should have.
    pub fn target(&self) -> u32 {
        self.roster().map_or(self.options().max, Roster::target)
    }

    /// Notes that a process has joined.
    pub fn arrived(&mut self, now: Duration) {
        if let CoordinatorState::Listening { since, .. } = self {
            since.get_or_insert(now);
        }
    }

    /// Returns when a tick is due.
    pub fn deadline(&self) -> Option<Duration> {
        match self {
            CoordinatorState::Decided(roster) => Some(roster.deadline()),
            CoordinatorState::Listening { since, next, .. } => since.map(|_| *next),
        }
    }

    /// Handles an event at time `now`, and returns the actions that follow from it.
    pub fn on(&mut self, event: RosterEvent, now: Duration) -> Vec<RosterAction> {
        self.begin(&event, now);
        match self {
            CoordinatorState::Decided(roster) => roster.on(event, now),
            CoordinatorState::Listening { .. } => Vec::new(),
        }
    }

    fn begin(&mut self, event: &RosterEvent, now: Duration) {
        let CoordinatorState::Listening { id, options, since, next } = self else { return };
        let knows_epochs = match event {
            RosterEvent::Report { report, .. } => report.epoch > 0 || report.accepted > 0,
            _ => false,
        };
        let (id, options) = (*id, *options);
        if knows_epochs {
            *self = CoordinatorState::Decided(Box::new(Roster::adopt(id, options, now)));
            return;
        }
        // Members of a running job come back within this time.
        if since.is_some_and(|since| now >= since + options.silence) {
            *self = CoordinatorState::Decided(Box::new(Roster::found(id, options)));
        } else {
            *next = now + options.heartbeat();
        }
    }
}

const UNREADABLE: &str =
    "give the state of this job; or remove this state once the ranks of its job have ended";

/// The roles that a coordinator manages.
pub struct RoleRegistry {
    pub workers: RoleState,
    pub servers: Option<ServerRole>,
}

/// State of the servers, with the views.
pub struct ServerRole {
    pub role_state: RoleState,
    pub views: Publication,
}

impl RoleRegistry {
    /// Returns the roles of a job without servers.
    pub fn of_workers(coordinator_state: CoordinatorState) -> RoleRegistry {
        RoleRegistry { workers: RoleState::new(Role::Worker, coordinator_state), servers: None }
    }

    /// Returns the state of a role; `None` for servers if the job has none.
    pub fn of(&mut self, role: Role) -> Option<&mut RoleState> {
        match role {
            Role::Worker => Some(&mut self.workers),
            Role::Server => self.servers.as_mut().map(|servers| &mut servers.role_state),
        }
    }

    /// Returns the views, if the job has servers.
    pub fn views(&mut self) -> Option<&mut Publication> {
        self.servers.as_mut().map(|servers| &mut servers.views)
    }

    /// Returns when the next tick is due, if one is.
    pub fn deadline(&self) -> Option<Duration> {
        let servers = self.servers.as_ref().and_then(|servers| servers.role_state.deadline());
        self.workers.deadline().into_iter().chain(servers).min()
    }

    /// Returns the last epoch that has started, for each role that has one.
    pub fn epochs(&self) -> impl Iterator<Item = (Role, &Epoch)> {
        let servers = self.servers.as_ref().map(|servers| &servers.role_state);
        let roles = [&self.workers].into_iter().chain(servers);
        roles.filter_map(|role_state| Some((role_state.role, role_state.epoch()?)))
    }

    /// Tells the view service of the last epochs, unless it knows of them.
    pub fn note_epochs(&mut self) {
        let Some(ServerRole { role_state, views }) = &mut self.servers else { return };
        for role_state in [&self.workers, role_state] {
            role_state.epoch().into_iter().for_each(|epoch| views.started(role_state.role, epoch));
        }
    }

    /// Tells the view service which servers are dead.
    pub fn note_deaths(&mut self, now: Duration) {
        let Some(ServerRole { role_state, views }) = &mut self.servers else { return };
        if let Some(roster) = role_state.coordinator_state.roster() {
            views.look(&|id| roster.is_dead(id, now));
        }
    }

    /// Returns the state of the coordinator as it is saved; `None` before there is a job.
    pub fn save(&self) -> Option<Vec<u8>> {
        let workers = self.workers.coordinator_state.roster()?.save();
        let Some(ServerRole { role_state, views }) = &self.servers else { return Some(workers) };
        let servers = role_state.coordinator_state.roster()?.save();
        Some(Parts { workers, servers, views: views.state() }.to_bytes())
    }

    /// Returns the roles of a job that begins, or that continues from what was saved.
    ///
    /// # Errors
    /// If the saved state cannot be read, or belongs to another kind of job.
    pub fn begin(persistence: &mut Persistence, job: &mut Job) -> Result<RoleRegistry, Error> {
        let (workers, servers) = read(persistence, job)?.unzip();
        let mut roles =
            RoleRegistry::of_workers(coordinator_state(persistence, workers, job.workers)?);
        if let Some(Servers { options, views }) = &mut job.servers {
            let (roster, state) = servers.flatten().unzip();
            let role_state =
                RoleState::new(Role::Server, coordinator_state(persistence, roster, *options)?);
            let views = match state {
                Some(state) => Publication::restore(views(), &state)
                    .map_err(|reason| unreadable(persistence, &reason))?,
                None => Publication::new(views()),
            };
            roles.servers = Some(ServerRole { role_state, views });
        }
        roles.note_epochs();
        Ok(roles)
    }
}

/// The saved roster of the workers; with servers, also the roster of the servers and the state of the views.
type Saved = (Vec<u8>, Option<(Vec<u8>, Vec<u8>)>);

fn read(persistence: &mut Persistence, job: &Job) -> Result<Option<Saved>, Error> {
    let Some(bytes) = persistence.load()? else { return Ok(None) };
    if !Parts::are_meant(&bytes) {
        return Ok(Some((bytes, None)));
    }
    if job.servers.is_none() {
        let error =
            unreadable(persistence, "it is the state of a job with servers, expected one without");
        return Err(
            error.with_hint("start the coordinator with servers, or with a different state")
        );
    }
    let parts = Parts::parse(&bytes).map_err(|reason| unreadable(persistence, &reason))?;
    Ok(Some((parts.workers, Some((parts.servers, parts.views)))))
}

/// Returns the coordinator that continues from a saved roster, or the coordinator of a new job.
fn coordinator_state(
    persistence: &Persistence,
    saved: Option<Vec<u8>>,
    options: Options,
) -> Result<CoordinatorState, Error> {
    let decided = |roster| CoordinatorState::Decided(Box::new(roster));
    if let Some(bytes) = saved {
        let (hurry, patience) = (persistence.way(&options), RETURN * options.silence);
        let restored = Roster::restore(&bytes, options, Duration::ZERO, hurry, patience);
        // There is a saved state only where there is a place, so the default is never shown.
        let place = persistence.place().unwrap_or_default();
        let cannot = |error| Error::because(format!("reading {place}"), error);
        return restored.map(decided).map_err(|error| cannot(error).with_hint(UNREADABLE));
    }
    // The bit of servers is for servers only.
    let id = fresh_id(Role::Worker)?;
    Ok(match options.mode {
        CoordinatorMode::Saved => decided(Roster::found(id, options)),
        _ => CoordinatorState::listen(id, options),
    })
}

fn unreadable(persistence: &Persistence, reason: &str) -> Error {
    let place = persistence.place().unwrap_or_default();
    Error::invalid(format!("reading {place}: {reason}")).with_hint(UNREADABLE)
}
