//! Law of the handshake between two sides, with an attacker on the wire between them.

use thinwire_link::Token;
use thinwire_link::fuzzing::{Address, Handshake, Key, PREFACE_BYTES, Preamble, Role, Session};

use crate::draw::Draw;

/// Bytes of the first messages of a side, and a little more.
const SAID_BYTES_MAX: usize = 512;

struct Side {
    handshake: Handshake,
    input: Vec<u8>,
    output: Vec<u8>,
    /// All bytes that the side has sent, and all that it was given.
    said: Vec<u8>,
    heard: Vec<u8>,
    session: Option<Session>,
    over: bool,
}

impl Side {
    fn new(role: Role, token: &str, preamble: Preamble) -> Side {
        let handshake = Handshake::new(role, &Token::new(token), preamble);
        let [input, output, said, heard] = Default::default();
        Side { handshake, input, output, said, heard, session: None, over: false }
    }

    fn advance(&mut self) {
        if self.session.is_some() {
            return;
        }
        let before = self.output.len();
        match self.handshake.advance(&mut self.input, &mut self.output) {
            Ok(None) => assert!(!self.over, "an error is final"),
            Ok(Some((session, _))) => {
                assert!(!self.over, "an error is final");
                self.session = Some(session);
            }
            Err(_) => self.over = true,
        }
        self.said.extend_from_slice(&self.output[before..]);
        assert!(self.said.len() <= SAID_BYTES_MAX, "{}", self.said.len());
    }

    /// Returns the bytes of the other side that this side has accepted.
    fn taken(&self) -> &[u8] {
        &self.heard[..self.heard.len() - self.input.len()]
    }
}

/// Checks, under any cut, change, replay or injection on the way, that a side gets a session only if
/// it received exactly the bytes that the other side sent, and both have the same token.
pub fn handshake(bytes: &[u8]) {
    preface(bytes);
    let mut draw = Draw::new(bytes);
    let how = draw.u8();
    let other_token = if how & 1 == 0 { "token" } else { "another token" };
    let second = if how & 2 == 0 { Role::Responder } else { Role::Initiator };
    let mut sides = [
        Side::new(Role::Initiator, "token", Preamble { encrypt: how & 4 == 0 }),
        Side::new(second, other_token, Preamble { encrypt: how & 8 == 0 }),
    ];
    while !draw.is_over() {
        let (what, length) = (draw.u8(), usize::from(draw.u8()));
        let to = usize::from(what >> 7);
        sides[1 - to].advance();
        let from = &mut sides[1 - to].output;
        let mut moved: Vec<u8> = from.drain(..length.min(from.len())).collect();
        match what % 8 {
            0 => moved.clear(),
            1 => moved.extend_from_slice(draw.slice(length)),
            2 if !moved.is_empty() => {
                let at = usize::from(draw.u8()) % moved.len();
                moved[at] ^= draw.u8();
            }
            3 => moved.extend_from_within(..),
            _ => {}
        }
        sides[to].input.extend_from_slice(&moved);
        sides[to].heard.extend_from_slice(&moved);
        sides[to].advance();
    }
    for (side, other) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        if side.session.is_some() {
            assert!(how & 3 == 0, "a session of two initiators or of two tokens");
            assert!(other.said.starts_with(side.taken()), "a session in spite of other bytes");
        }
    }
}

/// Checks the preface that a shared port reads before a handshake: any 24 bytes are read as the
/// preface of one key or refused, and any text is read as the address of one listener or refused.
fn preface(bytes: &[u8]) {
    if let Some(preface) = bytes.first_chunk::<PREFACE_BYTES>() {
        let key = Key::parse_preface(preface);
        assert!(key.is_none_or(|key| key.to_preface() == *preface));
    }
    if let Ok(address) = String::from_utf8_lossy(bytes).parse::<Address>() {
        assert!(address.to_string().parse::<Address>().is_ok_and(|again| again == address));
    }
}
