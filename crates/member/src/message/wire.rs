//! Messages as bytes.
//!
//! The first byte is the kind of the message; its fields follow, little-endian and without padding.
//! Laws: `parse(to_bytes(m)) == m` for every message whose epochs are sound, and
//! `to_bytes(parse(b)) == b` for all bytes that are a message.

use thinwire_wire::WORLD_SIZE_MAX;

use super::{Known, Manner, Message, Occasion, Reason, Report, Standing};
use crate::bytes::{EPOCH_BYTES_MAX, Fields, write_epoch, write_ids};
use crate::{Corrupt, Epoch, Id, Promise, State, Wait};

const REPORT: u8 = 0;
const HAIL: u8 = 1;
const STOP: u8 = 2;
const PROPOSE: u8 = 3;
const START: u8 = 4;
const HEARD: u8 = 5;
const REFUSE: u8 = 6;
const RESIZE: u8 = 8;
const BYE: u8 = 9;

const OCCASIONS: [Occasion; 2] = [Occasion::Beat, Occasion::News];
const STANDINGS: [Standing; 3] = [Standing::Newcomer, Standing::Running, Standing::Halted];

/// Bytes of a report without lists and epochs.
const REPORT_BYTES: usize = 1 + 8 + 2 + 12 + 8 + (1 + 12) + 8 + 4 + 1 + 1;
/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize =
    REPORT_BYTES + 8 * WORLD_SIZE_MAX as usize + 2 * (1 + EPOCH_BYTES_MAX);

impl Message {
    /// Returns the message as it travels, in at most [`MESSAGE_BYTES_MAX`] bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Message::Report(report) => write_report(report, &mut bytes),
            Message::Hail { number } => write_number(HAIL, *number, &mut bytes),
            Message::Stop { number, last, manner } => {
                write_number(STOP, *number, &mut bytes);
                bytes.extend(last.to_le_bytes());
                write_manner(manner, &mut bytes);
            }
            Message::Propose { epoch, last } => {
                write_number(PROPOSE, *last, &mut bytes);
                write_epoch(epoch, &mut bytes);
            }
            Message::Start(epoch) => {
                bytes.push(START);
                write_epoch(epoch, &mut bytes);
            }
            Message::Heard => bytes.push(HEARD),
            Message::Refuse(reason) => write_reason(*reason, &mut bytes),
            Message::Resize(target) => write_number(RESIZE, *target, &mut bytes),
            Message::Bye => bytes.push(BYE),
        }
        bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    /// If the bytes were not written by [`Message::to_bytes`], or an epoch in them cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Message, Corrupt> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Corrupt::Length { found: bytes.len(), max: MESSAGE_BYTES_MAX });
        }
        let mut fields = Fields::new(bytes);
        let message = match fields.code("message kind", BYE)? {
            REPORT => Message::Report(report(&mut fields)?),
            HAIL => Message::Hail { number: fields.u32()? },
            STOP => {
                let (number, last) = (fields.u32()?, fields.u32()?);
                Message::Stop { number, last, manner: manner(&mut fields)? }
            }
            PROPOSE => {
                let last = fields.u32()?;
                Message::Propose { epoch: fields.epoch()?, last }
            }
            START => Message::Start(fields.epoch()?),
            HEARD => Message::Heard,
            REFUSE => Message::Refuse(reason(&mut fields)?),
            RESIZE => Message::Resize(fields.u32()?),
            BYE => Message::Bye,
            found => return Err(Corrupt::Code { field: "message kind", found, max: BYE }),
        };
        fields.end()?;
        Ok(message)
    }
}

fn write_number(kind: u8, number: u32, bytes: &mut Vec<u8>) {
    bytes.push(kind);
    bytes.extend(number.to_le_bytes());
}

fn write_report(report: &Report, bytes: &mut Vec<u8>) {
    bytes.push(REPORT);
    bytes.extend(report.beat.to_le_bytes());
    bytes.extend([report.occasion as u8, report.standing as u8]);
    bytes.extend(report.promised.number.to_le_bytes());
    bytes.extend(report.promised.to.0.to_le_bytes());
    bytes.extend(report.epoch.to_le_bytes());
    bytes.extend(report.accepted.to_le_bytes());
    bytes.push(u8::from(report.state.is_some()));
    if let Some(state) = report.state {
        bytes.extend(state.epoch.to_le_bytes());
        bytes.extend(state.done.to_le_bytes());
    }
    bytes.extend(report.fingerprint.to_le_bytes());
    write_ids(&report.lost, bytes);
    bytes.push(u8::from(report.leaving));
    bytes.push(u8::from(report.known.is_some()));
    if let Some(known) = &report.known {
        write_known(known, bytes);
    }
}

