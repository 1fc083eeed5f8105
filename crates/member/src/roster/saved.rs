//! Saved state of a coordinator, as bytes.
//!
//! Little-endian: `TWRO`, version, flags, id, number, floor, target, fingerprint, the epoch, CRC-32. An
//! epoch that was proposed but has not started need not be saved, only its number: the restored
//! coordinator stops again and proposes another one.

use std::time::Duration;

use thinwire_wire::checksum;

use super::Roster;
use crate::bytes::{EPOCH_BYTES_MAX, Fields, write_epoch};
use crate::{Corrupt, Options};

const MAGIC: [u8; 4] = *b"TWRO";
const VERSION: u8 = 1;
const HAS_FINGERPRINT: u8 = 1 << 0;
const HAS_EPOCH: u8 = 1 << 1;
const HEAD_BYTES: usize = 34;
const CHECKSUM_BYTES: usize = 4;

/// Most bytes of a saved state.
pub const SAVED_BYTES_MAX: usize = HEAD_BYTES + EPOCH_BYTES_MAX + CHECKSUM_BYTES;

impl Roster {
    /// Returns the state that a restarted coordinator needs to go on, as bytes.
    pub fn save(&self) -> Vec<u8> {
        let flags = if self.fingerprint.is_some() { HAS_FINGERPRINT } else { 0 }
            | if self.epoch.is_some() { HAS_EPOCH } else { 0 };
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, flags]);
        bytes.extend(self.id.0.to_le_bytes());
        for number in [self.number, self.floor, self.target] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.fingerprint.unwrap_or(0).to_le_bytes());
        if let Some(epoch) = &self.epoch {
            write_epoch(epoch, &mut bytes);
        }
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Goes on from a saved state at time `now`. Members have `patience` beyond the usual time to report
    /// again. If one that is back has lost another, the epoch cannot go on, and they have only `hurry`.
    ///
    /// # Errors
    /// If the bytes were not written by [`Roster::save`] of this version.
    pub fn restore(
        bytes: &[u8],
        options: Options,
        now: Duration,
        (hurry, patience): (Duration, Duration),
    ) -> Result<Roster, Corrupt> {
        let (flags, mut fields) = open(bytes)?;
        let mut roster = Roster::found(fields.id()?, options);
        (roster.number, roster.floor) = (fields.number()?, fields.number()?);
        let target = fields.u32()?;
        let fingerprint = fields.u64()?;
        roster.fingerprint = (flags & HAS_FINGERPRINT != 0).then_some(fingerprint);
        roster.epoch = if flags & HAS_EPOCH != 0 { Some(fields.epoch()?) } else { None };
        fields.end()?;
        roster.target = target.clamp(options.min, options.max);
        for id in roster.members().to_vec() {
            roster.peers.await_return(id, now + hurry, now + patience);
        }
        Ok(roster)
    }
}

/// Returns the flags and the fields behind them, once magic, version and checksum are right.
fn open(bytes: &[u8]) -> Result<(u8, Fields<'_>), Corrupt> {
    let found = bytes.len();
    let (Some((content, tail)), true) =
        (bytes.split_last_chunk::<CHECKSUM_BYTES>(), found <= SAVED_BYTES_MAX)
    else {
        return Err(Corrupt::Length { found, max: SAVED_BYTES_MAX });
    };
    let Some((&[a, b, c, d, version, flags], rest)) = content.split_first_chunk::<6>() else {
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
    if flags & !(HAS_FINGERPRINT | HAS_EPOCH) != 0 {
        return Err(Corrupt::Flags { found: flags });
    }
    Ok((flags, Fields::new(rest)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bytes::EPOCH_BYTES;
    use crate::{
        Authority, Epoch, Id, Message, Occasion, Promise, Reason, Report, RosterAction,
        RosterEvent, Standing, State, Wait,
    };

    fn roster() -> Roster {
        let options = Options::new(Authority::Saved, 1, 8);
        let epoch = Epoch {
            number: 7,
            coordinator: Id(99),
            members: vec![Id(1), Id(2), Id(3)],
            holders: 2,
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
        Roster::restore(bytes, options, Duration::ZERO, (Duration::ZERO, Duration::ZERO))
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
        assert_eq!(error.to_string(), "coordinator state of version 9, expected 1");
    }

    /// The report of a member that has ended its run, and has lost these.
    fn halted(id: u64, beat: u64, number: u32, lost: &[Id]) -> RosterEvent {
        let report = Report {
            beat,
            occasion: Occasion::Beat,
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
            Roster::restore(&roster().save(), options, Duration::ZERO, (hurry, patience)).unwrap();
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
        let options = Options::new(Authority::Saved, 1, 4);
        let full = Roster { target: 3, ..roster() };
        let mut roster = restored(&full.save(), options).unwrap();
        let knock = |beat| {
            let RosterEvent::Report { report, .. } = halted(9, beat, 0, &[]) else {
                unreachable!()
            };
            let promised = Promise { number: 0, to: Id(0) };
            let report =
                Report { standing: Standing::Newcomer, promised, epoch: 0, state: None, ..report };
            RosterEvent::Report { id: Id(9), report }
        };
        let answer = |roster: &mut Roster, beat| match &roster.on(knock(beat), Duration::ZERO)[..] {
            [.., RosterAction::Send { to: Id(9), message: Message::Refuse(reason) }] => *reason,
            actions => panic!("{actions:?}"),
        };
        let nobody = Reason::Waiting { wait: Wait::Holder { done: 41 } };
        assert_eq!(answer(&mut roster, 1), nobody);
        let RosterEvent::Report { id, report } = halted(1, 1, 7, &[]) else { unreachable!() };
        let report = Report { standing: Standing::Running, ..report };
        roster.on(RosterEvent::Report { id, report }, Duration::ZERO);
        assert_eq!(answer(&mut roster, 2), Reason::Full { target: 3 });
    }

    proptest! {
        #[test]
        fn any_fields_are_an_error_or_a_state_that_writes_itself_back(
            flags in 0..4_u8, fields: [u8; 28], rest: Vec<u8>, members in 0..3_u32
        ) {
            let mut bytes = [&MAGIC[..], &[VERSION, flags], &fields, &rest].concat();
            if bytes.len() >= HEAD_BYTES + EPOCH_BYTES {
                bytes[HEAD_BYTES + 28..HEAD_BYTES + 32].copy_from_slice(&members.to_le_bytes());
                bytes.truncate(HEAD_BYTES + EPOCH_BYTES + 8 * members as usize);
            }
            bytes.extend(checksum(&bytes).to_le_bytes());
            let options = Options::new(Authority::Saved, 1, u32::MAX);
            if let Ok(roster) = restored(&bytes, options) {
                let saved = roster.save();
                let again = restored(&saved, options).unwrap();
                prop_assert_eq!(again.save(), saved);
            }
        }
    }
}
