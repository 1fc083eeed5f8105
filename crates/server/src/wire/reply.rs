//! Messages from servers to clients.

use thinwire_link::Error;
use thinwire_member::{Fields, Id};

use super::fields::{id, number, strange, whole, write_u64};
use super::kind::{ACKNOWLEDGE, ANSWER, DELAYED, MISFIT, REFUSED, STRANGER, WELCOME};
use crate::clocks::Pace;
use crate::reason::{Reason, Request, Slowest};

/// Largest size of a text from a server in bytes; longer texts are cut.
pub const TEXT_BYTES_MAX: usize = 4096;

/// Size of an answer without its values, in bytes.
const ANSWER_HEAD_BYTES: usize = 25;

const REQUEST_PUSH: u8 = 0;
const REQUEST_PULL: u8 = 1;

const ELSEWHERE: u8 = 0;
const SOMEWHERE: u8 = 1;
const UNKNOWN: u8 = 2;
const EARLY: u8 = 3;
const BUSY: u8 = 4;

/// Message of a server to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum FromServer {
    /// Answer to the hello of a client or another server.
    Welcome {
        /// Id of the server.
        server: Id,
    },
    /// A push is committed.
    Acknowledge {
        /// Number of the shard.
        shard: u32,
        /// Number of the push.
        number: u64,
        /// Progress of the workers.
        pace: Pace,
    },
    /// A request waits for a slower worker. It stays where it is.
    Delayed {
        /// Number of the shard.
        shard: u32,
        /// The request.
        request: Request,
        /// Worker for which it waits.
        slowest: Slowest,
    },
    /// Values of rows.
    Answer {
        /// Number of the shard.
        shard: u32,
        /// Number of the pull.
        request: u64,
        /// Progress of the workers.
        pace: Pace,
        /// Values in the order of the pull, row by row, in the formats of their tables.
        values: Vec<u8>,
    },
    /// A request is refused; the client has to repeat it, to this server or another.
    Refused {
        /// Number of the shard.
        shard: u32,
        /// The request.
        request: Request,
        /// The reason.
        reason: Reason,
    },
    /// A request does not fit the tables, and would not if it were repeated.
    Misfit {
        /// Number of the shard.
        shard: u32,
        /// The request.
        request: Request,
        /// The reason in one line.
        text: String,
    },
    /// The client is not admitted, and the connection is closed.
    Stranger {
        /// The reason in one line.
        text: String,
    },
}

impl FromServer {
    /// Serialises the message. Texts that are too long are cut.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            FromServer::Welcome { server } => {
                bytes.push(WELCOME);
                write_u64(server.0, &mut bytes);
            }
            FromServer::Acknowledge { shard, number, pace } => {
                bytes.push(ACKNOWLEDGE);
                bytes.extend(shard.to_le_bytes());
                write_u64(*number, &mut bytes);
                write_pace(*pace, &mut bytes);
            }
            FromServer::Delayed { shard, request, slowest } => {
                write_request(DELAYED, *shard, *request, &mut bytes);
                [slowest.worker.0, slowest.step].iter().for_each(|it| write_u64(*it, &mut bytes));
            }
            FromServer::Answer { shard, request, pace, values } => {
                bytes = answer_head(*shard, *request, *pace, values.len());
                bytes.extend_from_slice(values);
            }
            FromServer::Refused { shard, request, reason } => {
                write_request(REFUSED, *shard, *request, &mut bytes);
                write_reason(*reason, &mut bytes);
            }
            FromServer::Misfit { shard, request, text } => {
                write_request(MISFIT, *shard, *request, &mut bytes);
                write_text(text, &mut bytes);
            }
            FromServer::Stranger { text } => {
                bytes.push(STRANGER);
                write_text(text, &mut bytes);
            }
        }
        bytes
    }

    /// Returns the progress of the workers, if the message tells it.
    pub(crate) fn pace(&self) -> Option<Pace> {
        match self {
            FromServer::Acknowledge { pace, .. } | FromServer::Answer { pace, .. } => Some(*pace),
            _ => None,
        }
    }

    /// Parses a message.
    ///
    /// # Errors
    /// If the bytes are no valid message.
    pub fn parse(bytes: &[u8]) -> Result<FromServer, Error> {
        whole(bytes, read).ok_or_else(|| strange("message of a parameter server", bytes))
    }
}

