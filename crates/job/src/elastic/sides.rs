//! Sides of a coordinator, about which it decides, and their saved form: that of the workers, and that of the
//! servers with their views if the job has any.

use std::time::Duration;

use thinwire_member::{Authority as Kind, Epoch, Options, Roster};

use super::authority::Authority;
use super::role::Role;
use super::saving::{Parts, RETURN, Saving};
use super::seat::fresh_id;
use super::side::Side;
use super::views::{Job, Publication, Servers};
use crate::error::Error;

const UNREADABLE: &str = "name the state of this job, or remove it once its ranks have ended";

/// Both sides of a coordinator.
pub struct Sides {
    pub workers: Side,
    pub servers: Option<ServerSide>,
}

/// Side of the servers, with the views.
pub struct ServerSide {
    pub side: Side,
    pub views: Publication,
}

impl Sides {
    /// Returns the sides of a job without servers.
    pub fn of_workers(authority: Authority) -> Sides {
        Sides { workers: Side::new(Role::Worker, authority), servers: None }
    }

    /// Returns the side of a role; none if the job has no servers.
    pub fn of(&mut self, role: Role) -> Option<&mut Side> {
        match role {
            Role::Worker => Some(&mut self.workers),
            Role::Server => self.servers.as_mut().map(|servers| &mut servers.side),
        }
    }

    /// Returns the views, if the job has servers.
    pub fn views(&mut self) -> Option<&mut Publication> {
        self.servers.as_mut().map(|servers| &mut servers.views)
    }

    /// Returns when a tick is due, if anybody needs one.
    pub fn deadline(&self) -> Option<Duration> {
        let servers = self.servers.as_ref().and_then(|servers| servers.side.deadline());
        self.workers.deadline().into_iter().chain(servers).min()
    }

    /// Returns the last epochs that have started, of each role at most one.
    pub fn epochs(&self) -> impl Iterator<Item = (Role, &Epoch)> {
        let servers = self.servers.as_ref().map(|servers| &servers.side);
        let sides = [&self.workers].into_iter().chain(servers);
        sides.filter_map(|side| Some((side.role, side.epoch()?)))
    }

    /// Tells the view service of the last epochs, unless it knows of them.
    pub fn note_epochs(&mut self) {
        let Some(ServerSide { side, views }) = &mut self.servers else { return };
        for side in [&self.workers, side] {
            side.epoch().into_iter().for_each(|epoch| views.started(side.role, epoch));
        }
    }

    /// Lets the view service look which servers are dead.
    pub fn note_deaths(&mut self, now: Duration) {
        let Some(ServerSide { side, views }) = &mut self.servers else { return };
        if let Some(roster) = side.authority.roster() {
            views.look(&|id| roster.is_dead(id, now));
        }
    }

    /// Returns the state of the coordinator as it is saved; none before there is a job.
    pub fn save(&self) -> Option<Vec<u8>> {
        let workers = self.workers.authority.roster()?.save();
        let Some(ServerSide { side, views }) = &self.servers else { return Some(workers) };
        let servers = side.authority.roster()?.save();
        Some(Parts { workers, servers, views: views.state() }.to_bytes())
    }

    /// Returns the sides of a job that begins, or that goes on from what was saved.
    ///
    /// # Errors
    /// If the saved state cannot be read, or is not that of such a job.
    pub fn begin(saving: &mut Saving, job: &mut Job) -> Result<Sides, Error> {
        let (workers, servers) = read(saving, job.servers.is_some())?.unzip();
        let mut sides = Sides::of_workers(authority(saving, workers, job.workers)?);
        if let Some(Servers { options, views }) = &mut job.servers {
            let (roster, state) = servers.flatten().unzip();
            let side = Side::new(Role::Server, authority(saving, roster, *options)?);
            let views = match state {
                Some(state) => Publication::restore(views(), &state)
                    .map_err(|reason| unreadable(saving, &reason))?,
                None => Publication::new(views()),
            };
            sides.servers = Some(ServerSide { side, views });
        }
        sides.note_epochs();
        Ok(sides)
    }
}

/// Saved roster of the workers; that of the servers and the state of the views, if there were any.
type Saved = (Vec<u8>, Option<(Vec<u8>, Vec<u8>)>);

fn read(saving: &mut Saving, has_servers: bool) -> Result<Option<Saved>, Error> {
    let Some(bytes) = saving.load()? else { return Ok(None) };
    if !Parts::are_meant(&bytes) {
        return Ok(Some((bytes, None)));
    }
    if !has_servers {
        let error =
            unreadable(saving, "it is the state of a job with servers, expected one without");
        return Err(error.with_hint("begin the coordinator with servers, or in another place"));
    }
    let parts = Parts::parse(&bytes).map_err(|reason| unreadable(saving, &reason))?;
    Ok(Some((parts.workers, Some((parts.servers, parts.views)))))
}

/// Returns the authority that goes on from a saved roster, or that of a new job.
fn authority(
    saving: &Saving,
    saved: Option<Vec<u8>>,
    options: Options,
) -> Result<Authority, Error> {
    let decided = |roster| Authority::Decided(Box::new(roster));
    if let Some(bytes) = saved {
        let patience = (saving.way(&options), RETURN * options.silence);
        let restored = Roster::restore(&bytes, options, Duration::ZERO, patience);
        let place = saving.place().unwrap_or_default();
        let cannot = |error| Error::because(format!("reading {place}"), error);
        return restored.map(decided).map_err(|error| cannot(error).with_hint(UNREADABLE));
    }
    let id = fresh_id(Role::Worker)?;
    Ok(match options.authority {
        Kind::Saved => decided(Roster::found(id, options)),
        _ => Authority::listen(id, options),
    })
}

fn unreadable(saving: &Saving, reason: &str) -> Error {
    let place = saving.place().unwrap_or_default();
    Error::invalid(format!("reading {place}: {reason}")).with_hint(UNREADABLE)
}
