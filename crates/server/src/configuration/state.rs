//! State of a job's shards, which the coordinator saves and sends to all processes.
//!
//! Servers are listed once and referred to by index, so that thousands of shards
//! fit in a message. Law: `parse(to_bytes(x)) == x`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thinwire_member::Id;
use thinwire_wire::{decode, encode};

use crate::configuration::definition::{Definition, DefinitionFields};
use crate::error::Error;
use crate::frontier::Frontier;
use crate::placement::Placement;
use crate::shard::Order;
use crate::view::View;
use crate::write::Workers;

/// Largest version or number in a state, so that a next number always exists.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// State of a job's shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobState {
    /// Version; it grows with every change.
    pub version: u64,
    /// Definition of the tables, if there is one.
    pub definition: Option<Definition>,
    /// Addresses of servers, host:port.
    pub addresses: BTreeMap<Id, String>,
    /// Names of the files with which servers are to begin; empty once the shards have servers.
    pub origins: BTreeMap<Id, String>,
    /// Memory of servers in bytes; empty once the shards have servers.
    pub memories: BTreeMap<Id, u64>,
    /// Reasons of servers that have left, if they reported one.
    pub failures: BTreeMap<Id, String>,
    /// Last epoch of the servers.
    pub epoch: u32,
    /// Servers in that epoch.
    pub servers: Vec<Id>,
    /// Views, by shard; empty until the job has servers.
    pub views: Vec<View>,
    /// Servers that each shard should have.
    pub placement: Placement,
    /// Workers; the version of the list is their epoch.
    pub workers: Workers,
    /// Shards whose last replicas are all known to be dead, ascending.
    pub lost: Vec<u32>,
    /// Shards whose last replicas are in no epoch and may come back, ascending.
    pub silent: Vec<u32>,
    /// Snapshot that is under way, or the last one.
    pub snapshot: Option<SnapshotState>,
}

/// Snapshot of a job: under way, or the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotState {
    /// Number among the job's snapshots, from 1.
    pub number: u64,
    /// Process that requested the snapshot.
    pub asker: Id,
    /// Stage of the snapshot.
    pub stage: SnapshotStage,
}

/// Stage of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotStage {
    /// Primaries report the newest pushes in their logs, and hold back newer ones.
    Asked,
    /// Primaries write their shards at this frontier.
    Agreed(Frontier),
    /// All shards are written, and the primary of shard 0 writes the manifest.
    Written(Frontier),
    /// Complete, in the folder with this name.
    Done(String),
    /// Failed, with a one-line reason.
    Failed(String),
}

#[derive(Serialize, Deserialize)]
struct Form {
    version: u64,
    definition: Option<Sent>,
    ids: Vec<Id>,
    addresses: Vec<(usize, String)>,
    origins: Vec<(usize, String)>,
    memories: Vec<(usize, u64)>,
    failures: Vec<(usize, String)>,
    epoch: u32,
    servers: Vec<usize>,
    views: Vec<(u64, Vec<usize>, Vec<usize>)>,
    placement: Vec<Vec<usize>>,
    workers: Workers,
    lost: Vec<u32>,
    silent: Vec<u32>,
    snapshot: Option<SnapshotState>,
}

