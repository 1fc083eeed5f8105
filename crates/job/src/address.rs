//! Addresses as `host:port`: tests whether they are on this machine, and the address on which a store
//! listens.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use thinwire_link::tcp::address_towards;

use crate::error::Error;

/// The port where rank 0 waits for the others if no port is given.
pub const PORT: u16 = 29417;

/// Returns whether an address, with or without a port, is on this machine only.
pub fn is_loopback(address: &str) -> bool {
    let is = |host: &str| {
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    is(address) || is(host.trim_matches(['[', ']']))
}

/// Returns a host and a port as "host:port", with brackets around an IPv6 address.
pub fn joined(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Returns an error unless the address is `host:port`, or `host:port#key` for a listener behind a shared
/// port.
pub fn check(address: &str) -> Result<(), Error> {
    let address = address.split_once('#').map_or(address, |(address, _)| address);
    // The colons of an IPv6 address stand in brackets.
    let is_host = |host: &str| !host.is_empty() && (host.starts_with('[') || !host.contains(':'));
    let port = address.rsplit_once(':').filter(|(host, _)| is_host(host)).map(|(_, port)| port);
    match port.and_then(|port| port.parse::<u16>().ok()) {
        Some(_) => Ok(()),
        None => Err(Error::invalid(format!("address '{address}', expected host:port"))
            .with_hint("as in 10.0.0.1:29500, or [2001:db8::1]:29500")),
    }
}

/// Returns an error unless the address is `host:port` with a host that other processes can reach.
pub fn check_reachable(address: &str) -> Result<(), Error> {
    check(address)?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let parsed = host.trim_matches(['[', ']']).parse::<IpAddr>();
    if parsed.is_ok_and(|address| address.is_unspecified()) {
        return Err(Error::invalid(format!("{host} is no address that other processes can reach"))
            .with_hint(
                "give an address of this host, for instance 10.0.0.1; connections are accepted on \
                 all its interfaces",
            ));
    }
    Ok(())
}

/// Returns the first address of a name and a port.
///
/// # Errors
/// If the name is unknown on this machine.
pub fn resolved(address: &str) -> Result<SocketAddr, Error> {
    let resolved = address.to_socket_addrs().ok().and_then(|mut found| found.next());
    resolved.ok_or_else(|| {
        Error::invalid(format!("'{address}' is no known address"))
            .with_hint("check the name, which this machine looks up in /etc/hosts and DNS")
    })
}

/// Returns the address on which the process that hosts a store listens, if all ranks are told to meet at
/// `coordinator`. If `coordinator` is on loopback, this is loopback. Otherwise it is all interfaces,
/// because a host's own name often resolves to loopback only.
pub fn listening(coordinator: &str) -> Result<SocketAddr, Error> {
    let resolved = resolved(coordinator)?;
    if is_loopback(coordinator) {
        return Ok(resolved);
    }
    let any: IpAddr = match resolved {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Ok(SocketAddr::new(any, resolved.port()))
}

/// Returns the address at which other hosts reach this host under `name` (a name and a port), which
/// resolves to `found` on this host. On Debian a host's own name resolves to loopback. In this case,
/// returns the address from which this host reaches other hosts, if it reaches any.
pub fn seen_by_others(name: &str, found: IpAddr) -> IpAddr {
    seen_by(name, found, |elsewhere| address_towards(elsewhere).ok())
}

fn seen_by(name: &str, found: IpAddr, route: impl Fn(SocketAddr) -> Option<IpAddr>) -> IpAddr {
    if !found.is_loopback() || is_loopback(name) {
        return found;
    }
    // Addresses of documentation, which nobody has, and any port: nothing is sent there.
    let elsewhere: IpAddr = match found {
        IpAddr::V4(_) => [192, 0, 2, 1].into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    route(SocketAddr::new(elsewhere, 9)).unwrap_or(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_loopback_here_alone_is_the_address_of_the_way_out() {
        let of = |text: &str| text.parse::<IpAddr>().unwrap();
        let (out, none) = (|_: SocketAddr| Some([10, 0, 0, 5].into()), |_: SocketAddr| None);
        assert_eq!(seen_by("node7:80", of("127.0.1.1"), out), of("10.0.0.5"));
        assert_eq!(seen_by("node7:80", of("127.0.1.1"), none), of("127.0.1.1"));
        for (name, found) in
            [("localhost:80", "127.0.0.1"), ("127.0.0.1:80", "127.0.0.1"), ("node7:80", "10.0.0.7")]
        {
            assert_eq!(seen_by(name, of(found), out), of(found));
        }
    }

    #[test]
    fn only_what_meets_on_loopback_listens_there_alone() {
        let table = [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("10.1.2.3:80", "0.0.0.0:80"),
            ("[fe80::1]:80", "[::]:80"),
        ];
        for (coordinator, listens) in table {
            assert_eq!(listening(coordinator).unwrap().to_string(), listens);
        }
        assert!(listening("nothing").is_err());
    }

    #[test]
    fn addresses_that_nobody_reaches_are_refused_before_anybody_tries() {
        let said = |address| check_reachable(address).unwrap_err().to_string();
        for address in ["10.0.0.1", ":80", "a:x", "a:80:1", ""] {
            assert_eq!(said(address), format!("address '{address}', expected host:port"));
        }
        assert_eq!(said("0.0.0.0:80"), "0.0.0.0 is no address that other processes can reach");
        assert_eq!(said("[::]:80"), "[::] is no address that other processes can reach");
        assert!(
            ["127.0.0.1:0", "[::1]:80", "node7:80"].map(check_reachable).iter().all(Result::is_ok)
        );
    }

    #[test]
    fn loopback_is_known_with_and_without_a_port() {
        for address in ["localhost", "localhost:1", "127.3.2.1", "127.0.0.1:9", "::1", "[::1]:5"] {
            assert!(is_loopback(address), "{address}");
        }
        for address in ["node7", "10.0.0.1:1", "fe80::1", "[fe80::1]:1", "::"] {
            assert!(!is_loopback(address), "{address}");
        }
    }

    #[test]
    fn a_host_and_a_port_make_an_address() {
        assert_eq!(joined("n1", 7), "n1:7");
        assert_eq!(joined("fe80::1", 7), "[fe80::1]:7");
        assert_eq!(joined("[fe80::1]", 7), "[fe80::1]:7");
    }
}