fn report(fields: &mut Fields<'_>) -> Result<Report, Corrupt> {
    Ok(Report {
        beat: fields.u64()?,
        occasion: OCCASIONS[usize::from(fields.code("occasion", 1)?)],
        standing: STANDINGS[usize::from(fields.code("standing", 2)?)],
        promised: Promise { number: fields.u32()?, to: fields.id()? },
        epoch: fields.u32()?,
        accepted: fields.u32()?,
        state: optional(fields, state)?,
        fingerprint: fields.u64()?,
        lost: fields.ids()?,
        leaving: fields.code("leaving", 1)? == 1,
        known: optional(fields, known)?.map(Box::new),
    })
}

fn state(fields: &mut Fields<'_>) -> Result<State, Corrupt> {
    Ok(State { epoch: fields.u32()?, done: fields.u64()? })
}

fn write_known(known: &Known, bytes: &mut Vec<u8>) {
    for epoch in [&known.epoch, &known.accepted] {
        bytes.push(u8::from(epoch.is_some()));
        if let Some(epoch) = epoch {
            write_epoch(epoch, bytes);
        }
    }
}

fn known(fields: &mut Fields<'_>) -> Result<Known, Corrupt> {
    let epoch = |fields: &mut Fields<'_>| -> Result<Option<Epoch>, Corrupt> {
        optional(fields, Fields::epoch)
    };
    Ok(Known { epoch: epoch(fields)?, accepted: epoch(fields)? })
}

fn optional<'a, T>(
    fields: &mut Fields<'a>,
    read: impl FnOnce(&mut Fields<'a>) -> Result<T, Corrupt>,
) -> Result<Option<T>, Corrupt> {
    if fields.code("presence", 1)? == 1 { read(fields).map(Some) } else { Ok(None) }
}

fn write_manner(manner: &Manner, bytes: &mut Vec<u8>) {
    match manner {
        Manner::Abort => bytes.push(0),
        Manner::Finish { leavers } => {
            bytes.push(1);
            write_ids(leavers, bytes);
        }
    }
}

fn manner(fields: &mut Fields<'_>) -> Result<Manner, Corrupt> {
    match fields.code("manner", 1)? {
        0 => Ok(Manner::Abort),
        _ => Ok(Manner::Finish { leavers: fields.ids()? }),
    }
}

fn write_reason(reason: Reason, bytes: &mut Vec<u8>) {
    bytes.push(REFUSE);
    match reason {
        Reason::Full { target } => write_number(0, target, bytes),
        Reason::Fingerprint { found, expected } => {
            bytes.push(1);
            bytes.extend([found, expected].iter().flat_map(|hash| hash.to_le_bytes()));
        }
        Reason::Unreachable { member } => {
            bytes.push(2);
            bytes.extend(member.0.to_le_bytes());
        }
        Reason::Size { found, min, max } => {
            bytes.push(3);
            bytes.extend([found, min, max].iter().flat_map(|size| size.to_le_bytes()));
        }
        Reason::Waiting { wait } => {
            bytes.push(4);
            write_wait(wait, bytes);
        }
    }
}

fn reason(fields: &mut Fields<'_>) -> Result<Reason, Corrupt> {
    Ok(match fields.code("reason", 4)? {
        0 => Reason::Full { target: fields.u32()? },
        1 => Reason::Fingerprint { found: fields.u64()?, expected: fields.u64()? },
        2 => Reason::Unreachable { member: Id(fields.u64()?) },
        3 => Reason::Size { found: fields.u32()?, min: fields.u32()?, max: fields.u32()? },
        _ => Reason::Waiting { wait: wait(fields)? },
    })
}

fn write_wait(wait: Wait, bytes: &mut Vec<u8>) {
    match wait {
        Wait::Members { have, min } => write_pair(0, (have, min), bytes),
        Wait::Quorum { have, need } => write_pair(1, (have, need), bytes),
        Wait::Holder { done } => {
            bytes.push(2);
            bytes.extend(done.to_le_bytes());
        }
        Wait::Proposed { number } => write_number(3, number, bytes),
        Wait::Unknown => bytes.push(4),
    }
}

fn write_pair(code: u8, (first, second): (u32, u32), bytes: &mut Vec<u8>) {
    write_number(code, first, bytes);
    bytes.extend(second.to_le_bytes());
}

fn wait(fields: &mut Fields<'_>) -> Result<Wait, Corrupt> {
    Ok(match fields.code("wait", 4)? {
        0 => Wait::Members { have: fields.u32()?, min: fields.u32()? },
        1 => Wait::Quorum { have: fields.u32()?, need: fields.u32()? },
        2 => Wait::Holder { done: fields.u64()? },
        3 => Wait::Proposed { number: fields.u32()? },
        _ => Wait::Unknown,
    })
}