#[derive(Serialize, Deserialize)]
struct Sent(#[serde(with = "DefinitionFields")] Definition);

impl SnapshotState {
    /// Returns whether the snapshot is neither done nor failed.
    pub fn is_under_way(&self) -> bool {
        !matches!(self.stage, SnapshotStage::Done(_) | SnapshotStage::Failed(_))
    }

    /// Returns the order to primaries in this stage.
    pub fn order(&self) -> Order {
        match &self.stage {
            SnapshotStage::Asked => Order::WriteBarrier,
            SnapshotStage::Agreed(frontier) => Order::Take(Arc::new(frontier.clone())),
            _ => Order::Release,
        }
    }
}

impl JobState {
    /// Returns the bytes of the state as they are saved and sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let ids = self.ids();
        let place = |id: &Id| ids.binary_search(id).expect("the list has all servers");
        let places = |ids: &[Id]| ids.iter().map(place).collect::<Vec<_>>();
        let view = |view: &View| (view.number, places(&view.replicas), places(&view.learners));
        let texts = |texts: &BTreeMap<Id, String>| {
            texts.iter().map(|(id, text)| (place(id), text.clone())).collect()
        };
        let form = Form {
            version: self.version,
            definition: self.definition.clone().map(Sent),
            addresses: texts(&self.addresses),
            origins: texts(&self.origins),
            memories: self.memories.iter().map(|(id, bytes)| (place(id), *bytes)).collect(),
            failures: texts(&self.failures),
            epoch: self.epoch,
            servers: places(&self.servers),
            views: self.views.iter().map(view).collect(),
            placement: self.placement.shards.iter().map(|ids| places(ids)).collect(),
            workers: self.workers.clone(),
            lost: self.lost.clone(),
            silent: self.silent.clone(),
            snapshot: self.snapshot.clone(),
            ids,
        };
        encode(&form)
    }

    /// Parses a state.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if the bytes are not a state, or the state is inconsistent.
    pub fn parse(bytes: &[u8]) -> Result<JobState, Error> {
        let cannot =
            |error: String| Error::corrupt(format!("reading the state of shards: {error}"));
        let form: Form = decode(bytes).map_err(|why| cannot(why.to_string()))?;
        let state = form.state().map_err(cannot)?;
        state.check().map_err(cannot)?;
        Ok(state)
    }

    /// Returns whether the shards have servers.
    pub fn is_founded(&self) -> bool {
        !self.views.is_empty()
    }

    /// Returns whether no replica of a shard is in the epoch.
    pub fn is_unavailable(&self, shard: u32) -> bool {
        [&self.lost, &self.silent].iter().any(|list| list.binary_search(&shard).is_ok())
    }

    /// Returns the shards of which no replica is in the epoch.
    pub fn unavailable(&self) -> impl Iterator<Item = u32> {
        self.lost.iter().chain(&self.silent).copied()
    }

    fn ids(&self) -> Vec<Id> {
        let views = self.views.iter().flat_map(|view| view.replicas.iter().chain(&view.learners));
        let told = self.addresses.keys().chain(self.origins.keys());
        let told = told.chain(self.memories.keys()).chain(self.failures.keys());
        let all = told.chain(&self.servers).chain(views);
        let all = all.chain(self.placement.shards.iter().flatten());
        all.copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn check(&self) -> Result<(), String> {
        if let Some(definition) = &self.definition {
            definition.layout().map_err(|error| error.to_string())?;
        }
        let shards = self.definition.as_ref().map_or(0, |definition| definition.shards as usize);
        let (views, placed) = (self.views.len(), self.placement.shards.len());
        if (views != 0 && views != shards) || placed != views {
            return Err(format!("{views} views and {placed} places for {shards} shards"));
        }
        for (what, list) in [("lost", &self.lost), ("silent", &self.silent)] {
            if let Some(shard) = list.iter().find(|shard| **shard as usize >= views) {
                return Err(format!("{what} shard {shard} of {views}"));
            }
            if !list.is_sorted_by(|one, next| one < next) {
                return Err(format!("{what} shards {list:?}, expected ascending ones"));
            }
        }
        if let Some(shard) = self.silent.iter().find(|shard| self.lost.contains(shard)) {
            return Err(format!("shard {shard} both lost and silent"));
        }
        match self.numbers().find(|number| *number > NUMBER_MAX) {
            Some(number) => Err(format!("number {number}, expected at most {NUMBER_MAX}")),
            None => Ok(()),
        }
    }

    /// Returns all numbers that grow with changes of the state.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        let views = self.views.iter().map(|view| view.number);
        let snapshot = self.snapshot.iter().map(|snapshot| snapshot.number);
        views.chain(snapshot).chain([self.version, self.workers.version])
    }
}

impl Form {
    fn state(self) -> Result<JobState, String> {
        let id = |place: usize| {
            let id = self.ids.get(place).copied();
            id.ok_or_else(|| format!("server {place} of {}", self.ids.len()))
        };
        let all = |places: Vec<usize>| places.into_iter().map(id).collect::<Result<Vec<Id>, _>>();
        let view = |(number, replicas, learners)| {
            Ok::<_, String>(View { number, replicas: all(replicas)?, learners: all(learners)? })
        };
        Ok(JobState {
            version: self.version,
            definition: self.definition.map(|sent| sent.0),
            addresses: by_id(self.addresses, id)?,
            origins: by_id(self.origins, id)?,
            memories: by_id(self.memories, id)?,
            failures: by_id(self.failures, id)?,
            epoch: self.epoch,
            servers: all(self.servers)?,
            views: self.views.into_iter().map(view).collect::<Result<_, _>>()?,
            placement: Placement {
                shards: self.placement.into_iter().map(all).collect::<Result<_, _>>()?,
            },
            workers: self.workers,
            lost: self.lost,
            silent: self.silent,
            snapshot: self.snapshot,
        })
    }
}

fn by_id<T>(
    items: Vec<(usize, T)>,
    id: impl Fn(usize) -> Result<Id, String>,
) -> Result<BTreeMap<Id, T>, String> {
    items.into_iter().map(|(place, item)| Ok((id(place)?, item))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_state_is_refused() {
        let state = JobState::default();
        assert_eq!(JobState::parse(&state.to_bytes()).unwrap(), state);
        let refusal = |state: JobState| JobState::parse(&state.to_bytes()).unwrap_err().to_string();
        let view = View { number: 1, ..View::default() };
        for (state, why) in [
            (JobState { lost: vec![3], ..state.clone() }, "lost shard 3 of 0"),
            (JobState { views: vec![view], ..state.clone() }, "1 views and 0 places for 0 shards"),
            (
                JobState { version: u64::MAX, ..state.clone() },
                "number 18446744073709551615, expected at most 9223372036854775807",
            ),
        ] {
            assert_eq!(refusal(state), format!("reading the state of shards: {why}"));
        }
        let servers = JobState { servers: vec![Id(7)], ..state.clone() };
        let mut bytes = servers.to_bytes();
        // Version, no definition, one id, no addresses, origins, memories or failures, epoch, one server.
        assert_eq!(bytes[..10], [0, 0, 1, 7, 0, 0, 0, 0, 0, 1]);
        bytes[10] = 3;
        let error = JobState::parse(&bytes).unwrap_err().to_string();
        assert_eq!(error, "reading the state of shards: server 3 of 1");
        assert!(JobState::parse(&bytes[..bytes.len() - 1]).is_err());
    }
}
