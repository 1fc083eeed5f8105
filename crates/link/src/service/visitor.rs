//! One connection to a server as the server sees it: bytes in, messages out, and back.
//!
//! A connection begins as a stranger's, and becomes a client's when its first record opens: the
//! handshake alone proves nothing, since anybody who has recorded its first message can replay it.
//! Law: for any input, no buffer outgrows [`Visitor::input_bytes_max`] or its limit of unread
//! bytes and one message; a client that does not read its answers has no further messages taken.

use crate::error::refuse_if;
use crate::secure::{Handshake, Preamble, RECORD_PLAIN_BYTES_MAX, Role, Token};
use crate::service::messages::Messages;
use crate::{Error, Kind};

/// Bytes read ahead from a stranger: more than a handshake and a first message take.
pub const STRANGER_INPUT_BYTES_MAX: usize = 512;
/// The longest plaintext of a first record: a client that only announces itself needs few bytes.
pub const FIRST_BYTES_MAX: usize = STRANGER_INPUT_BYTES_MAX / 2;
/// Bytes read ahead from a client beyond its longest record.
const READ_AHEAD_BYTES: usize = 4096;
/// An idle client keeps no larger buffers than this.
const IDLE_BYTES_MAX: usize = 1024;
/// Unread bytes of a client beyond which it is closed instead of sent more, unless the service says
/// otherwise.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// A client of a server, or a stranger that may become one.
#[derive(Debug)]
pub struct Visitor {
    /// Bytes that were received; those that are understood are removed.
    pub input: Vec<u8>,
    /// Bytes to send.
    pub output: Vec<u8>,
    limits: Limits,
    stage: Stage,
    /// Which side of the handshake this is: a dialled service, or a client.
    role: Role,
    /// No message is taken for now.
    held: bool,
}

/// Bounds of a client's buffers, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The length of the longest message that it may send.
    pub message_bytes_max: usize,
    /// Unread bytes at which it is closed instead of sent more.
    pub output_bytes_max: usize,
}

#[derive(Debug)]
enum Stage {
    Shaking(Box<Handshake>),
    /// The other end after a complete handshake.
    Shaken {
        messages: Messages,
        /// A record has opened, which only the keys of this very handshake can seal.
        proven: bool,
    },
}

impl Visitor {
    /// A stranger who is to prove `token`, and then becomes a client within `limits`.
    pub fn new(token: &Token, limits: Limits) -> Visitor {
        Visitor::with_role(Role::Responder, token, limits)
    }

    /// A service that is dialled, and is to prove `token`.
    pub fn dialled(token: &Token, limits: Limits) -> Visitor {
        Visitor::with_role(Role::Initiator, token, limits)
    }

    fn with_role(role: Role, token: &Token, limits: Limits) -> Visitor {
        let handshake = Handshake::new(role, token, Preamble { encrypt: true });
        let stage = Stage::Shaking(Box::new(handshake));
        Visitor { input: Vec::new(), output: Vec::new(), limits, stage, role, held: false }
    }

    /// Whether this server has dialled it.
    pub fn is_dialled(&self) -> bool {
        self.role == Role::Initiator
    }

    /// Whether it has not proven the token.
    pub fn is_stranger(&self) -> bool {
        !matches!(self.stage, Stage::Shaken { proven: true, .. })
    }

    /// The number of bytes to read ahead.
    pub fn input_bytes_max(&self) -> usize {
        match self.is_stranger() {
            true => STRANGER_INPUT_BYTES_MAX,
            false => self.limits.message_bytes_max.min(RECORD_PLAIN_BYTES_MAX) + READ_AHEAD_BYTES,
        }
    }

    /// Frees the memory of empty buffers beyond what an idle client may keep.
    pub fn shrink(&mut self) {
        for buffer in [&mut self.input, &mut self.output] {
            if buffer.is_empty() {
                buffer.shrink_to(IDLE_BYTES_MAX);
            }
        }
    }

