//! The job whose ranks measure together, and the flags of the links between them.

use std::time::Duration;

use anyhow::{Context, Result};
use thinwire_job::{Meeting, Overrides, Place, Settings, process};
use thinwire_link::Bandwidth;
use thinwire_link::tcp::{Connections, Encryption};

/// Flags of the links between ranks.
#[derive(clap::Args, Clone, Debug)]
pub struct Flags {
    /// Emulate a link of this bandwidth per rank and direction, such as 100mbit or 1gbit
    #[arg(long = "link", value_name = "BANDWIDTH")]
    limit: Option<Bandwidth>,
    /// TCP connections to each peer [default: 1, and more where the round trip is long]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: Option<u16>,
    /// Give up when nothing has moved for this many seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

impl Flags {
    /// Returns the timeout.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Returns the name of the network that `bench/network.sh` has set up, or else the emulated bandwidth.
    pub fn network(&self) -> String {
        let emulated = || self.limit.map_or("none".to_owned(), |limit| limit.to_string());
        std::env::var("NETWORK").unwrap_or_else(|_| emulated())
    }

    /// Waits for the other ranks of the job that a launcher's variables describe.
    ///
    /// # Errors
    /// If no launcher started this process, or the ranks do not find each other.
    pub fn meet(&self) -> Result<(Place, Meeting)> {
        let overrides = Overrides::default();
        let place = thinwire_job::find(&overrides, &process)?.context(
            "not a rank of a job, start it by `thinwire run --ranks N -- thinwire-bench …`",
        )?;
        let token = thinwire_job::token(&overrides, &place.coordinator, &process)?;
        let timeout = self.timeout();
        let settings = Settings {
            encryption: Encryption::Auto,
            shared_memory: thinwire_job::shared_memory(&process)?,
            port: thinwire_job::port(None, &process)?,
            connections: Connections::default().or_exactly(self.connections),
            timeout,
            heartbeat_timeout: thinwire_job::heartbeat_timeout(None, timeout, &process)?,
            limit: self.limit,
        };
        let meeting = Meeting::new(&place, &token, &settings)?;
        Ok((place, meeting))
    }
}
