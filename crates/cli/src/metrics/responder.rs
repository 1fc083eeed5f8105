//! Thread that answers HTTP requests with one page.
//!
//! Connections are served one at a time, each for at most two seconds and with one small buffer. This limits
//! the cost of unknown clients. Law: no request makes the thread fail, and no answer repeats bytes of a
//! request.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::failure::OrHint;

/// Longest time for one connection.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// Most bytes of a request that are read.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Path of the page.
const PATH: &str = "/metrics";

/// Starts the thread, which answers requests at an address with the text of `page`. Returns the address with
/// its actual port. The thread runs until the process ends.
///
/// # Errors
/// If the address is taken, or is not an address of this machine.
pub fn start(
    address: SocketAddr,
    page: impl Fn() -> String + Send + 'static,
) -> Result<SocketAddr> {
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot show metrics at {address}"))
        .or_hint(
            "give another port with --metrics or THINWIRE_METRICS, or 0 for any that is free",
        )?;
    let found = listener.local_addr()?;
    let serve = move || {
        loop {
            match listener.accept() {
                // A client that is gone needs no answer.
                Ok((stream, _)) => drop(serve(stream, &page)),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    };
    thread::Builder::new().name("thinwire metrics".to_owned()).spawn(serve)?;
    Ok(found)
}

fn serve(mut stream: TcpStream, page: &impl Fn() -> String) -> std::io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !is_whole(&request) && request.len() < REQUEST_BYTES_MAX {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut buffer)? {
            0 => break,
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    let answer = answer(&request, page);
    let mut unsent = &answer[..];
    while !unsent.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        let count = stream.write(unsent)?;
        unsent = &unsent[count..];
    }
    Ok(())
}

fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn is_whole(request: &[u8]) -> bool {
    request.windows(4).any(|window| window == b"\r\n\r\n")
}

/// Returns the answer to a request.
fn answer(request: &[u8], page: impl FnOnce() -> String) -> Vec<u8> {
    let line = request.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let (status, body) = match &words[..] {
        [_, _, version] if !is_whole(request) || !version.starts_with(b"HTTP/1.") => {
            ("400 Bad Request", "this is no request of HTTP/1\n".to_owned())
        }
        [b"GET", path, _] if path.split(|byte| *byte == b'?').next() == Some(PATH.as_bytes()) => {
            ("200 OK", page())
        }
        [b"GET", _, _] => ("404 Not Found", format!("metrics are at {PATH}\n")),
        [_, _, _] => ("405 Method Not Allowed", "only GET is answered\n".to_owned()),
        _ => ("400 Bad Request", "this is no request of HTTP/1\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.into_bytes(), body.into_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(request: &[u8]) -> String {
        let answer = String::from_utf8(answer(request, || "the page\n".to_owned())).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{answer}");
        assert_eq!(head.contains(" 200 "), body == "the page\n");
        head.split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn the_page_is_at_one_path() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "200"),
            ("GET /metrics?a=b HTTP/1.0\r\n\r\n", "200"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics2 HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics HTTP/2\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\n", "400"),
            ("GET /metrics\r\n\r\n", "400"),
            ("", "400"),
        ] {
            assert_eq!(status(request.as_bytes()), expected, "{request:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(request in prop::collection::vec(any::<u8>(), 0..64)) {
            status(&request);
        }
    }

    #[test]
    fn a_taken_port_is_refused_and_strangers_end_nothing() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let address = start(any, || "the page\n".to_owned()).unwrap();
        let error = start(address, String::new).unwrap_err();
        let (message, hint) = crate::failure::lines(&error);
        assert!(message.starts_with(&format!("cannot show metrics at {address}")), "{message}");
        assert!(hint.unwrap().contains("another port"));
        drop(TcpStream::connect(address).unwrap());
        let mut strange = TcpStream::connect(address).unwrap();
        strange.write_all(&[0xff; REQUEST_BYTES_MAX + 9]).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\n\r\nthe page\n"), "{answer}");
    }
}
