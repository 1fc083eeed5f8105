//! Messages on a connection between a process and the coordinator.
//!
//! A request begins with the byte 16; smaller first bytes are those of the store on the same port. Law:
//! `parse(to_bytes(x)) == x`, for both directions.

use std::fmt;

use serde::{Deserialize, Serialize};
use thinwire_link::store::KeyValueService;
use thinwire_link::{self as link, unreadable};
use thinwire_member::{Id, MESSAGE_BYTES_MAX, Message};
use thinwire_wire::{TEXT_BYTES_MAX, cut_text, decode, encode, encode_after, raw};

use super::job_spec::{ENTRIES_MAX, JobSpec, NAME_BYTES_MAX, VALUE_BYTES_MAX};
use super::views::{VIEWS_BYTES_MAX, VIEWS_REQUEST_BYTES_MAX};

/// Largest number of bytes of the figures of a process.
pub const FIGURES_BYTES_MAX: usize = 16 << 10;
/// First byte of a request.
const REQUEST: u8 = 16;
/// Largest number of bytes of a request's numbers.
const NUMBERS_BYTES_MAX: usize = 16;
/// Largest number of bytes of a request, except one about views.
pub const REQUEST_BYTES_MAX: usize = {
    let join = NUMBERS_BYTES_MAX + ENTRIES_MAX * (4 + NAME_BYTES_MAX + VALUE_BYTES_MAX);
    let member = NUMBERS_BYTES_MAX + MESSAGE_BYTES_MAX;
    if join > member { join } else { member }
};
/// Largest number of bytes of a request about views.
pub const VIEWS_MESSAGE_BYTES_MAX: usize = NUMBERS_BYTES_MAX + VIEWS_REQUEST_BYTES_MAX;

/// Message to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Id and job spec of the process, which it sends before anything else.
    Join {
        /// Id of the process.
        id: Id,
        /// Job spec, which must be equal on all processes of the role.
        spec: JobSpec,
    },
    /// Message of the member.
    Member(Message),
    /// Figures of the process that users see, as JSON.
    Figures(String),
    /// Request of an operator to read the state of the job.
    Status,
    /// Request of an operator to change the number of ranks.
    Resize(u32),
    /// All steps are done: the job is over.
    Complete,
    /// Request for the views of the job's servers, now and whenever they change.
    Views {
        /// Process that asks; `Id(0)` if it only reads.
        from: Id,
        /// Request to the view service, if it is not empty.
        #[serde(with = "raw")]
        request: Vec<u8>,
    },
}

/// Message of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    Refused(#[serde(serialize_with = "cut_text")] String),
    /// State of the job, as JSON.
    Status(String),
    /// The job should have this number of ranks from now on.
    Resized(u32),
    /// The job ends.
    End(End),
    /// State of the view service.
    Views(#[serde(with = "raw")] Vec<u8>),
    /// The request about views is refused, for this reason.
    ViewsRefused(#[serde(serialize_with = "cut_text")] String),
}

/// Manner in which a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// All steps are done.
    Complete,
    /// All processes are to leave, after a step that all agree on.
    Stop,
}

impl Request {
    /// Returns the bytes of the request as they are sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode_after(vec![REQUEST], self)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// If the bytes are not a request, or a part of it is longer than allowed.
    pub fn parse(bytes: &[u8]) -> Result<Request, link::Error> {
        let strange = |why: &dyn fmt::Display| unreadable("request to a coordinator", bytes, why);
        let content = bytes.strip_prefix(&[REQUEST]).ok_or_else(|| strange(&"another kind"))?;
        let request = decode(content).map_err(|why| strange(&why))?;
        match &request {
            Request::Member(message) => message.check().map_err(|why| strange(&why))?,
            Request::Figures(json) => limit("figures", json.len(), FIGURES_BYTES_MAX)?,
            Request::Views { request, .. } => {
                limit("a request about views", request.len(), VIEWS_REQUEST_BYTES_MAX)?;
            }
            // A job spec checks its lengths when it is decoded; the other requests have a fixed length.
            _ => {}
        }
        Ok(request)
    }
}

impl Reply {
    /// Returns the bytes of the reply as they are sent. The text of a refusal is cut at 4096 bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// If the bytes are not a reply, or a part of it is longer than allowed.
    pub fn parse(bytes: &[u8]) -> Result<Reply, link::Error> {
        let strange = |why: &dyn fmt::Display| unreadable("message of a coordinator", bytes, why);
        let reply = decode(bytes).map_err(|why| strange(&why))?;
        match &reply {
            Reply::Member(message) => message.check().map_err(|why| strange(&why))?,
            Reply::Refused(text) | Reply::ViewsRefused(text) => {
                limit("a refusal", text.len(), TEXT_BYTES_MAX)?;
            }
            Reply::Views(state) => limit("views", state.len(), VIEWS_BYTES_MAX)?,
            _ => {}
        }
        Ok(reply)
    }
}

