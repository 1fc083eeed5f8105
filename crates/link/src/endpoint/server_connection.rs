//! One connection of a server, without its socket: received bytes become messages, and messages become
//! bytes to send.
//!
//! The other end of a connection begins as an unauthenticated peer, and becomes a client when its first
//! record has been decrypted. The handshake alone proves nothing, since anybody who has recorded the
//! first message of a handshake can replay it. Law: for any input, the input buffer never exceeds
//! [`ServerConnection::input_bytes_max`], and the output buffer never exceeds its limit by more than
//! one message; no further messages are taken of a client that does not read its answers.

use crate::endpoint::messages::Messages;
use crate::secure::{Handshake, Preamble, RECORD_PLAIN_BYTES_MAX, Role, Token};
use crate::shared_port::address::Key;
use crate::{Error, Kind};

/// Bytes read ahead from an unauthenticated peer: more than a handshake and a first message take.
pub const UNAUTHENTICATED_INPUT_BYTES_MAX: usize = 512;
/// The longest plaintext of a first record: a client that only announces itself needs few bytes.
pub const FIRST_BYTES_MAX: usize = UNAUTHENTICATED_INPUT_BYTES_MAX / 2;
/// Bytes read ahead from a client in addition to its longest record.
const READ_AHEAD_BYTES: usize = 4096;
/// An idle client keeps no larger buffers than this.
const IDLE_BYTES_MAX: usize = 1024;
/// Number of unread bytes at which a client is closed instead of being sent more, unless the node has
/// another limit.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// A client of a server, or an unauthenticated peer that may become one.
#[derive(Debug)]
pub struct ServerConnection {
    /// Received bytes; those that are parsed are removed.
    pub input: Vec<u8>,
    /// Bytes to send.
    pub output: Vec<u8>,
    limits: Limits,
    stage: Stage,
    /// Which side of the handshake this is: a dialled node, or a client.
    role: Role,
    /// Whether no message is taken for now.
    held: bool,
    /// Whether the port that the node shares with others has yet to pass the connection to it.
    is_passed_on: bool,
}

/// Bounds of a client's buffers, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The length of the longest message that the client may send.
    pub message_bytes_max: usize,
    /// Number of unread bytes at which the client is closed instead of being sent more.
    pub output_bytes_max: usize,
}

#[derive(Debug)]
enum Stage {
    Shaking(Box<Handshake>),
    /// The other end after a complete handshake.
    Shaken {
        messages: Messages,
        /// Whether a record was decrypted: only the keys of this very handshake can have sealed it.
        proven: bool,
    },
}

impl ServerConnection {
    /// Returns an unauthenticated peer that has to prove `token`, and then becomes a client within
    /// `limits`.
    pub fn new(token: &Token, limits: Limits) -> ServerConnection {
        ServerConnection::with_role(Role::Responder, token, limits)
    }

    /// Returns a node that is dialled, and has to prove `token`; `key` names the node if it shares
    /// its port with others.
    pub fn dialled(token: &Token, limits: Limits, key: Option<Key>) -> ServerConnection {
        let mut node = ServerConnection::with_role(Role::Initiator, token, limits);
        node.is_passed_on = key.is_some();
        node.output.extend(key.into_iter().flat_map(Key::to_preface));
        node
    }

    fn with_role(role: Role, token: &Token, limits: Limits) -> ServerConnection {
        let handshake = Handshake::new(role, token, Preamble { encrypt: true });
        let stage = Stage::Shaking(Box::new(handshake));
        ServerConnection {
            input: Vec::new(),
            output: Vec::new(),
            limits,
            stage,
            role,
            held: false,
            is_passed_on: false,
        }
    }

    /// Returns whether this side has dialled the other one.
    pub fn is_dialled(&self) -> bool {
        self.role == Role::Initiator
    }

    /// Returns whether the other side has not proven the token.
    pub fn is_unauthenticated(&self) -> bool {
        !matches!(self.stage, Stage::Shaken { proven: true, .. })
    }

