//! The port that all ranks of a host share, from the caller or the environment.

use std::net::{ToSocketAddrs, UdpSocket};

use crate::environment::Variables;
use crate::error::Error;

/// The environment variable.
pub const VARIABLE: &str = "THINWIRE_PORT";

/// Returns the port that all ranks of a host share: the caller's, or else the environment's. Without
/// either, returns `None`, and each rank has a free port of its own.
///
/// # Errors
/// If the value is not a port.
pub fn port(overrides: Option<u16>, variables: Variables<'_>) -> Result<Option<u16>, Error> {
    let (name, said) = match (overrides, variables(VARIABLE)) {
        (Some(port), _) => ("port", port.to_string()),
        (None, Some(said)) => (VARIABLE, said),
        (None, None) => return Ok(None),
    };
    match said.parse() {
        Ok(port @ 1..) => Ok(Some(port)),
        _ => Err(Error::invalid(format!("{name} is '{said}', expected 1 to 65535"))),
    }
}

/// Checks that the shared port of the ranks is not the port at which they meet, `coordinator`.
///
/// # Errors
/// If the two ports are the same.
pub fn check_apart(port: Option<u16>, coordinator: &str) -> Result<(), Error> {
    let meets = coordinator.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    match port.filter(|port| meets == Some(*port)) {
        Some(port) => Err(Error::invalid(format!(
            "port {port} is shared by the ranks of a host, and they meet at {coordinator}: expected two ports"
        ))
        .with_hint("give a port other than that of the coordinator")),
        None => Ok(()),
    }
}

/// Checks that the shared port of a host's ranks is not the port of their elastic job's coordinator, if the
/// coordinator is on this host. A coordinator on another host may have a port with the same number.
///
/// # Errors
/// If the two ports are the same.
pub fn check_apart_here(port: Option<u16>, coordinator: &str) -> Result<(), Error> {
    match port.is_some() && is_here(coordinator) {
        true => check_apart(port, coordinator),
        false => Ok(()),
    }
}

/// Returns whether an address is one of this host.
fn is_here(address: &str) -> bool {
    let found = address.to_socket_addrs().into_iter().flatten();
    // Only an address of this host can be bound.
    found.map(|address| UdpSocket::bind((address.ip(), 0))).any(|bound| bound.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_on_another_host_may_have_the_same_port() {
        assert!(check_apart_here(Some(29400), "127.0.0.1:29400").is_err());
        assert!(check_apart_here(Some(29401), "127.0.0.1:29400").is_ok());
        // An address for documentation, which no host has.
        assert!(check_apart_here(Some(29400), "192.0.2.1:29400").is_ok());
    }

    fn found(given: Option<u16>, said: Option<&str>) -> Result<Option<u16>, String> {
        let said = |name: &str| said.filter(|_| name == VARIABLE).map(str::to_owned);
        port(given, &said).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_given_comes_before_the_environment_and_that_before_none() {
        assert_eq!(found(Some(7), Some("8")), Ok(Some(7)));
        assert_eq!(found(None, Some("29400")), Ok(Some(29400)));
        assert_eq!(found(None, None), Ok(None));
    }

    #[test]
    fn what_is_no_port_is_refused_with_both_values() {
        for text in ["0", "65536", "-1", "http", ""] {
            let error = found(None, Some(text)).unwrap_err();
            assert_eq!(error, format!("THINWIRE_PORT is '{text}', expected 1 to 65535"));
        }
        assert_eq!(found(Some(0), None).unwrap_err(), "port is '0', expected 1 to 65535");
    }

    #[test]
    fn ranks_do_not_share_the_port_where_they_meet() {
        for (port, coordinator) in [(None, "a:7"), (Some(7), "a:8"), (Some(7), "[::7]:8")] {
            check_apart(port, coordinator).unwrap();
        }
        let error = check_apart(Some(7), "[::1]:7").unwrap_err();
        let said =
            "port 7 is shared by the ranks of a host, and they meet at [::1]:7: expected two ports";
        assert_eq!(error.to_string(), said);
    }
}
