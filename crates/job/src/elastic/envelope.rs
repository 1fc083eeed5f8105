//! Messages on a connection between a process and the coordinator.
//!
//! The first byte is the kind. Kinds below 16 are those of the store on the same port, so that requests
//! begin at 16. Laws: `parse(to_bytes(x)) == x` and `to_bytes(parse(b)) == b`, for both directions.

use thinwire_link as link;
use thinwire_member::{Fields, Id, MESSAGE_BYTES_MAX, Message};

use super::bytes::{read_text, write_text};
use super::facts::{FACTS_MAX, Facts, NAME_BYTES_MAX, VALUE_BYTES_MAX};
use super::views::{VIEWS_BYTES_MAX, VIEWS_REQUEST_BYTES_MAX};

/// Most bytes of the figures of a process.
pub const FIGURES_BYTES_MAX: usize = 16 << 10;
/// Most bytes of a text from the coordinator other than a status.
const TEXT_BYTES_MAX: usize = 4096;
/// Most bytes of a request, except one about views.
pub const REQUEST_BYTES_MAX: usize = {
    let join = 10 + FACTS_MAX * (4 + NAME_BYTES_MAX + VALUE_BYTES_MAX);
    if join > 1 + MESSAGE_BYTES_MAX { join } else { 1 + MESSAGE_BYTES_MAX }
};
/// Most bytes of a request about views.
pub const VIEWS_MESSAGE_BYTES_MAX: usize = 9 + VIEWS_REQUEST_BYTES_MAX;

const JOIN: u8 = 16;
const MEMBER: u8 = 17;
const FIGURES: u8 = 18;
const STATUS: u8 = 19;
const RESIZE: u8 = 20;
const COMPLETE: u8 = 21;
const VIEWS: u8 = 22;

const WELCOME: u8 = 16;
const REFUSED: u8 = 18;
const RESIZED: u8 = 20;
const END: u8 = 21;
const VIEWS_REFUSED: u8 = 23;

/// Message to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Id and facts of the process, which it sends before anything else.
    Join {
        /// Id of the process.
        id: Id,
        /// Everything that it must have in common with the others.
        facts: Facts,
    },
    /// Message of the member.
    Member(Message),
    /// JSON of the process, for people.
    Figures(String),
    /// Request of an operator for the state of the job.
    Status,
    /// Request of an operator for another number of ranks.
    Resize(u32),
    /// All steps are done: the job is over.
    Complete,
    /// Request for the views of the job's servers, now and whenever they change.
    Views {
        /// Process that asks; `Id(0)` is one that only reads.
        from: Id,
        /// Request to the view service, if it is not empty.
        request: Vec<u8>,
    },
}

/// Message of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The process may take part.
    Welcome {
        /// Id of the coordinator.
        coordinator: Id,
        /// Time within which a silent process is noticed, in milliseconds.
        silence_ms: u32,
    },
    /// Message to the member.
    Member(Message),
    /// The process or the request is refused, for this reason.
    Refused(String),
    /// JSON of the state of the job.
    Status(String),
    /// The number of ranks is wanted now.
    Resized(u32),
    /// The job ends.
    End(End),
    /// State of the view service.
    Views(Vec<u8>),
    /// The request about views is refused, for this reason.
    ViewsRefused(String),
}

/// Manner in which a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All steps are done.
    Complete,
    /// All processes are to leave, after a step that all agree on.
    Stop,
}

impl Request {
    /// Returns the request as it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Request::Join { id, facts } => {
                let mut bytes = vec![JOIN];
                bytes.extend(id.0.to_le_bytes());
                facts.write(&mut bytes);
                bytes
            }
            Request::Member(message) => [&[MEMBER], &message.to_bytes()[..]].concat(),
            Request::Figures(json) => {
                let mut bytes = vec![FIGURES];
                write_text(json, &mut bytes);
                bytes
            }
            Request::Status => vec![STATUS],
            Request::Resize(target) => [&[RESIZE], &target.to_le_bytes()[..]].concat(),
            Request::Complete => vec![COMPLETE],
            Request::Views { from, request } => {
                [&[VIEWS], &from.0.to_le_bytes()[..], &request[..]].concat()
            }
        }
    }

    /// Reads a request.
    ///
    /// # Errors
    /// If the bytes are no request.
    pub fn parse(bytes: &[u8]) -> Result<Request, link::Error> {
        parse_request(bytes).ok_or_else(|| strange("request to a coordinator", bytes))
    }
}

