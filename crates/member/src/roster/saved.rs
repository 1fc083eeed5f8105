//! Saved state of a coordinator, as bytes: `TWRO`, version, a [`Saved`], CRC-32 in four little-endian bytes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thinwire_wire::{checksum, decode, encode_after};

use super::Roster;
use crate::epoch::{EPOCH_BYTES_MAX, check_number};
use crate::{Corrupt, Epoch, Id, Options};

const MAGIC: [u8; 4] = *b"TWRO";
const VERSION: u8 = 2;
const CHECKSUM_BYTES: usize = 4;

/// Largest number of bytes of a saved state.
pub const SAVED_BYTES_MAX: usize = 64 + EPOCH_BYTES_MAX;

/// State that a restarted coordinator needs. Of an epoch that was proposed but has not started, only the
/// number is saved: the restored coordinator stops again and proposes another one.
#[derive(Serialize, Deserialize)]
struct Saved {
    id: Id,
    number: u32,
    floor: u32,
    target: u32,
    fingerprint: Option<u64>,
    epoch: Option<Epoch>,
}

impl Roster {
    /// Returns the state that a restarted coordinator needs to continue, as bytes.
    pub fn save(&self) -> Vec<u8> {
        let saved = Saved {
            id: self.id,
            number: self.number,
            floor: self.floor,
            target: self.target,
            fingerprint: self.fingerprint,
            epoch: self.epoch.clone(),
        };
        let mut bytes = encode_after([&MAGIC[..], &[VERSION]].concat(), &saved);
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Continues from a saved state at time `now`. Members have `patience` beyond the usual time to
    /// report again. If a member that has reported has lost another member, the epoch cannot continue,
    /// and the others have only `hurry`.
    ///
    /// # Errors
    /// If the bytes were not written by [`Roster::save`] of this version.
    pub fn restore(
        bytes: &[u8],
        options: Options,
        now: Duration,
        hurry: Duration,
        patience: Duration,
    ) -> Result<Roster, Corrupt> {
        let saved: Saved = decode(open(bytes)?)?;
        [saved.number, saved.floor].into_iter().try_for_each(check_number)?;
        saved.epoch.iter().try_for_each(Epoch::check)?;
        let mut roster = Roster {
            number: saved.number,
            floor: saved.floor,
            // The coordinator may have been restarted with other limits.
            target: saved.target.clamp(options.min, options.max),
            fingerprint: saved.fingerprint,
            epoch: saved.epoch,
            ..Roster::found(saved.id, options)
        };
        for id in roster.members().to_vec() {
            roster.peers.await_return(id, now + hurry, now + patience);
        }
        Ok(roster)
    }
}

/// Returns the saved content, after checking magic, version and checksum.
fn open(bytes: &[u8]) -> Result<&[u8], Corrupt> {
    let found = bytes.len();
    let (Some((content, tail)), true) =
        (bytes.split_last_chunk::<CHECKSUM_BYTES>(), found <= SAVED_BYTES_MAX)
    else {
        return Err(Corrupt::Length { found, max: SAVED_BYTES_MAX });
    };
    let Some((&[a, b, c, d, version], saved)) = content.split_first_chunk::<5>() else {
        return Err(Corrupt::Length { found, max: SAVED_BYTES_MAX });
    };
    if [a, b, c, d] != MAGIC {
        return Err(Corrupt::Magic);
    }
    // Before the checksum: another version may compute it over other bytes.
    if version != VERSION {
        return Err(Corrupt::Version { found: version, expected: VERSION });
    }
    let (found, expected) = (u32::from_le_bytes(*tail), checksum(content));
    if found != expected {
        return Err(Corrupt::Checksum { found, expected });
    }
    Ok(saved)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        CoordinatorMode, Message, Occasion, Promise, Reason, Report, RosterAction, RosterEvent,
        Standing, State, Wait,
    };

    fn roster() -> Roster {
        let options = Options::new(CoordinatorMode::Saved, 1, 8);
        let epoch = Epoch {
            number: 7,
            coordinator: Id(99),
            members: vec![Id(1), Id(2), Id(3)],
            state_sources: 2,
            done: 41,
            target: 4,
        };
        Roster {
            number: 8,
            target: 4,
            fingerprint: Some(5),
            epoch: Some(epoch),
            ..Roster::found(Id(99), options)
        }
    }

    fn restored(bytes: &[u8], options: Options) -> Result<Roster, Corrupt> {
        Roster::restore(bytes, options, Duration::ZERO, Duration::ZERO, Duration::ZERO)
    }

