//! How the ranks of a job meet: a store on a known address, a secret, and then a link to everyone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result};
use thinwire_link::Token;
use thinwire_link::store::tcp::Server;

use crate::environment::is_loopback;

/// A store for ranks on this machine, on a free port.
///
/// # Errors
/// If loopback refuses.
pub fn host(token: &str) -> Result<Server> {
    Ok(Server::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &Token::new(token))?)
}

/// The secret that the user gave, or a fresh one.
///
/// # Errors
/// If the system has no random numbers.
pub fn token_or_fresh(given: Option<&String>) -> Result<String> {
    Ok(given.map_or_else(Token::random, |token| Ok(token.clone()))?)
}

/// Where rank 0 listens if all ranks are told to meet at `coordinator`: on loopback if that is
/// there, else on every interface, because a host's own name often resolves to itself only.
fn listening_address(coordinator: &str) -> Result<SocketAddr> {
    let resolved = coordinator.to_socket_addrs().ok().and_then(|mut found| found.next());
    let resolved =
        resolved.with_context(|| format!("'{coordinator}' is no address of this host"))?;
    if is_loopback(coordinator) {
        return Ok(resolved);
    }
    let any: IpAddr = match resolved {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Ok(SocketAddr::new(any, resolved.port()))
}