fn parse_request(bytes: &[u8]) -> Option<Request> {
    let mut fields = Fields::new(bytes);
    let request = match fields.u8().ok()? {
        JOIN => Request::Join { id: Id(fields.u64().ok()?), facts: Facts::read(&mut fields)? },
        MEMBER => return Message::parse(fields.rest()).ok().map(Request::Member),
        FIGURES => Request::Figures(read_text(&mut fields, FIGURES_BYTES_MAX)?),
        STATUS => Request::Status,
        RESIZE => Request::Resize(fields.u32().ok()?),
        COMPLETE => Request::Complete,
        VIEWS => {
            let (from, request) = (Id(fields.u64().ok()?), fields.rest().to_vec());
            let is_short = request.len() <= VIEWS_REQUEST_BYTES_MAX;
            return is_short.then_some(Request::Views { from, request });
        }
        _ => return None,
    };
    fields.end().ok().map(|()| request)
}

impl Reply {
    /// Returns the reply as it travels. The text of a refusal is cut at 4096 bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Reply::Welcome { coordinator, silence_ms } => {
                let mut bytes = vec![WELCOME];
                bytes.extend(coordinator.0.to_le_bytes());
                bytes.extend(silence_ms.to_le_bytes());
                bytes
            }
            Reply::Member(message) => [&[MEMBER], &message.to_bytes()[..]].concat(),
            Reply::Refused(text) => refusal(REFUSED, text),
            Reply::Status(json) => [&[STATUS], json.as_bytes()].concat(),
            Reply::Resized(target) => [&[RESIZED], &target.to_le_bytes()[..]].concat(),
            Reply::End(End::Complete) => vec![END, 0],
            Reply::End(End::Stop) => vec![END, 1],
            Reply::Views(state) => [&[VIEWS], &state[..]].concat(),
            Reply::ViewsRefused(text) => refusal(VIEWS_REFUSED, text),
        }
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// If the bytes are no reply.
    pub fn parse(bytes: &[u8]) -> Result<Reply, link::Error> {
        parse_reply(bytes).ok_or_else(|| strange("message of a coordinator", bytes))
    }
}

fn refusal(kind: u8, text: &str) -> Vec<u8> {
    let mut bytes = vec![kind];
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    write_text(&text[..end], &mut bytes);
    bytes
}

fn parse_reply(bytes: &[u8]) -> Option<Reply> {
    let mut fields = Fields::new(bytes);
    let reply = match fields.u8().ok()? {
        WELCOME => {
            Reply::Welcome { coordinator: Id(fields.u64().ok()?), silence_ms: fields.u32().ok()? }
        }
        MEMBER => return Message::parse(fields.rest()).ok().map(Reply::Member),
        REFUSED => Reply::Refused(read_text(&mut fields, TEXT_BYTES_MAX)?),
        STATUS => return String::from_utf8(fields.rest().to_vec()).ok().map(Reply::Status),
        RESIZED => Reply::Resized(fields.u32().ok()?),
        END => Reply::End(match fields.u8().ok()? {
            0 => End::Complete,
            1 => End::Stop,
            _ => return None,
        }),
        VIEWS => {
            let state = fields.rest().to_vec();
            return (state.len() <= VIEWS_BYTES_MAX).then_some(Reply::Views(state));
        }
        VIEWS_REFUSED => Reply::ViewsRefused(read_text(&mut fields, TEXT_BYTES_MAX)?),
        _ => return None,
    };
    fields.end().ok().map(|()| reply)
}

