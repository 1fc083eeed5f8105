//! The handshake that proves the token: bytes in, bytes out.
//!
//! Both sides send their preamble; the initiator then sends the first Noise message, the responder
//! the second, each behind two bytes of length. A responder that cannot open the first message
//! answers with length 0: "another token". Law: both sides end with a session, or neither does.

use snow::Builder;

use crate::secure::{PREAMBLE_BYTES, Preamble, Session, Token, take_record};
use crate::{Error, Kind};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const MESSAGE_BYTES_MAX: usize = 128;

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connected.
    Initiator,
    /// The side that accepted.
    Responder,
}

/// A handshake in progress.
#[derive(Debug)]
pub struct Handshake {
    role: Role,
    token: Token,
    mine: Preamble,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Start,
    Preamble,
    Message(Box<snow::HandshakeState>, Preamble),
    Over,
}

impl Handshake {
    /// Returns a handshake of this side's `role`, with `mine` as its preamble.
    pub fn new(role: Role, token: &Token, mine: Preamble) -> Handshake {
        Handshake { role, token: token.clone(), mine, stage: Stage::Start }
    }

    /// Consumes bytes of `input` and appends bytes to send to `output`.
    ///
    /// Call it first with no input, and again whenever some has come. In the end it returns the session
    /// and the other side's preamble.
    ///
    /// # Errors
    /// If the other side speaks another protocol or version, or has another token. `output` may then
    /// still hold a last message.
    pub fn advance(
        &mut self,
        input: &mut Vec<u8>,
        output: &mut Vec<u8>,
    ) -> Result<Option<(Session, Preamble)>, Error> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Start => {
                    output.extend_from_slice(&self.mine.to_bytes());
                    self.stage = Stage::Preamble;
                }
                Stage::Preamble => {
                    let Some(&bytes) = input.first_chunk::<PREAMBLE_BYTES>() else {
                        self.stage = Stage::Preamble;
                        return Ok(None);
                    };
                    let theirs = Preamble::parse(bytes)?;
                    input.drain(..PREAMBLE_BYTES);
                    let mut noise = self.noise(bytes);
                    if self.role == Role::Initiator {
                        write_message(&mut noise, output);
                    }
                    self.stage = Stage::Message(Box::new(noise), theirs);
                }
                Stage::Message(mut noise, theirs) => {
                    let Some(message) = take_record(input, MESSAGE_BYTES_MAX)? else {
                        self.stage = Stage::Message(noise, theirs);
                        return Ok(None);
                    };
                    self.read_message(&mut noise, &message, output)?;
                    if self.role == Role::Responder {
                        write_message(&mut noise, output);
                    }
                    let noise = noise.into_transport_mode().expect("both messages are through");
                    return Ok(Some((Session::new(noise), theirs)));
                }
                Stage::Over => {
                    return Err(Error::new(Kind::Corrupt, "speaks after its handshake failed"));
                }
            }
        }
    }

    /// Returns the state with its prologue: both preambles as they were sent, unknown flags included.
    fn noise(&self, theirs: [u8; PREAMBLE_BYTES]) -> snow::HandshakeState {
        let mine = self.mine.to_bytes();
        let prologue = match self.role {
            Role::Initiator => [mine, theirs],
            Role::Responder => [theirs, mine],
        };
        let builder = Builder::new(PATTERN.parse().expect("a pattern that snow knows"))
            .prologue(prologue.as_flattened())
            .and_then(|builder| builder.psk(0, self.token.key()));
        let noise = builder.and_then(|builder| match self.role {
            Role::Initiator => builder.build_initiator(),
            Role::Responder => builder.build_responder(),
        });
        noise.expect("the pattern needs no more than a prologue and a pre-shared key")
    }

    fn read_message(
        &self,
        noise: &mut snow::HandshakeState,
        message: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if noise.read_message(message, &mut [0; MESSAGE_BYTES_MAX]).is_ok() {
            return Ok(());
        }
        if self.role == Role::Responder {
            output.extend_from_slice(&0u16.to_le_bytes());
        }
        Err(Error::new(Kind::TokenMismatch, "has another job token than this side"))
    }
}

