//! Long messages in frames of bounded length.
//!
//! A message of at most [`FRAGMENT_BYTES`] is one frame. A longer message is cut into fragments of full
//! length except the last. Each fragment begins with two bytes: its kind, and a byte that is 1 in the last
//! fragment. Frames of a connection arrive in order, and no other frame comes between the fragments of a
//! message. Law: each message has exactly one sequence of frames, and a receiver buffers at most the
//! number of bytes that it has set as its limit.

use std::borrow::Cow;
use std::sync::Arc;

use thinwire_link::endpoint::{ClientId, Outbox};
use thinwire_link::{Error, Kind};

use super::FRAGMENT;

/// Largest number of message bytes in one frame.
pub const FRAGMENT_BYTES: usize = 1 << 20;

/// Returns the frames of a message of at least one byte.
pub fn frames(message: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    (0..).map_while(|at| frame(message, at))
}

/// Returns frame `at` of a message, if there is one.
fn frame(message: &[u8], at: usize) -> Option<Cow<'_, [u8]>> {
    let rest = message.get(at * FRAGMENT_BYTES..).filter(|rest| !rest.is_empty())?;
    if message.len() <= FRAGMENT_BYTES {
        return Some(Cow::Borrowed(rest));
    }
    let is_last = rest.len() <= FRAGMENT_BYTES;
    let chunk = &rest[..rest.len().min(FRAGMENT_BYTES)];
    Some(Cow::Owned([&[FRAGMENT, u8::from(is_last)], chunk].concat()))
}

/// Message of which some frames have been sent.
#[derive(Debug, Default)]
pub struct Outgoing {
    message: Arc<Vec<u8>>,
    sent: usize,
}

impl Outgoing {
    /// Begins to send a message.
    pub fn new(message: Arc<Vec<u8>>) -> Outgoing {
        Outgoing { message, sent: 0 }
    }

    /// Sends the next frame. Returns its length in bytes, or `None` if all frames are sent.
    pub fn send(&mut self, to: ClientId, out: &mut Outbox) -> Option<usize> {
        let frame = frame(&self.message, self.sent)?;
        self.sent += 1;
        out.send(to, &frame);
        Some(frame.len())
    }
}

/// Calls `next`, which sends a frame and returns its length, until the frames are as long as a fragment. Then
/// asks to be called again when there is room for more.
pub fn send_some(
    to: ClientId,
    out: &mut Outbox,
    mut next: impl FnMut(&mut Outbox) -> Option<usize>,
) {
    let mut bytes = 0;
    while bytes < FRAGMENT_BYTES {
        let Some(sent) = next(out) else { return };
        bytes += sent;
    }
    out.when_room(to);
}

/// Partly received message of a connection.
#[derive(Debug, Default)]
pub struct Fragments {
    partial: Vec<u8>,
    /// Whether the rest of the message is dropped.
    is_given_up: bool,
}

impl Fragments {
    /// Receives a frame. Returns the message if the frame completes one.
    ///
    /// # Errors
    /// If the frame is out of place, or the message is longer than `bytes_max`.
    pub fn take<'a>(
        &mut self,
        frame: &'a [u8],
        bytes_max: usize,
    ) -> Result<Option<Cow<'a, [u8]>>, Error> {
        let corrupt = |context: &str| Err(Error::new(Kind::Corrupt, context));
        let (is_last, bytes) = match frame {
            [FRAGMENT, 0, bytes @ ..] => (false, bytes),
            [FRAGMENT, 1, bytes @ ..] => (true, bytes),
            [FRAGMENT, ..] => return corrupt("sent a fragment without its beginning"),
            _ if frame.len() > FRAGMENT_BYTES => return corrupt("sent a frame that is too long"),
            _ if self.partial.is_empty() && !self.is_given_up => {
                return Ok(Some(Cow::Borrowed(frame)));
            }
            _ => return corrupt("sent a message between the fragments of another"),
        };
        let fits = match is_last {
            true => self.is_under_way() && (1..=FRAGMENT_BYTES).contains(&bytes.len()),
            false => bytes.len() == FRAGMENT_BYTES,
        };
        if !fits {
            return corrupt("sent a fragment of a wrong length");
        }
        if self.is_given_up {
            self.is_given_up = !is_last;
            return Ok(None);
        }
        let length = self.partial.len() + bytes.len();
        if length > bytes_max {
            let context = format!("sent {length} bytes of a message, expected at most {bytes_max}");
            return Err(Error::new(Kind::Limit, context));
        }
        self.partial.extend_from_slice(bytes);
        Ok(is_last.then(|| Cow::Owned(std::mem::take(&mut self.partial))))
    }

    /// Returns the number of buffered bytes.
    pub fn bytes(&self) -> usize {
        self.partial.len()
    }

    /// Drops the message being received, including its fragments to come. Returns the received bytes.
    pub fn give_up(&mut self) -> Vec<u8> {
        self.is_given_up = self.is_under_way();
        std::mem::take(&mut self.partial)
    }

    fn is_under_way(&self) -> bool {
        !self.partial.is_empty() || self.is_given_up
    }
}
