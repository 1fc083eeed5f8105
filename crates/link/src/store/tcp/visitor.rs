//! One connection to a store as its server sees it: bytes in, bytes out.
//!
//! A connection begins as a stranger's, and becomes a client's when its first record opens: the
//! handshake alone proves nothing, since anybody who has recorded its first message can replay it.
//! Law: for any input, no buffer outgrows [`Visitor::input_bytes_max`] or [`OUTPUT_BYTES_MAX`] and
//! one reply; a client that does not read its replies gets no further ones.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::secure::{Handshake, Preamble, Role, Session, Token};
use crate::store;
use crate::store::mem::Values;
use crate::store::tcp::message::{self, MESSAGE_BYTES_MAX, Request};
use crate::strangers::Tally;
use crate::{Error, Kind};

/// Bytes read ahead from a stranger: more than a handshake and a first request take.
pub const STRANGER_INPUT_BYTES_MAX: usize = 512;
/// The longest plaintext of a first record: a client that only announces itself needs few bytes.
pub const FIRST_BYTES_MAX: usize = STRANGER_INPUT_BYTES_MAX / 2;
/// Bytes read ahead from a client: a request as a record, and a part of the next.
pub const INPUT_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 4096;
/// Bytes of unread replies beyond which no further request is read.
pub const OUTPUT_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// The most refusals to print: a stranger may connect any number of times.
const SAID_MAX: usize = 8;

/// State that all visitors of a store share.
#[derive(Debug, Default)]
pub struct Contents {
    pub(super) values: Values,
    /// The reason of the last refusal: it may be of the rank that others wait for.
    pub(super) refused: Option<Error>,
    pub(super) strangers: Tally,
    said: usize,
}

impl Contents {
    /// Keeps and prints the reason of a refusal: it may be of the rank that others wait for.
    pub(super) fn refuse(&mut self, error: Error) {
        if self.said < SAID_MAX {
            self.said += 1;
            // Where nobody reads, nobody is told.
            let _ = writeln!(io::stderr(), "thinwire: {error}");
        }
        self.refused = Some(error);
    }

    /// The probable cause of a missing value: its writer was refused, or never got through.
    fn missing(&self, key: &str, wait: Duration) -> Error {
        let mut missing = store::missing(key, wait);
        if let Some(strangers) = self.strangers.describe() {
            missing.context = format!("{}; {strangers}", missing.context);
        }
        match &self.refused {
            Some(refused) => Error::new(refused.kind, format!("{missing}; {}", refused.context)),
            None => missing,
        }
    }

    /// The reply to a waiting client, if it is due.
    fn reply(&self, waiting: &Waiting, now: Instant) -> Option<Vec<u8>> {
        match self.values.get(&waiting.key) {
            Some(value) => Some(message::reply_to_bytes(Ok(value))),
            None if now >= waiting.deadline => {
                let missing = self.missing(&waiting.key, waiting.wait);
                Some(message::reply_to_bytes(Err(&missing)))
            }
            None => None,
        }
    }
}

/// One turn of a visitor: buffers of the connection, state of the store, and the time.
pub struct Turn<'a> {
    /// Bytes that were received; those that are understood are removed.
    pub input: &'a mut Vec<u8>,
    /// Bytes to send; replies are appended.
    pub output: &'a mut Vec<u8>,
    /// State that all visitors share.
    pub contents: &'a mut Contents,
    /// The time of this turn.
    pub now: Instant,
}

/// A client of a store, or a stranger that may become one.
#[derive(Debug)]
pub struct Visitor {
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Shaking(Handshake),
    Shaken(Client),
}

/// The other end after a complete handshake.
#[derive(Debug)]
struct Client {
    session: Session,
    /// A record has opened, which only the keys of this very handshake can seal.
    proven: bool,
    waiting: Option<Waiting>,
}

/// A request for a value that has not been written yet.
#[derive(Debug)]
struct Waiting {
    key: String,
    wait: Duration,
    deadline: Instant,
}

