//! Configuration of a job: its tables, and the servers of each shard.
//!
//! This state machine runs in the coordinator, next to its rosters. Its inputs are the epochs of servers,
//! their addresses, and reports of ready learners. [`Placement::next`](crate::Placement::next) computes the
//! servers that a shard should have, and [`View::next`] computes the servers that it has now. The first
//! views are created once there is a definition, there are as many servers as it requires, and each of them
//! has reported its address.
//!
//! If no replica of a shard is in the epoch, the shard keeps its view, and its replicas may come back. Such a
//! shard is silent; it is lost once all its replicas are known to be dead.
//!
//! Laws:
//!
//! - successive views of a shard obey [`View::next`];
//! - a silent or lost shard gets its next view when a replica of its last view reports its copy;
//! - when all learners have reported, each other shard has as many replicas as the definition requires, or as
//!   there are servers;
//! - a restored configuration continues exactly as the saved one.

mod definition;
mod request;
mod snapshot;
mod state;
mod unavailable;

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thinwire_job::elastic::{Role, ViewService};
use thinwire_member::Id;

use crate::error::{HINT, line};
use crate::placement::{Placement, Share};
use crate::view::{Change, View};
use crate::write::Workers;
pub use definition::{Definition, Layout, TableDefinition};
pub(crate) use request::NAME_BYTES_MAX;
pub use request::ViewRequest;
use snapshot::Heard;
pub use state::{JobState, SnapshotStage, SnapshotState};

/// Largest number of server addresses that are stored.
const ADDRESSES_MAX: usize = 1024;

/// State machine that decides which servers hold the shards of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    state: JobState,
    heard: Heard,
}

impl Configuration {
    /// Returns the configuration of a job that has no tables yet.
    pub fn new() -> Configuration {
        Configuration::default()
    }

    /// Returns the state.
    pub fn job_state(&self) -> &JobState {
        &self.state
    }

    fn change(&mut self, change: impl FnOnce(&mut JobState)) {
        change(&mut self.state);
        self.state.version += 1;
    }

    fn define(&mut self, definition: Definition) -> Result<(), String> {
        definition.layout().map_err(|error| error.to_string())?;
        match &self.state.definition {
            Some(job) => definition.difference(job).map_or(Ok(()), |text| {
                let hint = "give this process the same settings as the other processes of the job";
                Err(line(&format!("{text}{HINT}{hint}")))
            }),
            None => {
                if let Some(refusal) = self.objection(&definition) {
                    return Err(line(&refusal));
                }
                self.change(|state| state.definition = Some(definition));
                self.place();
                Ok(())
            }
        }
    }

    /// Returns the reason why a job with this definition cannot begin, if there is one: a server of the
    /// epoch begins with other files, or has too little memory.
    fn objection(&self, definition: &Definition) -> Option<String> {
        self.other_origin(definition).or_else(|| self.lack_of_memory(definition))
    }

    fn lack_of_memory(&self, definition: &Definition) -> Option<String> {
        let JobState { memories, servers, .. } = &self.state;
        // The job begins with all servers of the epoch, once at least so many as it is defined for are there.
        let count = servers.len().max(definition.servers as usize);
        let mine = memories.iter().filter(|(id, _)| servers.contains(id));
        let (id, free) = mine.min_by_key(|(_, bytes)| **bytes)?;
        let least = definition.layout().ok()?.least_bytes(definition.backups as usize, count);
        let hint = "start more servers or servers with more memory, or use smaller tables";
        (least > *free).then(|| {
            format!(
                "the tables need at least {least} bytes of memory on each of {count} servers, server {id} has {free}{HINT}{hint}"
            )
        })
    }

    fn other_origin(&self, definition: &Definition) -> Option<String> {
        let JobState { origins, servers, .. } = &self.state;
        let other = |(id, name): &(&Id, &String)| {
            servers.contains(id) && definition.restore.as_ref() != Some(*name)
        };
        let (id, name) = origins.iter().find(other)?;
        let found = definition.restore.as_deref().unwrap_or("nothing");
        Some(format!("this worker continues from {found}, but server {id} from {name} (--restore)"))
    }

