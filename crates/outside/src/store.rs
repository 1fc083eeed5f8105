//! Law of the store's server, without sockets.

use std::time::{Duration, Instant};

use thinwire_link::Token;
use thinwire_link::endpoint::ClientId;
use thinwire_link::fuzzing::{
    Dispatcher, Handshake, MESSAGE_BYTES_MAX, Preamble, Request, Role, Session, parse_reply,
};
use thinwire_link::store::KeyValueService;

use crate::draw::Draw;

/// Number of connections at a time.
const VISITORS: usize = 3;
/// Bytes of the longest value of a request, and most bytes sent at once.
const PIECE_BYTES_MAX: usize = 1 << 15;

type Server = Dispatcher<KeyValueService>;

/// The client's end of a connection.
struct Talk {
    id: ClientId,
    other: Other,
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

/// Checks, for any bytes from clients and unauthenticated peers in any order, that the buffers of the
/// server stay bounded, that a client without an authenticated record stays an unauthenticated peer,
/// and that every reply is well formed.
pub fn store(bytes: &[u8]) {
    let (mut draw, mut now) = (Draw::new(bytes), Instant::now());
    let mut server = Dispatcher::new(KeyValueService::new(), &token());
    let mut talks: Vec<Talk> = (0..VISITORS).map(|_| Talk::new(&mut server)).collect();
    while !draw.is_over() {
        let (what, who) = (draw.u8(), usize::from(draw.u8()) % VISITORS);
        let talk = &mut talks[who];
        match what % 8 {
            0 => talk.send(draw_piece(&mut draw), &mut server),
            1 => talk.shake(&mut server),
            2 => talk.seal(draw_piece(&mut draw), &mut server),
            3 => talk.seal(&set(&mut draw).to_bytes(), &mut server),
            4 => talk.seal(&get(&mut draw).to_bytes(), &mut server),
            5 => now += Duration::from_millis(u64::from(draw.u16())),
            6 => talk.read(&mut server),
            _ => {
                server.remove(talk.id, now);
                *talk = Talk::new(&mut server);
            }
        }
        server.turn(now);
        for talk in &mut talks {
            talk.check(&mut server, now);
        }
    }
}

fn token() -> Token {
    Token::new("a token that nobody guesses")
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
    fn new(server: &mut Server) -> Talk {
        let other = Handshake::new(Role::Initiator, &token(), Preamble { encrypt: true });
        Talk { id: server.accept(), other: Other::Shaking(other), sealed: false }
    }

    /// Sends as many bytes as the server reads ahead.
    fn send(&mut self, bytes: &[u8], server: &mut Server) {
        let connection =
            server.server_connection_mut(self.id).expect("a connection that has not ended");
        let room = connection.input_bytes_max().saturating_sub(connection.input.len());
        connection.input.extend_from_slice(&bytes[..bytes.len().min(room)]);
        server.moved(self.id, Ok(()), Instant::now());
    }

    fn shake(&mut self, server: &mut Server) {
        let Other::Shaking(other) = &mut self.other else { return };
        let connection =
            server.server_connection_mut(self.id).expect("a connection that has not ended");
        let mut said = Vec::new();
        match other.advance(&mut connection.output, &mut said) {
            Ok(None) => {}
            Ok(Some((session, _))) => self.other = Other::Shaken(session),
            Err(_) => self.other = Other::Over,
        }
        self.send(&said, server);
    }

    /// Sends a record, cut off at the point up to which the server reads ahead.
    fn seal(&mut self, plain: &[u8], server: &mut Server) {
        let Other::Shaken(session) = &mut self.other else { return };
        let mut record = Vec::new();
        session.seal(plain, &mut record);
        self.sealed = true;
        self.send(&record, server);
    }

    fn read(&mut self, server: &mut Server) {
        let Other::Shaken(session) = &mut self.other else { return };
        let connection =
            server.server_connection_mut(self.id).expect("a connection that has not ended");
        while let Some(reply) = session
            .receive(&mut connection.output, MESSAGE_BYTES_MAX)
            .expect("the server's own record")
        {
            let _ = parse_reply(&reply);
        }
        server.moved(self.id, Ok(()), Instant::now());
    }

    /// Checks the memory that the server holds for this connection, and begins another connection if it
    /// is over.
    fn check(&mut self, server: &mut Server, now: Instant) {
        let connection =
            server.server_connection(self.id).expect("a connection that has not ended");
        let (input, output) = (connection.input.len(), connection.output.len());
        assert!(input <= connection.input_bytes_max(), "{input}");
        assert!(output <= 2 * MESSAGE_BYTES_MAX + 64, "{output}");
        assert!(connection.is_unauthenticated() || self.sealed, "known without a record");
        if server.ended().contains(&self.id) {
            server.remove(self.id, now);
            *self = Talk::new(server);
        }
    }
}