    /// Returns the number of bytes to read ahead.
    pub fn input_bytes_max(&self) -> usize {
        match self.is_unauthenticated() {
            true => UNAUTHENTICATED_INPUT_BYTES_MAX,
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

    /// Takes no more messages for now.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Takes messages again.
    pub fn release(&mut self) {
        self.held = false;
    }

    /// Takes the next message from the input, if it is there and may be taken now.
    ///
    /// # Errors
    /// If the other side has another token or version, or sends bytes that a client never sends. The
    /// output may then still hold a last message.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if self.is_passed_on {
            if self.input.is_empty() {
                return Ok(None);
            }
            Key::check_answer(self.input.remove(0))?;
            self.is_passed_on = false;
        }
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

    /// Appends a message to the output; nothing is sent to unauthenticated peers.
    ///
    /// # Errors
    /// [`Kind::Limit`] if the other side does not read its messages.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        let (unread, most) = (self.output.len(), self.limits.output_bytes_max);
        if unread >= most {
            return Err(Error::new(
                Kind::Limit,
                format!("leaves {unread} bytes unread, at most {most} are kept for it"),
            ));
        }
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

    /// Completes the handshake of a connection; returns the messages of the other end and the bytes that
    /// it sent.
    pub(crate) fn shake(server_connection: &mut ServerConnection) -> (Messages, Vec<u8>) {
        let mut other = Handshake::new(Role::Initiator, &token(), Preamble { encrypt: true });
        let mut said = Vec::new();
        loop {
            let before = server_connection.input.len();
            let done =
                other.advance(&mut server_connection.output, &mut server_connection.input).unwrap();
            said.extend_from_slice(&server_connection.input[before..]);
            if let Some((session, _)) = done {
                return (Messages::new(session), said);
            }
            assert_eq!(server_connection.receive().unwrap(), None);
        }
    }

    const LIMITS: Limits =
        Limits { message_bytes_max: MESSAGE_BYTES_MAX, output_bytes_max: OUTPUT_BYTES_MAX };

    fn unauthenticated_peer() -> ServerConnection {
        ServerConnection::new(&token(), LIMITS)
    }

    fn node() -> ServerConnection {
        ServerConnection::dialled(&token(), LIMITS, None)
    }

    #[test]
    fn only_a_record_that_opens_makes_a_stranger_known() {
        let mut server_connection = unauthenticated_peer();
        let (mut messages, _) = shake(&mut server_connection);
        assert_eq!(server_connection.receive().unwrap(), None);
        assert!(server_connection.is_unauthenticated());
        messages.seal(b"it is me", &mut server_connection.input);
        assert_eq!(server_connection.receive().unwrap().unwrap(), b"it is me");
        assert!(!server_connection.is_unauthenticated());
    }

    #[test]
    fn a_repeated_handshake_leaves_a_stranger() {
        let (_, said) = shake(&mut unauthenticated_peer());
        let mut server_connection = unauthenticated_peer();
        server_connection.input = said;
        server_connection.receive().unwrap();
        assert!(server_connection.input.is_empty() && server_connection.is_unauthenticated());
        assert_eq!(server_connection.input_bytes_max(), UNAUTHENTICATED_INPUT_BYTES_MAX);
        server_connection.input =
            vec![16, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(server_connection.receive().unwrap_err().kind, Kind::Corrupt);
        assert!(server_connection.is_unauthenticated());
    }

    #[test]
    fn a_stranger_cannot_announce_a_long_record() {
        let mut server_connection = unauthenticated_peer();
        let (mut messages, _) = shake(&mut server_connection);
        messages.seal(&[2; FIRST_BYTES_MAX + 1], &mut server_connection.input);
        assert_eq!(server_connection.receive().unwrap_err().kind, Kind::Limit);
    }

    #[test]
    fn a_held_client_has_no_message_taken_and_fills_no_buffer() {
        let mut server_connection = unauthenticated_peer();
        let (mut messages, _) = shake(&mut server_connection);
        (0..3).for_each(|number| messages.seal(&[number], &mut server_connection.input));
        assert_eq!(server_connection.receive().unwrap().unwrap(), [0]);
        server_connection.hold();
        assert_eq!(server_connection.receive().unwrap(), None);
        server_connection.release();
        assert_eq!(server_connection.receive().unwrap().unwrap(), [1]);
        server_connection.hold();
        server_connection.input.resize(server_connection.input_bytes_max(), 0);
        assert_eq!(server_connection.receive().unwrap(), None);
    }

    proptest! {
        /// Memory per unauthenticated byte: bounded, for any bytes in any pieces.
        #[test]
        fn strangers_fill_no_buffers(
            said: bool, dialled: bool, chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..20)
        ) {
            let mut server_connection = if dialled { node() } else { unauthenticated_peer() };
            if said {
                server_connection.input = shake(&mut unauthenticated_peer()).1;
            }
            for chunk in chunks {
                let room = server_connection.input_bytes_max() - server_connection.input.len();
                server_connection.input.extend(chunk.into_iter().take(room));
                let received = server_connection.receive();
                let held = server_connection.input.capacity() + server_connection.output.capacity();
                prop_assert!(server_connection.is_unauthenticated() && held <= 4 * UNAUTHENTICATED_INPUT_BYTES_MAX);
                if received.is_err() {
                    break;
                }
            }
        }
    }
}
