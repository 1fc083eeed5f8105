//! Requests to etcd: JSON over HTTP, one connection each.

use std::io::{self, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Failure;
use crate::elastic::persistence::STATE_BYTES_MAX;

/// Longest time of a request in seconds. A coordinator that is saving reads no messages; afterwards it first
/// reads what members have sent, and only then checks which of them are silent.
const TIMEOUT_S: u64 = 2;
/// Largest number of bytes of an answer: a state in base64, and the JSON around it.
const ANSWER_BYTES_MAX: usize = 2 * STATE_BYTES_MAX + (16 << 10);
const HEADERS_BYTES_MAX: usize = 16 << 10;
const STATUS_BYTES_MAX: usize = 1 << 10;

/// Status that minreq gives to an answer that has none.
const NO_STATUS: u16 = 503;
/// Answer of a server whose clients must use TLS.
const NEEDS_TLS: &str = "HTTP request to an HTTPS server";
const TLS_HINT: &str = "if this is an etcd for TLS only, use one without TLS on a trusted \
    network: thinwire speaks plain HTTP with etcd";
const AUTH_HINT: &str =
    "thinwire gives etcd no user: use one without authentication, on a trusted network";

/// Sends a request to a server, host:port, and returns its answer.
///
/// # Errors
/// If the server does not answer in time, or refuses the request.
pub fn post(server: &str, path: &str, body: Vec<u8>) -> Result<Vec<u8>, Failure> {
    // minreq takes the first colon of a URL for that of the port.
    if server.starts_with('[') {
        let text = format!("etcd at {server}, expected a name or an IPv4 address");
        return Err(Failure::Final {
            text,
            hint: "give the IPv6 address a name, in /etc/hosts or DNS",
        });
    }
    let sent = minreq::post(format!("http://{server}/v3/{path}"))
        .with_header("Content-Type", "application/json")
        .with_body(body)
        .with_timeout(TIMEOUT_S)
        .with_follow_redirects(false)
        .with_max_headers_size(HEADERS_BYTES_MAX)
        .with_max_status_line_length(STATUS_BYTES_MAX)
        .send_lazy();
    let response = sent.map_err(|error| unreachable(server, &error))?;
    let status = response.status_code;
    if status == NO_STATUS && response.headers.is_empty() {
        let text = format!("{server} does not speak HTTP");
        return Err(Failure::Final { text, hint: TLS_HINT });
    }
    let mut answer = Vec::new();
    response
        .take(ANSWER_BYTES_MAX as u64 + 1)
        .read_to_end(&mut answer)
        .map_err(|error| Failure::away(server, &error.to_string()))?;
    if answer.len() > ANSWER_BYTES_MAX {
        let text = format!("etcd at {server} answers with more than {ANSWER_BYTES_MAX} bytes");
        return Err(Failure::Final {
            text,
            hint: "check that this is etcd, and that thinwire has written the key",
        });
    }
    match status {
        200 => Ok(answer),
        _ => Err(refusal(server, status, &answer)),
    }
}

fn unreachable(server: &str, error: &minreq::Error) -> Failure {
    let minreq::Error::IoError(error) = error else {
        let text = format!("{server} does not speak HTTP: {error}");
        return Failure::Final { text, hint: TLS_HINT };
    };
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::away(server, "connection refused"),
        io::ErrorKind::TimedOut => {
            Failure::away(server, &format!("no answer within {TIMEOUT_S} s"))
        }
        _ => Failure::away(server, &error.to_string()),
    }
}

/// Returns the failure behind an answer that is no success: one that may pass, or a final one.
fn refusal(server: &str, status: u16, answer: &[u8]) -> Failure {
    let answer = String::from_utf8_lossy(answer);
    if answer.contains(NEEDS_TLS) {
        let text = format!("etcd at {server} is for TLS only");
        return Failure::Final { text, hint: TLS_HINT };
    }
    let json: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
    // Not every version of etcd's gateway has both.
    let reason = json["message"].as_str().or_else(|| json["error"].as_str());
    let Some(reason) = reason else {
        // A server that is in trouble may answer otherwise later.
        if status >= 500 {
            return Failure::away(server, &format!("it answers {status}"));
        }
        // Earlier versions do not know the paths `/v3/...`.
        let text = format!("{server} is no etcd of version 3.4 or later: it answers {status}");
        return Failure::Final { text, hint: "give the address at which etcd's clients reach it" };
    };
    // Text from outside becomes part of one line for people.
    let reason: String = reason.chars().filter(|letter| !letter.is_control()).take(200).collect();
    let is_about_users = ["user name", "auth token", "permission denied", "authentication"];
    match is_about_users.iter().any(|words| reason.contains(words)) {
        true => {
            let text = format!("etcd at {server} asks for a user: {reason}");
            Failure::Final { text, hint: AUTH_HINT }
        }
        // No leader at the moment, too many requests and the like.
        false => Failure::away(server, &reason),
    }
}

pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}
