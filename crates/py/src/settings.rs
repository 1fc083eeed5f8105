//! Settings of the ranks' meeting, as Python gives them.

use std::time::Duration;

use thinwire_job::{Settings, heartbeat_timeout, process};
use thinwire_link::Bandwidth;
use thinwire_link::tcp::Encryption;

use crate::error::Failure;

/// Settings as a meeting takes them.
pub(crate) fn settings(
    encryption: &str,
    connections: u16,
    link: Option<&str>,
    timeout_s: f64,
    heartbeat_timeout_s: Option<f64>,
) -> Result<Settings, Failure> {
    let encryption = match encryption {
        "auto" => Encryption::Auto,
        "always" => Encryption::Always,
        "never" => Encryption::Never,
        other => {
            return Err(Failure::invalid(format!(
                "encryption is '{other}', expected auto, always or never"
            )));
        }
    };
    if !(1..=64).contains(&connections) {
        return Err(Failure::invalid(format!("connections is {connections}, expected 1..=64")));
    }
    if !(0.1..=86_400.0).contains(&timeout_s) {
        return Err(Failure::invalid(format!("timeout_s is {timeout_s}, expected 0.1..=86400")));
    }
    let limit = link.map(Bandwidth::parse_limit).transpose();
    let limit = limit.map_err(|error| Failure::invalid(error.to_string()))?.flatten();
    let timeout = Duration::from_secs_f64(timeout_s);
    let given = heartbeat_timeout_s.map(Duration::try_from_secs_f64).transpose();
    let given = given.map_err(|_| {
        let found = heartbeat_timeout_s.unwrap_or_default();
        Failure::invalid(format!("heartbeat_timeout_s is {found}, expected 1 to {timeout_s}"))
    })?;
    let heartbeat_timeout = heartbeat_timeout(given, timeout, &process)?;
    Ok(Settings { encryption, connections, timeout, heartbeat_timeout, limit })
}