impl Visitor {
    /// A stranger who is to prove `token`.
    pub fn new(token: &Token) -> Visitor {
        let handshake = Handshake::new(Role::Responder, token, Preamble { encrypt: true });
        Visitor { stage: Stage::Shaking(handshake) }
    }

    /// Whether it has not proven the token.
    pub fn is_stranger(&self) -> bool {
        !matches!(&self.stage, Stage::Shaken(client) if client.proven)
    }

    /// The number of bytes to read ahead.
    pub fn input_bytes_max(&self) -> usize {
        if self.is_stranger() { STRANGER_INPUT_BYTES_MAX } else { INPUT_BYTES_MAX }
    }

    /// The end of its wait for a value, if it waits.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Shaken(client) => client.waiting.as_ref().map(|waiting| waiting.deadline),
            Stage::Shaking(_) => None,
        }
    }

    /// Takes complete requests from the input and appends replies to the output.
    ///
    /// # Errors
    /// If the other side has another token or version, or sends what no client does. The output may
    /// then still hold a last word.
    pub fn advance(&mut self, turn: &mut Turn<'_>) -> Result<(), Error> {
        if let Stage::Shaking(handshake) = &mut self.stage {
            let shaken = handshake.advance(turn.input, turn.output)?;
            let Some((session, _)) = shaken else { return Ok(()) };
            self.stage = Stage::Shaken(Client { session, proven: false, waiting: None });
        }
        let Stage::Shaken(client) = &mut self.stage else { return Ok(()) };
        client.serve(turn)?;
        // Nothing is read while a client waits, so a full buffer would never empty.
        if client.waiting.is_some() && turn.input.len() >= INPUT_BYTES_MAX {
            return Err(Error::new(Kind::Limit, "asks faster than it takes replies"));
        }
        Ok(())
    }
}

