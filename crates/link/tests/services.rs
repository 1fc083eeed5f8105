//! Services over sockets: what they are told, and what clients do to each other.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link::endpoint::{ClientId, Connection, Endpoint, Node, OUTPUT_BYTES_MAX, Outbox};
use thinwire_link::fuzzing::{Handshake, Preamble, Role};
use thinwire_link::{Error, Kind, Token};

const LONG: Duration = Duration::from_secs(300);
const SHORT: Duration = Duration::from_millis(50);

/// Longer than a record, so that messages are made of several.
const MESSAGE_BYTES: usize = 200_000;

fn token() -> Token {
    Token::new("services")
}

/// Event that a service was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Opened(ClientId),
    Closed(ClientId),
    Ticked,
}

/// Sends every message back, unless its first byte says otherwise.
struct Echo {
    told: Sender<Told>,
    deadline: Option<Instant>,
}

const KEEP: u8 = 1;
const REFUSE: u8 = 2;
const CLOSE: u8 = 3;

impl Node for Echo {
    fn opened(&mut self, client: ClientId, _now: Instant, _out: &mut Outbox) {
        let _ = self.told.send(Told::Opened(client));
    }

    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        _now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        match message[0] {
            KEEP => {}
            REFUSE => return Err(Error::new(Kind::Invalid, "is refused")),
            CLOSE => {
                out.send(client, b"goodbye");
                out.close(client);
            }
            _ => out.send(client, message),
        }
        Ok(())
    }

    fn closed(&mut self, client: ClientId, _now: Instant, _out: &mut Outbox) {
        let _ = self.told.send(Told::Closed(client));
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn tick(&mut self, _now: Instant, _out: &mut Outbox) {
        self.deadline = None;
        let _ = self.told.send(Told::Ticked);
    }

    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES
    }
}

fn serve() -> (Endpoint<Echo>, Receiver<Told>) {
    let (told, hear) = channel();
    let echo = Echo { told, deadline: None };
    (Endpoint::bind("127.0.0.1:0".parse().unwrap(), &token(), echo).unwrap(), hear)
}

fn connect(server: &Endpoint<Echo>) -> Connection {
    Connection::connect(&server.address().to_string(), &token(), LONG).unwrap()
}

/// A client, and what its service calls it.
fn join(server: &Endpoint<Echo>, told: &Receiver<Told>) -> (Connection, ClientId) {
    let connection = connect(server);
    match told.recv_timeout(LONG).unwrap() {
        Told::Opened(id) => (connection, id),
        other => panic!("{other:?}"),
    }
}

fn ask(connection: &mut Connection, message: &[u8]) -> Vec<u8> {
    connection.send(message).unwrap();
    connection.receive(LONG).unwrap().expect("an answer")
}

fn ends(connection: &mut Connection) -> Error {
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        if let Err(error) = connection.receive(LONG) {
            return error;
        }
    }
    panic!("the connection continues");
}

#[test]
fn messages_of_any_length_go_both_ways() {
    let (server, _told) = serve();
    let mut connection = connect(&server);
    for length in [1, 100, 65_518, 65_519, 65_520, MESSAGE_BYTES] {
        let message = vec![9; length];
        assert_eq!(ask(&mut connection, &message), message);
    }
    connection.send(&vec![9; MESSAGE_BYTES + 1]).unwrap();
    assert_eq!(ends(&mut connection).kind, Kind::Unreachable);
}

