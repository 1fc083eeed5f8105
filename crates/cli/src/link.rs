//! Flags of the link between ranks.

use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use thinwire_job::{Meeting, Place, is_loopback};
use thinwire_link::tcp::{Connections, Encryption};
use thinwire_link::{Bandwidth, InvalidBandwidth};

use crate::codings::one_of;
use crate::output::say;
use crate::place::Flags;
use crate::ranks;
use crate::units;

/// Link between ranks, as flags describe it.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
#[command(next_help_heading = "Link")]
pub struct Settings {
    /// Emulate a link, such as 100mbit or 1gbit, or none
    ///
    /// The bandwidth is per rank and direction. The default is 100mbit between ranks that thinwire starts on one
    /// machine, and otherwise none.
    #[arg(long = "link", value_name = "BANDWIDTH")]
    pub limit: Option<Limit>,
    /// Encrypt: auto, always or never
    ///
    /// With auto, the traffic that leaves the machine is encrypted; with always, all traffic; with never,
    /// no traffic.
    #[arg(long, value_name = "WHAT", default_value = "auto", hide_possible_values = true, value_parser = one_of(ENCRYPTION))]
    pub encryption: Encryption,
    /// TCP connections to each peer [default: by the round trip]
    ///
    /// The default is 1, and up to 16 for peers on other hosts whose round trip takes more than 6.7 ms. A planned
    /// training has at least 2; the second carries gradients and new parameters, which then do not delay activations.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), hide_short_help = true)]
    pub connections: Option<u16>,
    /// The least number of connections, unless a number is given.
    #[arg(skip = 1_u16)]
    connections_min: u16,
    /// Port of all ranks of a host [default: THINWIRE_PORT]
    ///
    /// All ranks of the host are reached at this one TCP port, which suits firewalls and containers. If neither this
    /// flag nor THINWIRE_PORT is set, each rank takes a free port.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Longest wait for data of other ranks
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = units::time(1..=86_400))]
    pub timeout: Duration,
    /// Silence after which a rank counts as lost [default: 10s]
    ///
    /// At most the timeout. The default is THINWIRE_HEARTBEAT_TIMEOUT_S, or else 10s (2s in an elastic job). In an
    /// elastic job, the value of the coordinator or launcher replaces that of the ranks.
    #[arg(long, value_name = "TIME", value_parser = units::time(1..=86_400), hide_short_help = true)]
    pub heartbeat_timeout: Option<Duration>,
}

/// An emulated bandwidth, or `None` for no emulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit(pub Option<Bandwidth>);

impl FromStr for Limit {
    type Err = InvalidBandwidth;

    fn from_str(text: &str) -> Result<Limit, InvalidBandwidth> {
        Bandwidth::parse_limit(text).map(Limit)
    }
}

const ENCRYPTION: &[(&str, Encryption)] =
    &[("auto", Encryption::Auto), ("always", Encryption::Always), ("never", Encryption::Never)];

impl Settings {
    /// Returns the emulated bandwidth, with no emulation by default.
    pub fn limit(&self) -> Option<Bandwidth> {
        self.limit.and_then(|limit| limit.0)
    }

    /// Returns the name of the network that a benchmark has set up, or else the emulated bandwidth.
    pub fn network(&self) -> String {
        let emulated = || self.limit().map_or("none".to_owned(), |limit| limit.to_string());
        std::env::var("NETWORK").unwrap_or_else(|_| emulated())
    }

    /// Returns settings with a second connection for bulk transfers, for which no rank waits, unless the
    /// number of connections was given.
    pub fn with_bulk(&self) -> Settings {
        Settings { connections_min: 2, ..self.clone() }
    }

    /// Connects this rank to the rendezvous store.
    ///
    /// # Errors
    /// If the store's address is taken or does not answer, or the token is wrong or missing.
    pub fn meet(&self, place: &Place, flags: &Flags, limit: Option<Bandwidth>) -> Result<Meeting> {
        let token = flags.token(place)?;
        thinwire_job::warning(place, &token).into_iter().for_each(say);
        let settings = ranks::prepared(flags, || self.of_job(limit))?;
        Ok(Meeting::new(place, &token, &settings)?)
    }

    /// Returns the options of the links between ranks.
    ///
    /// # Errors
    /// If the heartbeat timeout is longer than the timeout.
    pub fn of_job(&self, limit: Option<Bandwidth>) -> Result<thinwire_job::Settings> {
        let least = Connections::AtLeast(self.connections_min);
        let (timeout, variables) = (self.timeout, &thinwire_job::process);
        let silence = self.heartbeat_timeout;
        Ok(thinwire_job::Settings {
            encryption: self.encryption,
            shared_memory: thinwire_job::shared_memory(variables)?,
            port: thinwire_job::port(self.port, variables)?,
            connections: least.or_exactly(self.connections),
            timeout,
            heartbeat_timeout: thinwire_job::heartbeat_timeout(silence, timeout, variables)?,
            limit,
        })
    }

    /// Returns a description of the link, which says if its bandwidth is emulated.
    pub fn describe(&self, limit: Option<Bandwidth>, place: &Place) -> String {
        match limit {
            _ if place.world == 1 => "none, one rank".to_owned(),
            Some(limit) => {
                let rate = rate_in_words(limit);
                format!("{rate} per rank and direction, emulated by a token bucket")
            }
            None if is_loopback(&place.coordinator) => "within this host, no limit".to_owned(),
            None => "TCP, no limit".to_owned(),
        }
    }
}

/// Returns a bandwidth as text, such as "100 Mbit/s".
pub fn rate_in_words(bandwidth: Bandwidth) -> String {
    let bits = 8.0 * bandwidth.bytes_per_s();
    let (unit, name) = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")]
        .into_iter()
        .find(|(unit, _)| bits >= *unit)
        .unwrap_or((1.0, "bit/s"));
    format!("{} {name}", bits / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_link_is_called_one() {
        let limit: Limit = "100mbit".parse().unwrap();
        assert_eq!(rate_in_words(limit.0.unwrap()), "100 Mbit/s");
        assert_eq!("none".parse(), Ok(Limit(None)));
    }
}
