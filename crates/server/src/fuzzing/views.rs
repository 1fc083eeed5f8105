//! Coordinator without sockets that decides about the views of shards, for fuzz targets.

use thinwire_job::elastic::{Role, VIEWS_BYTES_MAX, ViewService};
use thinwire_member::Id;

use super::{OTHER, SERVER, WORKER};
use crate::configuration::{Configuration, JobState, ViewRequest};

/// Processes that send requests; the last one only reads.
const ASKERS: [Id; 5] = [SERVER, OTHER, Id(Id::SERVER_BIT | 3), WORKER, Id(0)];
/// Members of epochs; those of a role are chosen by the bits of a byte.
const MEMBERS: [Id; 6] = [SERVER, OTHER, Id(Id::SERVER_BIT | 3), WORKER, Id(8), Id(9)];

/// Delivers events to the configuration of a job; each event follows its kind (1 byte) and its length (2
/// bytes). Events are requests of processes, epochs of servers and of workers, saved states to continue from,
/// and dead servers.
///
/// # Panics
/// If a request or the state differs after it is written and read again, the state is too long, or an error
/// has several lines.
pub fn decide(mut bytes: &[u8]) {
    let mut configuration = Configuration::new();
    while let Some(([kind, low, high], rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (message, rest) = rest.split_at(length);
        bytes = rest;
        if let Err(why) = take(&mut configuration, *kind, message) {
            assert!(!why.contains('\n'), "{why}");
        }
        let state = configuration.state();
        assert!(state.len() <= VIEWS_BYTES_MAX, "{} bytes", state.len());
        let read = JobState::parse(&state).expect("a state writes itself back");
        assert_eq!(read, *configuration.job_state());
    }
}

fn take(configuration: &mut Configuration, kind: u8, message: &[u8]) -> Result<(), String> {
    let low = usize::from(kind & 0xf);
    let mask = message.first().copied().unwrap_or_default();
    let chosen = |half: &[Id]| {
        let bits = half.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
        bits.map(|(_, id)| *id).collect::<Vec<Id>>()
    };
    match kind >> 4 {
        0 => {
            if let Ok(request) = ViewRequest::parse(message) {
                let again = ViewRequest::parse(&request.to_bytes());
                assert_eq!(again.expect("a request writes itself back"), request);
            }
            return configuration.request(ASKERS[low % ASKERS.len()], message);
        }
        1 => {
            let epoch = configuration.job_state().epoch.saturating_add(1);
            configuration.started(Role::Server, epoch, &chosen(&MEMBERS[..3]));
        }
        2 => {
            let epoch = configuration.job_state().workers.version as u32;
            configuration.started(Role::Worker, epoch.saturating_add(1), &chosen(&MEMBERS[3..]));
        }
        4 => configuration.look(&|id| chosen(&MEMBERS).contains(&id)),
        _ => return configuration.restore(message),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::SnapshotStage;

    /// Returns the state after the events of a seed, of which the last `refused` must be refused and no
    /// others.
    fn state(name: &str, refused: usize) -> JobState {
        let path = format!("{}/../../fuzz/seeds/views/{name}", env!("CARGO_MANIFEST_DIR"));
        let (seed, mut configuration) = (std::fs::read(path).unwrap(), Configuration::new());
        let (mut rest, mut refusals) = (&seed[..], Vec::new());
        while let Some(([kind, low, high], more)) = rest.split_first_chunk() {
            let (message, more) = more.split_at(u16::from_le_bytes([*low, *high]).into());
            refusals.extend(take(&mut configuration, *kind, message).err());
            rest = more;
        }
        assert_eq!(refusals.len(), refused, "{refusals:?}");
        configuration.job_state().clone()
    }

    #[test]
    fn seeds_reach_all_decisions() {
        assert!(state("found", 0).is_founded());
        let moved = state("moved", 0);
        assert!(
            moved.lost.is_empty() && moved.views.iter().all(|view| view.replicas == [ASKERS[2]])
        );
        assert_eq!(state("lost", 1).lost, [0, 1]);
        assert!(state("returned", 0).unavailable().next().is_none());
        let stage = |name| state(name, 0).snapshot.unwrap().stage;
        assert_eq!(stage("snapshot"), SnapshotStage::Failed("the disk is full".to_owned()));
        assert!(matches!(stage("restored"), SnapshotStage::Failed(_)));
    }
}