    /// Records the files with which a server is to begin. If the definition names other files, it is
    /// dropped; a process that sends it again is refused.
    fn origin(&mut self, from: Id, name: String) -> Result<(), String> {
        check_name(from, &name, "name of files")?;
        // Who joins later needs no files.
        if !self.state.is_founded() && self.state.origins.get(&from) != Some(&name) {
            self.make_room(from)?;
            self.change(|state| drop(state.origins.insert(from, name)));
            self.place();
        }
        Ok(())
    }

    /// Records the memory of a server. If the definition does not fit, it is dropped; a process that
    /// sends it again is refused.
    fn memory(&mut self, from: Id, bytes: u64) -> Result<(), String> {
        check_server(from, "memory")?;
        if !self.state.is_founded() && self.state.memories.get(&from) != Some(&bytes) {
            self.make_room(from)?;
            self.change(|state| {
                state.memories.insert(from, bytes);
            });
            self.place();
        }
        Ok(())
    }

    fn failed(&mut self, from: Id, reason: &str) -> Result<(), String> {
        check_name(from, reason, "reason to leave")?;
        self.make_room(from)?;
        self.change(|state| drop(state.failures.insert(from, line(reason))));
        Ok(())
    }

    fn address(&mut self, from: Id, address: String) -> Result<(), String> {
        check_name(from, &address, "address")?;
        if self.state.addresses.get(&from) != Some(&address) {
            self.make_room(from)?;
            self.change(|state| drop(state.addresses.insert(from, address)));
            self.place();
        }
        Ok(())
    }

    /// Removes the reports of servers that have left, if a table of reports is full.
    fn make_room(&mut self, from: Id) -> Result<(), String> {
        let JobState { addresses, origins, memories, failures, servers, .. } = &mut self.state;
        for table in [addresses, origins, failures] {
            make_room(table, from, servers)?;
        }
        make_room(memories, from, servers)
    }

    fn ready(&mut self, from: Id, shard: u32, number: u64, learner: Id) -> Result<(), String> {
        let shards = self.state.views.len();
        let Some(view) = self.state.views.get(shard as usize) else {
            return Err(format!("shard {shard}, expected one of {shards}"));
        };
        // A report about another view is void, and a copy that was away is reported first.
        if view.number != number || self.state.is_unavailable(shard) {
            return Ok(());
        }
        if view.primary() != Some(from) {
            return Err(format!("server {from} is not the primary of shard {shard}"));
        }
        if let Ok(Some(next)) = self.next_view(shard, Some((number, learner))) {
            self.change(|state| state.views[shard as usize] = next);
            self.interrupt(|| format!("the servers of shard {shard} have changed"));
        }
        Ok(())
    }

    /// Creates the first views, or adapts them to the current servers.
    fn place(&mut self) {
        let Some(definition) = &self.state.definition else { return };
        // A server with other files or less memory has come since: whoever defines the job again gets the reason.
        if !self.state.is_founded() && self.objection(definition).is_some() {
            return self.change(|state| state.definition = None);
        }
        let shares = self.shares();
        // Shards are dealt out once, so that none has to move as soon as the last server tells its address.
        let is_ready = shares.len() == self.state.servers.len();
        let backups = definition.backups as usize;
        match self.state.is_founded() {
            false if is_ready && shares.len() >= definition.servers as usize => {
                let placement = Placement::empty(definition.shards as usize).next(&shares, backups);
                self.found(placement);
            }
            true if !shares.is_empty() => {
                let placement = self.state.placement.next(&shares, backups);
                self.follow(placement);
            }
            _ => {}
        }
    }

    fn found(&mut self, placement: Placement) {
        let epoch = self.state.epoch;
        let views = placement.shards.iter().map(|target| View::found(epoch, target)).collect();
        self.change(|state| {
            (state.views, state.placement) = (views, placement);
            state.origins.clear();
            state.memories.clear();
        });
    }

    fn follow(&mut self, placement: Placement) {
        let before = self.state.views.clone();
        self.change(|state| state.placement = placement);
        for shard in 0..self.state.views.len() as u32 {
            if self.state.is_unavailable(shard) {
                continue;
            }
            match self.next_view(shard, None) {
                Ok(None) => {}
                Ok(Some(next)) => self.state.views[shard as usize] = next,
                Err(_) => self.miss(shard),
            }
        }
        let views = before.iter().zip(&self.state.views);
        let changed = views.into_iter().position(|(before, view)| before != view);
        let unavailable = self.state.unavailable().next().map(|shard| shard as usize);
        if let Some(shard) = changed.or(unavailable) {
            self.interrupt(|| format!("the servers of shard {shard} have changed"));
        }
    }