    #[test]
    fn a_saved_state_is_restored() {
        for roster in [roster(), Roster { epoch: None, fingerprint: None, ..roster() }] {
            let found = restored(&roster.save(), roster.options).unwrap();
            assert_eq!(found.save(), roster.save());
            assert_eq!((found.id, &found.epoch), (roster.id, &roster.epoch));
        }
    }

    #[test]
    fn any_changed_byte_and_any_cut_is_refused() {
        let saved = roster().save();
        for place in 0..saved.len() {
            let mut bytes = saved.clone();
            bytes[place] ^= 0x10;
            let options = roster().options;
            assert!(restored(&bytes, options).is_err(), "byte {place}");
            assert!(restored(&saved[..place], options).is_err());
        }
        let mut other = saved;
        other[4] = 9;
        let error = restored(&other, roster().options).unwrap_err();
        assert_eq!(error.to_string(), "coordinator state of version 9, expected 2");
    }

    /// Returns the report of a member that has ended its run and has lost these members.
    fn halted(id: u64, heartbeat: u64, number: u32, lost: &[Id]) -> RosterEvent {
        let report = Report {
            heartbeat,
            occasion: Occasion::Heartbeat,
            standing: Standing::Halted,
            promised: Promise { number, to: Id(99) },
            epoch: 7,
            accepted: 0,
            state: Some(State { epoch: 7, done: 41 }),
            fingerprint: 5,
            lost: lost.to_vec(),
            leaving: false,
            known: None,
        };
        RosterEvent::Report { id: Id(id), report }
    }

    #[test]
    fn who_does_not_come_back_to_a_broken_epoch_is_not_waited_for() {
        let (hurry, patience) = (Duration::from_millis(500), Duration::from_secs(4));
        let options = roster().options;
        let mut roster =
            Roster::restore(&roster().save(), options, Duration::ZERO, hurry, patience).unwrap();
        let proposed = |actions: &[RosterAction]| {
            actions.iter().find_map(|action| match action {
                RosterAction::Send { message: Message::Propose { epoch, .. }, .. } => {
                    Some(epoch.members.clone())
                }
                _ => None,
            })
        };
        let early = hurry / 2;
        for event in [halted(1, 1, 7, &[Id(3)]), halted(1, 2, 9, &[Id(3)]), halted(2, 1, 9, &[])] {
            assert_eq!(proposed(&roster.on(event, early)), None);
        }
        assert_eq!(proposed(&roster.on(RosterEvent::Tick, hurry)), Some(vec![Id(1), Id(2)]));
    }

    #[test]
    fn newcomers_of_a_restarted_coordinator_are_spares_only_of_members_that_are_back() {
        let options = Options::new(CoordinatorMode::Saved, 1, 4);
        let full = Roster { target: 3, ..roster() };
        let mut roster = restored(&full.save(), options).unwrap();
        let join_request = |heartbeat| {
            let RosterEvent::Report { report, .. } = halted(9, heartbeat, 0, &[]) else {
                unreachable!()
            };
            let promised = Promise { number: 0, to: Id(0) };
            let report =
                Report { standing: Standing::Newcomer, promised, epoch: 0, state: None, ..report };
            RosterEvent::Report { id: Id(9), report }
        };
        let answer = |roster: &mut Roster, heartbeat| match &roster
            .on(join_request(heartbeat), Duration::ZERO)[..]
        {
            [.., RosterAction::Send { to: Id(9), message: Message::Refuse(reason) }] => *reason,
            actions => panic!("{actions:?}"),
        };
        let nobody = Reason::Waiting { wait: Wait::StateSource { done: 41 } };
        assert_eq!(answer(&mut roster, 1), nobody);
        let RosterEvent::Report { id, report } = halted(1, 1, 7, &[]) else { unreachable!() };
        let report = Report { standing: Standing::Running, ..report };
        roster.on(RosterEvent::Report { id, report }, Duration::ZERO);
        assert_eq!(answer(&mut roster, 2), Reason::Full { target: 3 });
    }

    proptest! {
        #[test]
        fn any_fields_are_an_error_or_a_state_that_is_read_back(
            head in prop::collection::vec(0..4_u8, 4..8), rest in prop::collection::vec(0..6_u8, 0..20)
        ) {
            let mut bytes = [&MAGIC[..], &[VERSION], &head, &rest].concat();
            bytes.extend(checksum(&bytes).to_le_bytes());
            let options = Options::new(CoordinatorMode::Saved, 1, u32::MAX);
            if let Ok(roster) = restored(&bytes, options) {
                let saved = roster.save();
                let again = restored(&saved, options).unwrap();
                prop_assert_eq!(again.save(), saved);
            }
        }
    }
}