fn write_message(noise: &mut snow::HandshakeState, output: &mut Vec<u8>) {
    let mut message = [0; MESSAGE_BYTES_MAX];
    let length = noise.write_message(&[], &mut message).expect("an empty payload fits");
    let prefix = u16::try_from(length).expect("a handshake message is short");
    output.extend_from_slice(&prefix.to_le_bytes());
    output.extend_from_slice(&message[..length]);
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) type Outcome = Result<Option<(Session, Preamble)>, Error>;

    const PLAIN: Preamble = Preamble { encrypt: false };

    /// Lets both sides talk until neither has more to say.
    fn talk(mut a: Handshake, mut b: Handshake) -> (Outcome, Outcome) {
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        let (mut at_a, mut at_b): (Outcome, Outcome) = (Ok(None), Ok(None));
        for _ in 0..4 {
            if matches!(at_a, Ok(None)) {
                at_a = a.advance(&mut to_a, &mut to_b);
            }
            if matches!(at_b, Ok(None)) {
                at_b = b.advance(&mut to_b, &mut to_a);
            }
        }
        (at_a, at_b)
    }

    pub(crate) fn pair(token_a: &str, token_b: &str) -> (Outcome, Outcome) {
        let side = |role, token| Handshake::new(role, &Token::new(token), PLAIN);
        talk(side(Role::Initiator, token_a), side(Role::Responder, token_b))
    }

    #[test]
    fn the_same_token_gives_a_session_that_opens_what_was_sealed() {
        let (a, b) = pair("secret", "secret");
        let (mut a, mut b) = (a.unwrap().unwrap().0, b.unwrap().unwrap().0);
        let mut sealed = Vec::new();
        a.seal(b"first", &mut sealed);
        a.seal(b"", &mut sealed);
        assert_eq!(b.receive(&mut sealed, 5).unwrap().unwrap(), b"first");
        assert_eq!(b.receive(&mut sealed, 5).unwrap().unwrap(), b"");
        assert!(b.receive(&mut sealed, 5).unwrap().is_none());
        a.seal(b"too long", &mut sealed);
        assert_eq!(b.receive(&mut sealed, 5).unwrap_err().kind, Kind::Limit);
    }

    #[test]
    fn another_token_is_told_to_both_sides() {
        let (a, b) = pair("secret", "other");
        assert_eq!(a.unwrap_err().kind, Kind::TokenMismatch);
        let error = b.unwrap_err();
        assert_eq!(error.kind, Kind::TokenMismatch);
        assert!(!error.to_string().contains("secret"));
    }

    #[test]
    fn a_changed_preamble_breaks_the_handshake() {
        let token = Token::new("secret");
        // Known flags, others, and reserved bytes.
        for (byte, bits) in [(5, 1), (5, 2), (5, 0x80), (6, 1), (7, 0xff)] {
            let mut a = Handshake::new(Role::Initiator, &token, Preamble { encrypt: true });
            let mut b = Handshake::new(Role::Responder, &token, PLAIN);
            let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
            a.advance(&mut to_a, &mut to_b).unwrap();
            to_b[byte] ^= bits;
            b.advance(&mut to_b, &mut to_a).unwrap();
            a.advance(&mut to_a, &mut to_b).unwrap();
            assert!(b.advance(&mut to_b, &mut to_a).is_err(), "byte {byte} ^ {bits}");
        }
    }

    #[test]
    fn a_changed_or_repeated_record_does_not_open() {
        let (a, b) = pair("secret", "secret");
        let (mut a, mut b) = (a.unwrap().unwrap().0, b.unwrap().unwrap().0);
        let mut sealed = Vec::new();
        a.seal(b"payload", &mut sealed);
        let good = sealed.clone();
        sealed[4] ^= 1;
        assert_eq!(b.receive(&mut sealed, 99).unwrap_err().kind, Kind::Corrupt);
        assert!(b.receive(&mut good.clone(), 99).is_ok());
        assert_eq!(b.receive(&mut good.clone(), 99).unwrap_err().kind, Kind::Corrupt);
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_error_or_nothing(
            mut bytes: Vec<u8>, preamble: bool, initiator: bool
        ) {
            let role = if initiator { Role::Initiator } else { Role::Responder };
            let mut side = Handshake::new(role, &Token::new("secret"), PLAIN);
            let mut output = Vec::new();
            if preamble {
                bytes.splice(..0, PLAIN.to_bytes());
            }
            if let Ok(session) = side.advance(&mut bytes, &mut output) {
                prop_assert!(session.is_none());
            }
            prop_assert!(output.len() <= 256);
        }
    }
}
