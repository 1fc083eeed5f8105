//! The store where ranks meet, and the secret that gives access to it.

use std::net::SocketAddr;

use thinwire_link::endpoint::{Endpoint, Node};
use thinwire_link::store::KeyValueService;
use thinwire_link::store::tcp::Server;
use thinwire_link::{self as link, Token};

use crate::address::{check_reachable, is_loopback, joined, listening, resolved, seen_by_others};
use crate::environment::Variables;
use crate::error::Error;
use crate::identity::Identity;
use crate::overrides::Overrides;
use crate::place::{Host, Place, Source};

/// The shortest token, in bytes, of a job that meets beyond this machine. Whoever records a handshake can
/// guess a short token offline.
pub const TOKEN_BYTES_MIN: usize = 16;

/// A hint with a command that makes a token, for which a shell is enough.
const MAKE_ONE: &str = "give every rank the same secret, made once: \
    export THINWIRE_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')";

/// Opens a store for the ranks of a job at `host`, the name by which they reach it, and `port` (0 for any
/// port that is free). The store exists until the server is dropped. Also returns its address, "host:port".
///
/// # Errors
/// If `host` is unknown or ranks cannot reach it, the port is taken, or ranks are to meet beyond this machine
/// and the token is empty or shorter than 16 bytes.
pub fn open(host: &str, port: u16, token: &str) -> Result<(Server, String), Error> {
    let wanted = joined(host, port);
    let secret = secret(token, &wanted)?;
    check_reachable(&wanted)?;
    let server = bind(&wanted, &secret)?;
    let address = joined(host, server.address().port());
    Ok((server, address))
}

/// Opens a store as [`open`] does, but behind the port that all processes of this host share. Its address is
/// "host:port#key".
///
/// # Errors
/// As [`open`], or if another program has the port.
pub fn open_behind(host: &str, port: u16, token: &str) -> Result<(Server, String), Error> {
    let (secret, behind) = (secret(token, &joined(host, port))?, Behind::at(host, port)?);
    let server = Server::share(behind.listens, &secret)?;
    let address = behind.with_key(&server.shared_address());
    Ok((server, address))
}

/// Serves the processes of a job at `address`, the host:port at which they reach it (port 0 for any that is
/// free). Also returns this address with the actual port.
///
/// # Errors
/// If the address is unknown or taken, or the token is missing or too short for a job beyond this machine.
pub fn serve<S: Node>(
    address: &str,
    token: &str,
    service: S,
) -> Result<(Endpoint<S>, String), Error> {
    let secret = secret(token, address)?;
    check_reachable(address)?;
    let server = Endpoint::bind(listening(address)?, &secret, service)?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let address = joined(host, server.address().port());
    Ok((server, address))
}

/// Serves the processes of a job as [`serve`] does. If ranks of this host share a port and `address` names
/// none (port 0), the service is behind that port, and its address is "host:port#key".
///
/// # Errors
/// As [`serve`], or if another program has the port.
pub fn serve_behind<S: Node>(
    address: &str,
    port: Option<u16>,
    token: &str,
    service: S,
) -> Result<(Endpoint<S>, String), Error> {
    let Some((host, port)) = address.strip_suffix(":0").zip(port) else {
        return serve(address, token, service);
    };
    let (secret, behind) = (secret(token, address)?, Behind::at(host, port)?);
    let server = Endpoint::share(behind.listens, &secret, service)?;
    let address = behind.with_key(&server.shared_address());
    Ok((server, address))
}

/// The address of a listener behind the port that the ranks of this host share.
struct Behind {
    /// Address on which the listener accepts connections, with the shared port.
    listens: SocketAddr,
    /// The address for other processes, without the key.
    told: String,
}

impl Behind {
    fn at(host: &str, port: u16) -> Result<Behind, Error> {
        let told = joined(host, port);
        check_reachable(&told)?;
        let found = resolved(&told)?;
        let listens = SocketAddr::new(seen_by_others(&told, found.ip()), port);
        // Where a name means another address here, all are told the number.
        Ok(Behind { told: if listens == found { told } else { listens.to_string() }, listens })
    }

    /// Returns the address for other processes, with the key from `address`.
    fn with_key(self, address: &str) -> String {
        let key = address.rsplit_once('#').map_or("", |(_, key)| key);
        format!("{}#{key}", self.told)
    }
}

/// Opens a store at the address where ranks are told to meet.
pub fn bind(coordinator: &str, token: &Token) -> Result<Server, Error> {
    Ok(Server::bind(listening(coordinator)?, token)?)
}

/// Opens a store where the ranks of this place's job are told to meet, with the identity of the job.
pub fn host(place: &Place, token: &Token) -> Result<Server, Error> {
    let (key, value) = Identity::fresh(place)?.entry();
    let service = KeyValueService::with(key, &value)?;
    Ok(Server::bind_with(listening(&place.coordinator)?, token, service)?)
}

/// Returns the job's secret for ranks that meet at `coordinator`: the given one, or else THINWIRE_TOKEN. An
/// empty secret counts as none. Only a job on one machine may have no secret; the result is then empty.
///
/// # Errors
/// If ranks are to meet beyond loopback and the token is missing or shorter than 16 bytes.
pub fn token(
    overrides: &Overrides,
    coordinator: &str,
    variables: Variables<'_>,
) -> Result<String, Error> {
    let overrides = overrides.token.clone().filter(|token| !token.is_empty());
    let token = overrides.or_else(|| variables("THINWIRE_TOKEN")).unwrap_or_default();
    secret(&token, coordinator).map(|_| token)
}