#[test]
fn services_dial_each_other_by_address_or_name_and_hear_of_failures() {
    let (server, told) = serve();
    let (other, heard) = serve();
    for host in ["127.0.0.1", "localhost"] {
        let address = format!("{host}:{}", other.address().port());
        server.call(move |_, now, out| _ = out.dial(&address, now));
        let Told::Opened(to) = told.recv_timeout(LONG).unwrap() else { panic!("{host}") };
        let Told::Opened(from) = heard.recv_timeout(LONG).unwrap() else { panic!("{host}") };
        server.call(move |_, _, out| out.send(to, &[CLOSE]));
        assert_eq!(heard.recv_timeout(LONG).unwrap(), Told::Closed(from));
        assert_eq!(told.recv_timeout(LONG).unwrap(), Told::Closed(to));
    }
    #[cfg(target_os = "linux")]
    {
        // Two services behind one port are told apart by their keys.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for _ in 0..2 {
            let (told_shared, heard) = channel();
            let echo = Echo { told: told_shared, deadline: None };
            let shared = Endpoint::share(port, &token(), echo).unwrap();
            let address = shared.shared_address();
            server.call(move |_, now, out| _ = out.dial(&address, now));
            assert!(matches!(told.recv_timeout(LONG).unwrap(), Told::Opened(_)));
            assert!(matches!(heard.recv_timeout(LONG).unwrap(), Told::Opened(_)));
            let nobody = format!("{port}#{}", "1f".repeat(16));
            server.call(move |_, now, out| _ = out.dial(&nobody, now));
            assert!(matches!(told.recv_timeout(LONG).unwrap(), Told::Closed(_)));
            drop(shared);
            assert!(matches!(told.recv_timeout(LONG).unwrap(), Told::Closed(_)));
        }
    }
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    // Nothing listens, there is no such host, or somebody accepts and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = silent.local_addr().unwrap().to_string();
    for address in [nobody, "no.such.host.invalid:1".to_owned(), mute] {
        server.call(move |_, now, out| _ = out.dial(&address, now));
        assert!(matches!(told.recv_timeout(LONG).unwrap(), Told::Closed(_)));
    }
    let stranger = Endpoint::bind("127.0.0.1:0".parse().unwrap(), &Token::new("other"), quiet());
    let address = stranger.as_ref().unwrap().address().to_string();
    server.call(move |_, now, out| _ = out.dial(&address, now));
    assert!(matches!(told.recv_timeout(LONG).unwrap(), Told::Closed(_)));
}

/// A service whose events nobody hears.
fn quiet() -> Echo {
    Echo { told: channel().0, deadline: None }
}

#[test]
fn the_host_can_send_to_clients_that_have_not_asked() {
    let (server, told) = serve();
    let (mut connection, id) = join(&server, &told);
    assert_eq!(connection.receive(SHORT).unwrap(), None);
    server.call(move |_, _, out| out.send(id, b"first"));
    server.call(move |_, _, out| out.send(id, b"second"));
    assert_eq!(connection.receive(LONG).unwrap().unwrap(), b"first");
    assert_eq!(connection.receive(LONG).unwrap().unwrap(), b"second");
    server.call(move |_, _, out| out.send(id, b"last"));
    let address = connection.address();
    drop(server);
    assert_eq!(connection.receive(LONG).unwrap().unwrap(), b"last");
    let error = ends(&mut connection);
    let expected = format!("the coordinator at {address} closed the connection");
    assert_eq!((error.kind, error.to_string()), (Kind::Unreachable, expected));
}

#[test]
fn a_waker_ends_the_wait_in_progress_or_the_next() {
    let (server, _told) = serve();
    let mut connection = connect(&server);
    let waker = connection.waker();
    waker.wake();
    let start = Instant::now();
    assert_eq!(connection.receive(LONG).unwrap(), None);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(SHORT);
            waker.wake();
        });
        assert_eq!(connection.receive(LONG).unwrap(), None);
    });
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(connection.receive(SHORT).unwrap(), None, "a wake ends one wait");
    assert_eq!(ask(&mut connection, b"still there"), b"still there");
}

