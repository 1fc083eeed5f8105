//! The store where ranks meet, and the secret that opens it.

use std::net::IpAddr;

use thinwire_link::Token;
use thinwire_link::store::tcp::Server;

use crate::address::{is_loopback, joined, listening};
use crate::environment::Variables;
use crate::error::Error;
use crate::given::Given;

/// Opens a store for the ranks of a job, on `host` as they reach it and on `port` (0 for any that
/// is free); it is there until the server is dropped. Also gives its address, "host:port".
///
/// # Errors
/// If `host` is unknown or no address to reach it by, the port is taken, or ranks are to meet
/// beyond this machine and the token is empty.
pub fn open(host: &str, port: u16, token: &str) -> Result<(Server, String), Error> {
    let wanted = joined(host, port);
    if token.is_empty() && !is_loopback(host) {
        return Err(no_token(&wanted));
    }
    if host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
        return Err(Error::invalid(format!("{host} is no address that other ranks can reach"))
            .with_hint("name an address of this host, for instance 10.0.0.1"));
    }
    let server = bind(&wanted, &Token::new(token))?;
    let address = joined(host, server.address().port());
    Ok((server, address))
}

/// Listens where ranks are told to meet.
pub fn bind(coordinator: &str, token: &Token) -> Result<Server, Error> {
    Ok(Server::bind(listening(coordinator)?, token)?)
}

/// The job's secret, for ranks that meet at `coordinator`: as given, else THINWIRE_TOKEN; on one
/// machine it may be empty, beyond it must be given.
///
/// # Errors
/// If ranks are to meet beyond loopback and there is no token.
pub fn token(given: &Given, coordinator: &str, variables: Variables<'_>) -> Result<String, Error> {
    match given.token.clone().or_else(|| variables("THINWIRE_TOKEN")) {
        Some(token) => Ok(token),
        None if is_loopback(coordinator) => Ok(String::new()),
        None => Err(no_token(coordinator)),
    }
}

/// A random secret for a job.
///
/// # Errors
/// If the system has no random numbers.
pub fn fresh_token() -> Result<String, Error> {
    Ok(Token::random()?)
}

fn no_token(coordinator: &str) -> Error {
    Error::invalid(format!("no token for a job that meets at {coordinator}"))
        .with_hint("give every rank the same secret: THINWIRE_TOKEN=$(openssl rand -hex 16)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_loopback_a_token_is_needed() {
        let (none, unset) = (Given::default(), |_: &str| None);
        for address in ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.3.2.1:9"] {
            assert_eq!(token(&none, address, &unset).unwrap(), "", "{address}");
        }
        for address in ["10.0.0.1:1", "node7:1", "[fe80::1]:1"] {
            assert!(token(&none, address, &unset).is_err(), "{address}");
            let given = Given { token: Some("s".to_owned()), ..Given::default() };
            assert_eq!(token(&given, address, &unset).unwrap(), "s");
            let set = |name: &str| (name == "THINWIRE_TOKEN").then(|| "t".to_owned());
            assert_eq!(token(&none, address, &set).unwrap(), "t");
            assert_eq!(token(&given, address, &set).unwrap(), "s");
        }
        assert!(open("node7", 0, "").is_err());
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
        assert!(open("0.0.0.0", 0, "s").is_err());
        let (server, address) = open("localhost", 0, "").unwrap();
        assert_eq!(address, format!("localhost:{}", server.address().port()));
    }
}
