//! Messages between processes and their coordinator.
//!
//! All messages are idempotent, and the coordinator answers each heartbeat with everything that the
//! sender of the heartbeat lacks. So a lost, repeated or reordered message costs at most the time of a
//! heartbeat.
//!
//! Law: `parse(to_bytes(m)) == m` for every message whose epochs are sound; any bytes are a message within
//! limits or an error.

use serde::{Deserialize, Serialize};
use thinwire_wire::{WORLD_SIZE_MAX, decode, encode};

use crate::epoch::{EPOCH_BYTES_MAX, check_members};
use crate::{Corrupt, Epoch, Id, Promise, State, Wait};

/// Largest size of a report without lists and epochs, in bytes.
const REPORT_BYTES: usize = 96;
/// Largest number of bytes of a message.
pub const MESSAGE_BYTES_MAX: usize =
    REPORT_BYTES + 10 * WORLD_SIZE_MAX as usize + 2 * (1 + EPOCH_BYTES_MAX);

/// Message from one process to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// State of the sender, sent to its coordinator once per heartbeat and at every change.
    Report(Report),
    /// Request of a coordinator without state that the process obey it. Training continues.
    Prepare {
        /// Number of the promise.
        number: u32,
    },
    /// Order to end the epoch, and to promise `number`.
    Stop {
        /// Smallest number of the next epoch.
        number: u32,
        /// Number of the last epoch that has started.
        last: u32,
        /// Manner in which the current step ends.
        manner: Manner,
    },
    /// Next epoch, which starts when enough processes know of it.
    Propose {
        /// The epoch.
        epoch: Epoch,
        /// Number of the last epoch that has started.
        last: u32,
    },
    /// Epoch that has started. Members run; others are fenced.
    Start(Epoch),
    /// Receipt of a report that needs no other answer.
    Heard,
    /// Refusal of a newcomer, for now or for good.
    Refuse(Reason),
    /// Request of an operator for another number of ranks.
    Resize(u32),
    /// Farewell of a process that ends.
    Bye,
}

impl Message {
    /// Returns the bytes of the message as they are sent, at most [`MESSAGE_BYTES_MAX`].
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// If the bytes are not a message, or an epoch or a list in it is impossible.
    pub fn parse(bytes: &[u8]) -> Result<Message, Corrupt> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Corrupt::Length { found: bytes.len(), max: MESSAGE_BYTES_MAX });
        }
        let message: Message = decode(bytes)?;
        message.check().map(|()| message)
    }

    /// Checks the epochs and the lists of a message that was read as part of another message.
    ///
    /// # Errors
    /// If an epoch or a list is impossible.
    pub fn check(&self) -> Result<(), Corrupt> {
        match self {
            Message::Report(report) => {
                let known = report.known.iter().flat_map(|it| [&it.epoch, &it.accepted]);
                known.flatten().try_for_each(Epoch::check)?;
                check_members(&report.lost)
            }
            Message::Stop { manner: Manner::Finish { leavers }, .. } => check_members(leavers),
            Message::Propose { epoch, .. } | Message::Start(epoch) => epoch.check(),
            _ => Ok(()),
        }
    }
}

/// State of a process, as it reports it to its coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Number of the report, by which newer reports are recognised.
    pub heartbeat: u64,
    /// Reason why the report is sent. Only heartbeats are answered, so that answers do not cause further
    /// reports.
    pub occasion: Occasion,
    /// Activity of the process.
    pub standing: Standing,
    /// Promise of the process, with the coordinator that it obeys.
    pub promised: Promise,
    /// Last epoch that the process knows to have started; 0 if it knows none.
    pub epoch: u32,
    /// Last epoch that was proposed to the process; 0 if none was.
    pub accepted: u32,
    /// Training state; `None` for a newcomer.
    pub state: Option<State>,
    /// Hash of the facts that all members must have in common: model, data, version.
    pub fingerprint: u64,
    /// Members of the process's epoch that the process cannot reach.
    pub lost: Vec<Id>,
    /// Whether the process wants to leave.
    pub leaving: bool,
    /// Epochs in full, in answer to a prepare message.
    pub known: Option<Box<Known>>,
}

/// Reason of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Occasion {
    /// A heartbeat is due: the coordinator answers with everything that the process lacks.
    Heartbeat,
    /// Something has changed, or the coordinator has asked.
    News,
}

/// Epochs that a process knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Last epoch that has started.
    pub epoch: Option<Epoch>,
    /// Later epoch that was proposed, and may have started.
    pub accepted: Option<Epoch>,
}

/// Activity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// The process is not a member, but wants to be one and get its state from the others.
    Newcomer,
    /// Member that computes steps, or may still do so.
    Running,
    /// Member that has stopped: the last step in its state is final.
    Halted,
}

/// Manner in which an epoch ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// After a step on which all agree by a flag in its messages, so that no work is lost. Leavers then hand
    /// on their residuals.
    Finish {
        /// Members that are not in the next epoch, in the order of their ranks.
        leavers: Vec<Id>,
    },
    /// At once: a member is lost and the step cannot be completed.
    Abort,
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The job has as many ranks as it should; the newcomer is a spare.
    Full {
        /// Number of ranks.
        target: u32,
    },
    /// Another model, other data or another version.
    Fingerprint {
        /// Fingerprint of the newcomer.
        found: u64,
        /// Fingerprint of the job.
        expected: u64,
    },
    /// The newcomer and a member could not reach each other a short time ago.
    Unreachable {
        /// Member that the newcomer could not reach, or that could not reach it.
        member: Id,
    },
    /// No epoch can be formed at the moment: the process waits for one, as all others do.
    Waiting {
        /// Reason why no epoch can be formed.
        wait: Wait,
    },
    /// A size that the job's limits exclude.
    Size {
        /// Number of ranks that was requested.
        found: u32,
        /// Smallest number of ranks.
        min: u32,
        /// Largest number of ranks.
        max: u32,
    },
}
