//! Roles that a coordinator decides about, and their saved form: the workers, and the servers
//! with their views if the job has any.

use std::time::Duration;

use thinwire_member::{CoordinatorMode, Epoch, Options, Roster};

use super::coordinator_state::CoordinatorState;
use super::job_address::fresh_id;
use super::persistence::{Parts, Persistence, RETURN};
use super::role::Role;
use super::role_state::RoleState;
use super::views::{Job, Publication, Servers};
use crate::error::Error;

const UNREADABLE: &str = "name the state of this job, or remove it once its ranks have ended";

/// Roles that a coordinator decides about.
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

    /// Returns the state of a role; none if the job has no servers.
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

    /// Returns when a tick is due, if anybody needs one.
    pub fn deadline(&self) -> Option<Duration> {
        let servers = self.servers.as_ref().and_then(|servers| servers.role_state.deadline());
        self.workers.deadline().into_iter().chain(servers).min()
    }

    /// Returns the last epochs that have started, of each role at most one.
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

    /// Lets the view service look which servers are dead.
    pub fn note_deaths(&mut self, now: Duration) {
        let Some(ServerRole { role_state, views }) = &mut self.servers else { return };
        if let Some(roster) = role_state.coordinator_state.roster() {
            views.look(&|id| roster.is_dead(id, now));
        }
    }

    /// Returns the state of the coordinator as it is saved; none before there is a job.
    pub fn save(&self) -> Option<Vec<u8>> {
        let workers = self.workers.coordinator_state.roster()?.save();
        let Some(ServerRole { role_state, views }) = &self.servers else { return Some(workers) };
        let servers = role_state.coordinator_state.roster()?.save();
        Some(Parts { workers, servers, views: views.state() }.to_bytes())
    }

    /// Returns the roles of a job that begins, or that continues from what was saved.
    ///
    /// # Errors
    /// If the saved state cannot be read, or is not that of such a job.
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

/// Saved roster of the workers; that of the servers and the state of the views, if there were any.
type Saved = (Vec<u8>, Option<(Vec<u8>, Vec<u8>)>);

fn read(persistence: &mut Persistence, job: &Job) -> Result<Option<Saved>, Error> {
    let Some(bytes) = persistence.load()? else { return Ok(None) };
    if !Parts::are_meant(&bytes) {
        return Ok(Some((bytes, None)));
    }
    if job.servers.is_none() {
        let error =
            unreadable(persistence, "it is the state of a job with servers, expected one without");
        return Err(error.with_hint("begin the coordinator with servers, or in another place"));
    }
    let parts = Parts::parse(&bytes).map_err(|reason| unreadable(persistence, &reason))?;
    Ok(Some((parts.workers, Some((parts.servers, parts.views)))))
}

/// Returns the coordinator that continues from a saved roster, or that of a new job.
fn coordinator_state(
    persistence: &Persistence,
    saved: Option<Vec<u8>>,
    options: Options,
) -> Result<CoordinatorState, Error> {
    let decided = |roster| CoordinatorState::Decided(Box::new(roster));
    if let Some(bytes) = saved {
        let (hurry, patience) = (persistence.way(&options), RETURN * options.silence);
        let restored = Roster::restore(&bytes, options, Duration::ZERO, hurry, patience);
        let place = persistence.place().unwrap_or_default();
        let cannot = |error| Error::because(format!("reading {place}"), error);
        return restored.map(decided).map_err(|error| cannot(error).with_hint(UNREADABLE));
    }
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