/// Serialises an answer without its values, with capacity for `values` bytes of them. The values are appended
/// unchanged.
pub fn answer_head(shard: u32, request: u64, pace: Pace, values: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ANSWER_HEAD_BYTES + values);
    bytes.push(ANSWER);
    bytes.extend(shard.to_le_bytes());
    write_u64(request, &mut bytes);
    write_pace(pace, &mut bytes);
    bytes
}

fn write_pace(pace: Pace, bytes: &mut Vec<u8>) {
    write_u64(pace.step, bytes);
    bytes.extend(pace.pushing.to_le_bytes());
}

fn read_pace(fields: &mut Fields<'_>) -> Option<Pace> {
    Some(Pace { step: number(fields)?, pushing: fields.u32().ok()? })
}

fn write_request(kind: u8, shard: u32, request: Request, bytes: &mut Vec<u8>) {
    bytes.push(kind);
    bytes.extend(shard.to_le_bytes());
    let (code, number) = match request {
        Request::Push(number) => (REQUEST_PUSH, number),
        Request::Pull(number) => (REQUEST_PULL, number),
    };
    bytes.push(code);
    write_u64(number, bytes);
}

fn write_reason(reason: Reason, bytes: &mut Vec<u8>) {
    let (code, number) = match reason {
        Reason::Elsewhere { primary: None } => return bytes.push(ELSEWHERE),
        Reason::Unknown => return bytes.push(UNKNOWN),
        Reason::Elsewhere { primary: Some(id) } => (SOMEWHERE, id.0),
        Reason::Early { expected } => (EARLY, expected),
        Reason::Busy { waiting } => (BUSY, waiting as u64),
    };
    bytes.push(code);
    write_u64(number, bytes);
}

fn write_text(text: &str, bytes: &mut Vec<u8>) {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    bytes.extend_from_slice(&text.as_bytes()[..end]);
}

fn read(fields: &mut Fields<'_>) -> Option<FromServer> {
    Some(match fields.u8().ok()? {
        WELCOME => FromServer::Welcome { server: id(fields)? },
        ACKNOWLEDGE => {
            let shard = fields.u32().ok()?;
            FromServer::Acknowledge { shard, number: number(fields)?, pace: read_pace(fields)? }
        }
        ANSWER => {
            let shard = fields.u32().ok()?;
            let (request, pace) = (fields.u64().ok()?, read_pace(fields)?);
            let length = fields.clone().rest().len();
            let values = fields.bytes(length).ok()?.to_vec();
            FromServer::Answer { shard, request, pace, values }
        }
        REFUSED => {
            let (shard, request) = read_request(fields)?;
            FromServer::Refused { shard, request, reason: read_reason(fields)? }
        }
        MISFIT => {
            let (shard, request) = read_request(fields)?;
            FromServer::Misfit { shard, request, text: read_text(fields)? }
        }
        DELAYED => {
            let (shard, request) = read_request(fields)?;
            let slowest = Slowest { worker: id(fields)?, step: number(fields)? };
            FromServer::Delayed { shard, request, slowest }
        }
        STRANGER => FromServer::Stranger { text: read_text(fields)? },
        _ => return None,
    })
}

fn read_request(fields: &mut Fields<'_>) -> Option<(u32, Request)> {
    let (shard, code, number) = (fields.u32().ok()?, fields.u8().ok()?, fields.u64().ok()?);
    match code {
        REQUEST_PUSH => Some((shard, Request::Push(number))),
        REQUEST_PULL => Some((shard, Request::Pull(number))),
        _ => None,
    }
}

fn read_reason(fields: &mut Fields<'_>) -> Option<Reason> {
    Some(match fields.u8().ok()? {
        ELSEWHERE => Reason::Elsewhere { primary: None },
        SOMEWHERE => Reason::Elsewhere { primary: Some(id(fields)?) },
        UNKNOWN => Reason::Unknown,
        EARLY => Reason::Early { expected: fields.u64().ok()? },
        BUSY => Reason::Busy { waiting: usize::try_from(fields.u64().ok()?).ok()? },
        _ => return None,
    })
}

/// Reads the remaining bytes as text.
fn read_text(fields: &mut Fields<'_>) -> Option<String> {
    let length = fields.clone().rest().len();
    let text = fields.bytes(length).ok().filter(|_| length <= TEXT_BYTES_MAX)?;
    String::from_utf8(text.to_vec()).ok()
}