/// Returns the secret of processes that meet at `coordinator`.
///
/// # Errors
/// If processes meet beyond loopback and the token is missing or too short.
pub fn secret(token: &str, coordinator: &str) -> Result<Token, Error> {
    if is_loopback(coordinator) || token.len() >= TOKEN_BYTES_MIN {
        return Ok(Token::new(token));
    }
    let job = format!("for a job that meets at {coordinator}");
    Err(Error::invalid(match token.len() {
        0 => format!("no token {job}"),
        length => format!("token of {length} bytes {job}, expected at least {TOKEN_BYTES_MIN}"),
    })
    .with_hint(MAKE_ONE))
}

/// Returns an error of the coordinator's connection, with a hint if this process has no token or another one.
pub fn without_token(error: Error, token: &str) -> Error {
    match error.link().map(|error| error.kind) {
        Some(link::Kind::TokenMismatch) => error.with_hint(match token.is_empty() {
            true => "this process has no token: set THINWIRE_TOKEN to that of the job",
            false => {
                "the token of this process is not the job's: set THINWIRE_TOKEN to that of the job"
            }
        }),
        _ => error,
    }
}

/// Returns a warning for a rendezvous host that was started by hand without a token.
pub fn warning(place: &Place, token: &str) -> Option<&'static str> {
    let by_hand = matches!(place.source, Source::Overrides(_));
    let hosts = place.world > 1 && place.rank == 0 && place.host == Host::RankZero;
    if by_hand && hosts { unprotected(token) } else { None }
}

/// Returns the warning for a job that is hosted by hand without a token.
pub fn unprotected(token: &str) -> Option<&'static str> {
    token.is_empty().then_some(
        "warning: without a token every user of this machine can join this job or end it: \
         set THINWIRE_TOKEN on every rank",
    )
}

/// Returns a random secret for a job.
///
/// # Errors
/// If the system has no random numbers.
pub fn fresh_token() -> Result<String, Error> {
    Ok(Token::random()?)
}

#[cfg(test)]
mod tests {
    use thinwire_wire::Hint;

    use super::*;

    const GIVEN: &str = "given, and sixteen";
    const SET: &str = "set to 16 bytes.";

    #[test]
    fn beyond_loopback_a_token_is_needed() {
        let (none, unset) = (Overrides::default(), |_: &str| None);
        for address in ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.3.2.1:9"] {
            assert_eq!(token(&none, address, &unset).unwrap(), "", "{address}");
        }
        for address in ["10.0.0.1:1", "node7:1", "[fe80::1]:1"] {
            assert!(token(&none, address, &unset).is_err(), "{address}");
            let overrides = Overrides { token: Some(GIVEN.to_owned()), ..Overrides::default() };
            assert_eq!(token(&overrides, address, &unset).unwrap(), GIVEN);
            let set = |name: &str| (name == "THINWIRE_TOKEN").then(|| SET.to_owned());
            assert_eq!(token(&none, address, &set).unwrap(), SET);
            assert_eq!(token(&overrides, address, &set).unwrap(), GIVEN);
        }
        assert!(open("node7", 0, "").is_err());
    }

    #[test]
    fn an_empty_token_is_none() {
        let empty = Overrides { token: Some(String::new()), ..Overrides::default() };
        let error = token(&empty, "node7:1", &|_| None).unwrap_err();
        assert_eq!(error.to_string(), "no token for a job that meets at node7:1");
        let set = |name: &str| (name == "THINWIRE_TOKEN").then(|| SET.to_owned());
        assert_eq!(token(&empty, "node7:1", &set).unwrap(), SET);
        assert_eq!(token(&empty, "localhost:1", &|_| None).unwrap(), "");
    }

    #[test]
    fn beyond_loopback_a_short_token_is_refused_with_the_command_that_makes_one() {
        let short = Overrides { token: Some(SET[1..].to_owned()), ..Overrides::default() };
        let said = "token of 15 bytes for a job that meets at 10.0.0.1:7, expected at least 16";
        let refused = [
            token(&short, "10.0.0.1:7", &|_| None).unwrap_err(),
            open("10.0.0.1", 7, &SET[1..]).map(|_| ()).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.to_string(), said);
            let command = error.hint().unwrap().split_once("THINWIRE_TOKEN=").unwrap().1;
            let script = format!("printf %s {command}");
            let made = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            let made = String::from_utf8(made.stdout).unwrap();
            assert_eq!(made.len(), 32, "{made}");
            assert!(made.bytes().all(|letter| letter.is_ascii_hexdigit()), "{made}");
        }
        assert_eq!(token(&short, "127.0.0.1:7", &|_| None).unwrap(), SET[1..]);
    }

    #[test]
    fn who_hosts_a_job_by_hand_without_a_token_is_warned() {
        let alone = Place::alone(crate::Form::Flags);
        let hosts = Place { world: 2, ..alone.clone() };
        assert!(warning(&hosts, "").unwrap().contains("every user of this machine"));
        let launched = Place { source: Source::Torchrun, ..hosts.clone() };
        let other = Place { rank: 1, ..hosts.clone() };
        let elsewhere = Place { host: Host::Launcher, ..hosts.clone() };
        for (place, token) in
            [(hosts, SET), (alone, ""), (launched, ""), (other, ""), (elsewhere, "")]
        {
            assert_eq!(warning(&place, token), None, "{place:?}");
        }
    }

    #[test]
    fn a_store_says_where_it_can_be_reached() {
        let (server, address) = open("127.0.0.1", 0, "").unwrap();
        assert_eq!(address, server.address().to_string());
        let port = server.address().port();
        let error = open("127.0.0.1", port, "").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot listen on {address}: address already in use")
        );
        assert!(open("0.0.0.0", 0, SET).is_err());
        let (server, address) = open("localhost", 0, "").unwrap();
        assert_eq!(address, format!("localhost:{}", server.address().port()));
    }
}