fn strange(expected: &str, bytes: &[u8]) -> link::Error {
    let (length, kind) = (bytes.len(), bytes.first().copied().unwrap_or_default());
    let context = format!("sent {length} bytes of kind {kind}, expected a {expected}");
    link::Error::new(link::Kind::Corrupt, context)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requests() -> Vec<Request> {
        let fact = |name: &str| (name.to_owned(), format!("the {name}"));
        let facts = Facts::new(vec![fact("model"), fact("data")]).unwrap();
        vec![
            Request::Join { id: Id(7), facts },
            Request::Member(Message::Heard),
            Request::Figures("{\"step\":1}".to_owned()),
            Request::Status,
            Request::Resize(3),
            Request::Complete,
            Request::Views { from: Id(0), request: Vec::new() },
            Request::Views { from: Id(1 << 63), request: b"{\"ready\":3}".to_vec() },
        ]
    }

    fn replies() -> Vec<Reply> {
        vec![
            Reply::Welcome { coordinator: Id(7), silence_ms: 2000 },
            Reply::Member(Message::Hail { number: 4 }),
            Reply::Refused("another model".to_owned()),
            Reply::Status("{}".to_owned()),
            Reply::Resized(3),
            Reply::End(End::Complete),
            Reply::End(End::Stop),
            Reply::Views(Vec::new()),
            Reply::Views(vec![7; 100]),
            Reply::ViewsRefused("no".to_owned()),
        ]
    }

    #[test]
    fn everything_is_read_back_and_nothing_else_means_the_same() {
        for request in requests() {
            let bytes = request.to_bytes();
            assert_eq!(Request::parse(&bytes).unwrap(), request);
            assert!(
                bytes[0] >= 16 && bytes.len() <= REQUEST_BYTES_MAX.max(VIEWS_MESSAGE_BYTES_MAX)
            );
            for place in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[place] ^= 1;
                let same = |found: Request| assert_eq!(found.to_bytes(), changed);
                let _ = Request::parse(&changed).map(same);
                let same = |found: Request| assert_eq!(found.to_bytes(), bytes[..place]);
                let _ = Request::parse(&bytes[..place]).map(same);
            }
        }
        for reply in replies() {
            assert_eq!(Reply::parse(&reply.to_bytes()).unwrap(), reply);
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let long = Reply::Refused("é".repeat(4000)).to_bytes();
        assert!(long.len() <= 3 + TEXT_BYTES_MAX && Reply::parse(&long).is_ok());
        let long = Request::Figures("x".repeat(FIGURES_BYTES_MAX + 1)).to_bytes();
        assert!(Request::parse(&long).is_err());
        let long = Reply::ViewsRefused("x".repeat(5000)).to_bytes();
        assert!(long.len() <= 3 + TEXT_BYTES_MAX && Reply::parse(&long).is_ok());
    }

    #[test]
    fn views_of_any_length_up_to_the_limit_are_read_back_and_longer_ones_are_none() {
        let request = |length| Request::Views { from: Id(5), request: vec![3; length] };
        let longest = request(VIEWS_REQUEST_BYTES_MAX);
        assert_eq!(longest.to_bytes().len(), VIEWS_MESSAGE_BYTES_MAX);
        assert_eq!(Request::parse(&longest.to_bytes()).unwrap(), longest);
        assert!(Request::parse(&request(VIEWS_REQUEST_BYTES_MAX + 1).to_bytes()).is_err());
        let longest = Reply::Views(vec![3; VIEWS_BYTES_MAX]);
        assert_eq!(Reply::parse(&longest.to_bytes()).unwrap(), longest);
        assert!(Reply::parse(&Reply::Views(vec![3; VIEWS_BYTES_MAX + 1]).to_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_write_themselves_back(
            kind in 15..25_u8, rest in prop::collection::vec(0..20_u8, 0..40)
        ) {
            let bytes = [&[kind], &rest[..]].concat();
            if let Ok(request) = Request::parse(&bytes) {
                prop_assert_eq!(request.to_bytes(), &bytes[..]);
            }
            if let Ok(reply) = Reply::parse(&bytes) {
                prop_assert_eq!(reply.to_bytes(), bytes);
            }
        }
    }
}