fn limit(what: &str, found: usize, max: usize) -> Result<(), link::Error> {
    if found <= max {
        return Ok(());
    }
    let context = format!("sent {what} of {found} bytes, expected at most {max}");
    Err(link::Error::new(link::Kind::Corrupt, context))
}

/// Checks that serialising the parsed answer to a message gives the same bytes.
///
/// # Panics
/// If the bytes differ.
pub fn check_reply(message: &[u8], reply: &[u8]) {
    if !KeyValueService::is_request(message) {
        assert_eq!(Reply::parse(reply).expect("a reply").to_bytes(), reply);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requests() -> Vec<Request> {
        let fact = |name: &str| (name.to_owned(), format!("the {name}"));
        let spec = JobSpec::new(vec![fact("model"), fact("data")]).unwrap();
        vec![
            Request::Join { id: Id(7), spec },
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
            Reply::Member(Message::Prepare { number: 4 }),
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
    fn everything_is_read_back_and_whatever_else_is_read_is_within_limits() {
        for request in requests() {
            let bytes = request.to_bytes();
            assert_eq!(Request::parse(&bytes).unwrap(), request);
            assert!(
                bytes[0] >= 16 && bytes.len() <= REQUEST_BYTES_MAX.max(VIEWS_MESSAGE_BYTES_MAX)
            );
            for place in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[place] ^= 1;
                if let Ok(found) = Request::parse(&changed) {
                    assert_eq!(Request::parse(&found.to_bytes()).unwrap(), found);
                }
                assert!(Request::parse(&bytes[..place]).is_err(), "{request:?}");
            }
        }
        for reply in replies() {
            let bytes = reply.to_bytes();
            assert_eq!(Reply::parse(&bytes).unwrap(), reply);
            (0..bytes.len()).for_each(|end| assert!(Reply::parse(&bytes[..end]).is_err()));
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let long = Reply::Refused("é".repeat(4000)).to_bytes();
        assert!(long.len() <= 4 + TEXT_BYTES_MAX && Reply::parse(&long).is_ok());
        let long = Request::Figures("x".repeat(FIGURES_BYTES_MAX + 1)).to_bytes();
        let said = "sent figures of 16385 bytes, expected at most 16384";
        assert_eq!(Request::parse(&long).unwrap_err().to_string(), said);
        let long = Reply::ViewsRefused("x".repeat(5000)).to_bytes();
        assert!(long.len() <= 4 + TEXT_BYTES_MAX && Reply::parse(&long).is_ok());
    }

    #[test]
    fn views_of_any_length_up_to_the_limit_are_read_back_and_longer_ones_are_none() {
        let request = |length| Request::Views { from: Id(5), request: vec![3; length] };
        let longest = request(VIEWS_REQUEST_BYTES_MAX);
        assert!(longest.to_bytes().len() <= VIEWS_MESSAGE_BYTES_MAX);
        assert_eq!(Request::parse(&longest.to_bytes()).unwrap(), longest);
        assert!(Request::parse(&request(VIEWS_REQUEST_BYTES_MAX + 1).to_bytes()).is_err());
        let longest = Reply::Views(vec![3; VIEWS_BYTES_MAX]);
        assert_eq!(Reply::parse(&longest.to_bytes()).unwrap(), longest);
        assert!(Reply::parse(&Reply::Views(vec![3; VIEWS_BYTES_MAX + 1]).to_bytes()).is_err());
    }

    #[test]
    fn lists_and_facts_beyond_their_limits_are_refused() {
        let said = |bytes: &[u8]| Request::parse(bytes).unwrap_err().to_string();
        let leavers = vec![Id(1); 4097];
        let manner = thinwire_member::Manner::Finish { leavers };
        let stop = Request::Member(Message::Stop { number: 1, last: 0, manner }).to_bytes();
        let length = stop.len();
        assert_eq!(
            said(&stop),
            format!(
                "sent {length} bytes, expected a request to a coordinator: 4097 members, expected at most 4096"
            )
        );
        let fact = |name: u32| (name.to_string(), "x".to_owned());
        for spec in [(0..65).map(fact).collect::<Vec<_>>(), vec![fact(1), fact(1)]] {
            let join = encode_after(vec![REQUEST], &(0_u8, Id(7), spec));
            assert!(said(&join).ends_with("a field with a value that its type forbids"));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_a_message(
            kind in 0..10_u8, rest in prop::collection::vec(0..20_u8, 0..40)
        ) {
            let bytes = [&[REQUEST, kind], &rest[..]].concat();
            if let Ok(request) = Request::parse(&bytes) {
                prop_assert_eq!(Request::parse(&request.to_bytes()).unwrap(), request);
            }
            if let Ok(reply) = Reply::parse(&bytes[1..]) {
                prop_assert_eq!(Reply::parse(&reply.to_bytes()).unwrap(), reply);
            }
        }
    }
}