#[test]
fn the_end_of_a_client_is_told_once_whoever_ends_it() {
    let (server, told) = serve();
    for end in [None, Some(REFUSE), Some(CLOSE)] {
        let (mut connection, id) = join(&server, &told);
        match end {
            Some(CLOSE) => assert_eq!(ask(&mut connection, &[CLOSE]), b"goodbye"),
            Some(kind) => connection.send(&[kind]).unwrap(),
            None => drop(connection),
        }
        assert_eq!(told.recv_timeout(LONG).unwrap(), Told::Closed(id));
    }
    assert_eq!(told.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
}

#[test]
fn a_service_ticks_at_its_deadline_though_nobody_speaks() {
    let (server, told) = serve();
    let start = Instant::now();
    server.call(|echo, now, _| echo.deadline = Some(now + SHORT));
    assert_eq!(told.recv_timeout(LONG).unwrap(), Told::Ticked);
    assert!(start.elapsed() >= SHORT && start.elapsed() < LONG / 2);
}

#[test]
fn a_slow_reader_is_closed_and_others_go_on() {
    let (server, told) = serve();
    let (mut slow, of_slow) = join(&server, &told);
    let (mut quick, of_quick) = join(&server, &told);
    let message = vec![5; OUTPUT_BYTES_MAX];
    // Beyond what the sockets' buffers take, and what is kept for it.
    for _ in 0..100 {
        let sent = message.clone();
        server
            .call(move |_, _, out| [of_slow, of_quick].iter().for_each(|id| out.send(*id, &sent)));
        assert_eq!(quick.receive(LONG).unwrap().unwrap(), message);
        if let Ok(closed) = told.try_recv() {
            assert_eq!(closed, Told::Closed(of_slow));
            assert_eq!(ends(&mut slow).kind, Kind::Unreachable);
            assert_eq!(ask(&mut quick, b"still there"), b"still there");
            return;
        }
    }
    panic!("the slow reader is kept");
}

/// It is answered nothing, so that only its share of the turns holds it back.
#[test]
fn a_client_that_floods_does_not_starve_others() {
    let (server, told) = serve();
    let (mut flood, _) = join(&server, &told);
    let (mut quick, _) = join(&server, &told);
    let (stop, stopped) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
                match flood.send(&[KEEP; 100]) {
                    Ok(()) => {}
                    Err(error) => assert_eq!(error.kind, Kind::Limit, "{error}"),
                }
            }
        });
        for number in 0..200_u8 {
            let message = [9, number];
            assert_eq!(ask(&mut quick, &message), message);
        }
        drop(stop);
    });
}

/// A client by hand that has completed its handshake, and the server's bytes behind it.
fn shaken(server: &Endpoint<Echo>) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut handshake = Handshake::new(Role::Initiator, &token(), Preamble { encrypt: true });
    let (mut input, mut output) = (Vec::new(), Vec::new());
    while handshake.advance(&mut input, &mut output).unwrap().is_none() {
        stream.write_all(&output).unwrap();
        output.clear();
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        input.extend(byte);
    }
    stream
}

#[test]
fn garbage_after_the_handshake_closes_this_connection_alone() {
    let (server, told) = serve();
    let (mut good, _) = join(&server, &told);
    for garbage in
        [&[16, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16][..], &[255; 600]]
    {
        let mut stream = shaken(&server);
        stream.write_all(garbage).unwrap();
        let ended = stream.read(&mut [0]);
        let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(ended.as_ref().is_ok_and(|read| *read == 0) || ended.as_ref().is_err_and(reset));
    }
    assert_eq!(ask(&mut good, b"still there"), b"still there");
    assert_eq!(told.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty), "no client of it");
}

#[test]
fn another_token_is_refused_and_named() {
    let (server, told) = serve();
    let address = server.address().to_string();
    let error = Connection::connect(&address, &Token::new("hunter2"), LONG).unwrap_err();
    assert_eq!(error.kind, Kind::TokenMismatch);
    let expected = format!("the coordinator at {address} has another job token than this side");
    assert_eq!(error.to_string(), expected);
    let (said, hear) = channel();
    server.call(move |_, _, out| {
        said.send(out.explain(Error::new(Kind::Timeout, "nobody came"))).unwrap();
    });
    let error = hear.recv_timeout(LONG).unwrap();
    assert_eq!(error.kind, Kind::TokenMismatch);
    assert!(error.to_string().starts_with("nobody came; 127.0.0.1:"), "{error}");
    assert_eq!(told.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
}

#[test]
fn a_coordinator_that_is_not_there_is_named() {
    let (server, _told) = serve();
    let address = server.address().to_string();
    drop(server);
    let error = Connection::connect(&address, &token(), SHORT).unwrap_err();
    assert_eq!(error.kind, Kind::Unreachable);
}