impl Client {
    fn serve(&mut self, turn: &mut Turn<'_>) -> Result<(), Error> {
        let Turn { input, output, contents, now } = turn;
        // A client that does not read its replies gets no further ones.
        while output.len() < OUTPUT_BYTES_MAX {
            if let Some(wanted) = &self.waiting {
                let Some(reply) = contents.reply(wanted, *now) else { break };
                self.session.seal(&reply, output);
                self.waiting = None;
            }
            let limit = if self.proven { MESSAGE_BYTES_MAX } else { FIRST_BYTES_MAX };
            let Some(request) = self.session.receive(input, limit)? else { break };
            self.proven = true;
            match Request::parse(&request)? {
                Request::Set { key, value } => {
                    let done = contents.values.set(&key, &value);
                    let reply = message::reply_to_bytes(done.as_ref().map(|()| &[][..]));
                    self.session.seal(&reply, output);
                }
                Request::Get { key, wait } => {
                    self.waiting = Some(Waiting { key, wait, deadline: *now + wait });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A visitor, the other end of its connection, and what they share.
    struct Talk {
        visitor: Visitor,
        input: Vec<u8>,
        output: Vec<u8>,
        contents: Contents,
        now: Instant,
    }

    impl Talk {
        fn new() -> Talk {
            let (visitor, now) = (Visitor::new(&token()), Instant::now());
            let (input, output) = (Vec::new(), Vec::new());
            Talk { visitor, input, output, contents: Contents::default(), now }
        }

        fn advance(&mut self) -> Result<(), Error> {
            let Talk { visitor, input, output, contents, now } = self;
            visitor.advance(&mut Turn { input, output, contents, now: *now })
        }

        /// Completes the handshake; returns the session of the other end and the bytes that it
        /// sent.
        fn shake(&mut self) -> (Session, Vec<u8>) {
            let mut other = Handshake::new(Role::Initiator, &token(), Preamble { encrypt: true });
            let mut said = Vec::new();
            loop {
                let before = self.input.len();
                let done = other.advance(&mut self.output, &mut self.input).unwrap();
                said.extend_from_slice(&self.input[before..]);
                if let Some((session, _)) = done {
                    return (session, said);
                }
                self.advance().unwrap();
            }
        }
    }

    fn token() -> Token {
        Token::new("visitors")
    }

    fn get(key: &str, wait: Duration) -> Vec<u8> {
        Request::Get { key: key.to_owned(), wait }.to_bytes()
    }

    #[test]
    fn only_a_record_that_opens_makes_a_stranger_known() {
        let mut talk = Talk::new();
        let (mut session, _) = talk.shake();
        talk.advance().unwrap();
        assert!(talk.visitor.is_stranger());
        session.seal(&get("key", Duration::ZERO), &mut talk.input);
        talk.advance().unwrap();
        assert!(!talk.visitor.is_stranger());
    }

    #[test]
    fn a_repeated_handshake_leaves_a_stranger() {
        let (_, said) = Talk::new().shake();
        let mut talk = Talk::new();
        talk.input = said;
        talk.advance().unwrap();
        assert!(talk.input.is_empty() && talk.visitor.is_stranger());
        assert_eq!(talk.visitor.input_bytes_max(), STRANGER_INPUT_BYTES_MAX);
        talk.input = vec![16, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(talk.advance().unwrap_err().kind, Kind::Corrupt);
        assert!(talk.visitor.is_stranger());
    }

    #[test]
    fn a_stranger_cannot_announce_a_long_record() {
        let mut talk = Talk::new();
        let (mut session, _) = talk.shake();
        session.seal(&[2; FIRST_BYTES_MAX + 1], &mut talk.input);
        assert_eq!(talk.advance().unwrap_err().kind, Kind::Limit);
    }

    #[test]
    fn who_does_not_read_replies_gets_no_more_of_them() {
        let mut talk = Talk::new();
        let (mut session, _) = talk.shake();
        let value = vec![7; store::VALUE_BYTES_MAX];
        talk.contents.values.set("large", &value).unwrap();
        (0..500).for_each(|_| session.seal(&get("large", Duration::ZERO), &mut talk.input));
        for answered in 0..500 {
            talk.advance().unwrap();
            assert!(talk.output.len() < OUTPUT_BYTES_MAX + MESSAGE_BYTES_MAX, "{answered}");
            let reply = session.receive(&mut talk.output, MESSAGE_BYTES_MAX).unwrap().unwrap();
            assert_eq!(message::parse_reply(&reply).unwrap(), value);
        }
        assert!(talk.input.is_empty() && talk.output.is_empty());
    }

    proptest! {
        /// Memory per unauthenticated byte: bounded, whatever comes and however it is cut.
        #[test]
        fn strangers_fill_no_buffers(
            said: bool, chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..20)
        ) {
            let mut talk = Talk::new();
            if said {
                talk.input = Talk::new().shake().1;
            }
            for chunk in chunks {
                let room = talk.visitor.input_bytes_max() - talk.input.len();
                talk.input.extend(chunk.into_iter().take(room));
                let advanced = talk.advance();
                let held = talk.input.capacity() + talk.output.capacity();
                prop_assert!(talk.visitor.is_stranger() && held <= 4 * STRANGER_INPUT_BYTES_MAX);
                if advanced.is_err() {
                    break;
                }
            }
        }
    }

    #[test]
    fn strangers_are_named_where_a_rank_is_missing() {
        let mut talk = Talk::new();
        let (mut session, _) = talk.shake();
        (0..300).for_each(|_| talk.contents.strangers.add([10, 0, 0, 7].into()));
        session.seal(&get("rank/1", Duration::ZERO), &mut talk.input);
        talk.advance().unwrap();
        let reply = session.receive(&mut talk.output, MESSAGE_BYTES_MAX).unwrap().unwrap();
        let said = message::parse_reply(&reply).unwrap_err().to_string();
        let strangers = "300 connections did not prove the job token, from 10.0.0.7";
        assert_eq!(said, format!("nobody wrote rank/1 within 0.0 s; {strangers}"));
    }
}
