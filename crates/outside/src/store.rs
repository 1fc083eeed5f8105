//! Law of the store's server, without sockets.

use std::time::{Duration, Instant};

use thinwire_link::Token;
use thinwire_link::fuzzing::{
    Contents, Handshake, MESSAGE_BYTES_MAX, OUTPUT_BYTES_MAX, Preamble, Request, Role, Session,
    Turn, Visitor, parse_reply,
};

use crate::draw::Draw;

/// Number of connections at a time.
const VISITORS: usize = 3;
/// Bytes of the longest value of a request, and most bytes sent at once.
const PIECE_BYTES_MAX: usize = 1 << 15;

/// Both ends of a connection, and the bytes between them.
struct Talk {
    visitor: Visitor,
    other: Other,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Whether the client has sealed a record with the right keys.
    sealed: bool,
}

/// Client that knows the token.
enum Other {
    Shaking(Handshake),
    Shaken(Session),
    /// The server sent bytes that are neither a handshake nor a record: the connection is over.
    Over,
}

/// Checks, for any bytes from clients and strangers in any order, that the buffers of the server stay
/// bounded, that a client without an authenticated record stays a stranger, and that every reply is
/// well formed.
pub fn store(bytes: &[u8]) {
    let (mut draw, mut contents, mut now) = (Draw::new(bytes), Contents::default(), Instant::now());
    let mut talks: Vec<Talk> = (0..VISITORS).map(|_| Talk::new()).collect();
    while !draw.is_over() {
        let (what, who) = (draw.u8(), usize::from(draw.u8()) % VISITORS);
        let talk = &mut talks[who];
        match what % 8 {
            0 => talk.send(draw_piece(&mut draw)),
            1 => talk.shake(),
            2 => talk.seal(draw_piece(&mut draw)),
            3 => talk.seal(&set(&mut draw).to_bytes()),
            4 => talk.seal(&get(&mut draw).to_bytes()),
            5 => now += Duration::from_millis(u64::from(draw.u16())),
            6 => talk.read(),
            _ => *talk = Talk::new(),
        }
        if !talk.advance(&mut contents, now) {
            *talk = Talk::new();
        }
    }
}

fn draw_piece<'a>(draw: &mut Draw<'a>) -> &'a [u8] {
    let length = usize::from(draw.u16()) % PIECE_BYTES_MAX;
    draw.slice(length)
}

fn set(draw: &mut Draw<'_>) -> Request {
    let key = format!("rank/{}", draw.u8());
    let value = vec![draw.u8(); usize::from(draw.u16()) % PIECE_BYTES_MAX];
    Request::Set { key, value }
}

fn get(draw: &mut Draw<'_>) -> Request {
    let (key, wait) = (format!("rank/{}", draw.u8()), u64::from(draw.u16()));
    Request::Get { key, wait: Duration::from_millis(wait) }
}

impl Talk {
    fn new() -> Talk {
        let (token, encrypt) = (Token::new("a token that nobody guesses"), true);
        let other = Handshake::new(Role::Initiator, &token, Preamble { encrypt });
        let (input, output) = (Vec::new(), Vec::new());
        let other = Other::Shaking(other);
        Talk { visitor: Visitor::new(&token), other, input, output, sealed: false }
    }

    /// Sends as many bytes as the server reads ahead.
    fn send(&mut self, bytes: &[u8]) {
        let room = self.visitor.input_bytes_max().saturating_sub(self.input.len());
        self.input.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn shake(&mut self) {
        let Other::Shaking(other) = &mut self.other else { return };
        let mut said = Vec::new();
        match other.advance(&mut self.output, &mut said) {
            Ok(None) => {}
            Ok(Some((session, _))) => self.other = Other::Shaken(session),
            Err(_) => self.other = Other::Over,
        }
        self.send(&said);
    }

    /// Sends a record, cut off where the server reads no further ahead.
    fn seal(&mut self, plain: &[u8]) {
        let Other::Shaken(session) = &mut self.other else { return };
        let mut record = Vec::new();
        session.seal(plain, &mut record);
        self.sealed = true;
        self.send(&record);
    }

    fn read(&mut self) {
        let Other::Shaken(session) = &mut self.other else { return };
        while let Some(reply) =
            session.receive(&mut self.output, MESSAGE_BYTES_MAX).expect("the server's own record")
        {
            let _ = parse_reply(&reply);
        }
    }

    /// Lets the server work on its input; returns false if the connection is over.
    fn advance(&mut self, contents: &mut Contents, now: Instant) -> bool {
        let Talk { visitor, input, output, .. } = self;
        let goes_on = visitor.advance(&mut Turn { input, output, contents, now }).is_ok();
        assert!(output.len() <= OUTPUT_BYTES_MAX + MESSAGE_BYTES_MAX + 64, "{}", output.len());
        assert!(visitor.is_stranger() || self.sealed, "known without a record");
        goes_on
    }
}