    /// Takes messages again, or no more of them for now.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Takes the next message from the input, if it is there and may be taken now.
    ///
    /// # Errors
    /// If the other side has another token or version, or sends what no client does. The output may
    /// then still hold a last word.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if let Stage::Shaking(handshake) = &mut self.stage {
            let shaken = handshake.advance(&mut self.input, &mut self.output)?;
            let Some((session, _)) = shaken else { return Ok(None) };
            let mut messages = Messages::new(session);
            if self.role == Role::Initiator {
                // It shows the other side that this handshake is no repeated one, and asks it for the same.
                messages.seal(&[], &mut self.output);
            }
            self.stage = Stage::Shaken { messages, proven: false };
        }
        if self.held {
            return Ok(None);
        }
        let Stage::Shaken { messages, proven } = &mut self.stage else { return Ok(None) };
        // A client that does not read its answers gets no further ones.
        if self.output.len() >= self.limits.message_bytes_max {
            return Ok(None);
        }
        let limit = if *proven { self.limits.message_bytes_max } else { FIRST_BYTES_MAX };
        let message = messages.receive(&mut self.input, limit)?;
        *proven |= message.is_some();
        Ok(message)
    }

    /// Appends a message to the output; nothing is sent to strangers.
    ///
    /// # Errors
    /// [`Kind::Limit`] if it does not read what it has been sent.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        let (unread, most) = (self.output.len(), self.limits.output_bytes_max);
        refuse_if(unread >= most, Kind::Limit, || {
            format!("leaves {unread} bytes unread, at most {most} are kept for it")
        })?;
        if let Stage::Shaken { messages, proven: true } = &mut self.stage {
            messages.seal(message, &mut self.output);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The longest message of a client in these tests.
    const MESSAGE_BYTES_MAX: usize = 1000;

    pub(crate) fn token() -> Token {
        Token::new("visitors")
    }

    /// Completes the handshake of a visitor; returns the messages of the other end and the bytes that
    /// it sent.
    pub(crate) fn shake(visitor: &mut Visitor) -> (Messages, Vec<u8>) {
        let mut other = Handshake::new(Role::Initiator, &token(), Preamble { encrypt: true });
        let mut said = Vec::new();
        loop {
            let before = visitor.input.len();
            let done = other.advance(&mut visitor.output, &mut visitor.input).unwrap();
            said.extend_from_slice(&visitor.input[before..]);
            if let Some((session, _)) = done {
                return (Messages::new(session), said);
            }
            assert_eq!(visitor.receive().unwrap(), None);
        }
    }

    const LIMITS: Limits =
        Limits { message_bytes_max: MESSAGE_BYTES_MAX, output_bytes_max: OUTPUT_BYTES_MAX };

    fn stranger() -> Visitor {
        Visitor::new(&token(), LIMITS)
    }

    fn service() -> Visitor {
        Visitor::dialled(&token(), LIMITS)
    }

    #[test]
    fn only_a_record_that_opens_makes_a_stranger_known() {
        let mut visitor = stranger();
        let (mut messages, _) = shake(&mut visitor);
        assert_eq!(visitor.receive().unwrap(), None);
        assert!(visitor.is_stranger());
        messages.seal(b"it is me", &mut visitor.input);
        assert_eq!(visitor.receive().unwrap().unwrap(), b"it is me");
        assert!(!visitor.is_stranger());
    }

    #[test]
    fn a_repeated_handshake_leaves_a_stranger() {
        let (_, said) = shake(&mut stranger());
        let mut visitor = stranger();
        visitor.input = said;
        visitor.receive().unwrap();
        assert!(visitor.input.is_empty() && visitor.is_stranger());
        assert_eq!(visitor.input_bytes_max(), STRANGER_INPUT_BYTES_MAX);
        visitor.input = vec![16, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(visitor.receive().unwrap_err().kind, Kind::Corrupt);
        assert!(visitor.is_stranger());
    }

    #[test]
    fn a_stranger_cannot_announce_a_long_record() {
        let mut visitor = stranger();
        let (mut messages, _) = shake(&mut visitor);
        messages.seal(&[2; FIRST_BYTES_MAX + 1], &mut visitor.input);
        assert_eq!(visitor.receive().unwrap_err().kind, Kind::Limit);
    }

    #[test]
    fn a_held_client_has_no_message_taken_and_fills_no_buffer() {
        let mut visitor = stranger();
        let (mut messages, _) = shake(&mut visitor);
        (0..3).for_each(|number| messages.seal(&[number], &mut visitor.input));
        assert_eq!(visitor.receive().unwrap().unwrap(), [0]);
        visitor.hold(true);
        assert_eq!(visitor.receive().unwrap(), None);
        visitor.hold(false);
        assert_eq!(visitor.receive().unwrap().unwrap(), [1]);
        visitor.hold(true);
        visitor.input.resize(visitor.input_bytes_max(), 0);
        assert_eq!(visitor.receive().unwrap(), None);
    }

    proptest! {
        /// Memory per unauthenticated byte: bounded, whatever comes and however it is cut.
        #[test]
        fn strangers_fill_no_buffers(
            said: bool, dialled: bool, chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..20)
        ) {
            let mut visitor = if dialled { service() } else { stranger() };
            if said {
                visitor.input = shake(&mut stranger()).1;
            }
            for chunk in chunks {
                let room = visitor.input_bytes_max() - visitor.input.len();
                visitor.input.extend(chunk.into_iter().take(room));
                let received = visitor.receive();
                let held = visitor.input.capacity() + visitor.output.capacity();
                prop_assert!(visitor.is_stranger() && held <= 4 * STRANGER_INPUT_BYTES_MAX);
                if received.is_err() {
                    break;
                }
            }
        }
    }
}