    fn next_view(
        &self,
        shard: u32,
        ready: Option<(u64, Id)>,
    ) -> Result<Option<View>, crate::view::Lost> {
        let JobState { epoch, servers, views, placement, .. } = &self.state;
        let target = &placement.shards[shard as usize];
        views[shard as usize].next(&Change { epoch: *epoch, members: servers, target, ready })
    }

    /// Returns the servers whose address is known, with equal weights.
    fn shares(&self) -> Vec<Share> {
        let is_reached = |id: &&Id| self.state.addresses.contains_key(id);
        let servers = self.state.servers.iter().filter(is_reached);
        servers.map(|id| Share { id: *id, weight: 1 }).collect()
    }
}

impl ViewService for Configuration {
    fn started(&mut self, role: Role, epoch: u32, members: &[Id]) {
        let ids = members.to_vec();
        match role {
            Role::Worker if u64::from(epoch) > self.state.workers.version => {
                self.change(|state| state.workers = Workers { version: epoch.into(), ids });
                self.interrupt(|| "the workers have changed".to_owned());
            }
            Role::Server if epoch > self.state.epoch => {
                self.change(|state| (state.epoch, state.servers) = (epoch, ids));
                self.place();
            }
            // The epoch is known already.
            _ => {}
        }
    }

    fn look(&mut self, is_dead: &dyn Fn(Id) -> bool) {
        self.lose(is_dead);
    }

    fn request(&mut self, from: Id, request: &[u8]) -> Result<(), String> {
        match ViewRequest::parse(request).map_err(|error| error.to_string())? {
            ViewRequest::Define(definition) => self.define(definition),
            ViewRequest::Origin(name) => self.origin(from, name),
            ViewRequest::Memory { bytes } => self.memory(from, bytes),
            ViewRequest::Failed { reason } => self.failed(from, &reason),
            ViewRequest::Address(address) => self.address(from, address),
            ViewRequest::Ready { shard, view, learner } => self.ready(from, shard, view, learner),
            ViewRequest::Kept { views } => {
                self.recovered(from, &views);
                Ok(())
            }
            ViewRequest::Snapshot { number } => self.begin_snapshot(from, number),
            ViewRequest::Logged { snapshot, pushes } => self.logged(from, snapshot, &pushes),
            ViewRequest::Written { snapshot } => self.written(from, snapshot),
            ViewRequest::Sealed { snapshot, name } => self.sealed(from, snapshot, &name),
            ViewRequest::Abandon { snapshot, reason } => self.abandon(from, snapshot, &reason),
        }
    }

    fn stats(&self) -> Map<String, Value> {
        let JobState { views, silent, lost, .. } = &self.state;
        let counts = [("shards", views.len()), ("silent", silent.len()), ("lost", lost.len())];
        counts.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect()
    }

    fn version(&self) -> u64 {
        self.state.version
    }

    fn state(&self) -> Vec<u8> {
        self.state.to_bytes()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.state = JobState::parse(state).map_err(|error| error.to_string())?;
        self.heard = Heard::default();
        Ok(())
    }
}

/// Checks a text that a server reports about itself.
fn check_name(from: Id, text: &str, what: &str) -> Result<(), String> {
    check_server(from, what)?;
    match text.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        length => Err(format!("{what} of {length} bytes, expected 1 to {NAME_BYTES_MAX}")),
    }
}

fn check_server(from: Id, what: &str) -> Result<(), String> {
    let no_server = || format!("process {from} is not a server, so it has no {what}");
    from.is_server().then_some(()).ok_or_else(no_server)
}

/// Removes the items of servers that have left from a full table.
fn make_room<T>(table: &mut BTreeMap<Id, T>, from: Id, servers: &[Id]) -> Result<(), String> {
    let is_full =
        |table: &BTreeMap<Id, T>| table.len() >= ADDRESSES_MAX && !table.contains_key(&from);
    // Only then: servers tell these things before their epoch starts, and why one has left is asked for later.
    if is_full(table) {
        table.retain(|id, _| servers.contains(id));
    }
    match is_full(table) {
        true => Err(format!("there are {} servers already, which is the maximum", table.len())),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
