//! Metrics of a process, as text for Prometheus at `/metrics` of an address.
//!
//! The figures of servers, coordinators and ranks each have a file that converts them to a [`Page`]. One
//! thread per process answers requests one after another.

mod coordinator;
mod page;
mod rank;
mod responder;
mod server;

pub use coordinator::CoordinatorMetrics;
pub use page::Page;
pub use rank::{Exchanged, RankMetrics, Taken};
pub use server::server_page;

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Result, anyhow};

use crate::failure::{self, hinted};
use crate::output::say;

/// Largest number of ports that a process tries for its metrics.
const PORTS_MAX: u16 = 16;

/// Variable with the address of the metrics of programs other than the command.
pub const VARIABLE: &str = "THINWIRE_METRICS";

/// Flag of a process that exports metrics.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct Flags {
    /// Export metrics for Prometheus at this address
    ///
    /// At http://ADDRESS:PORT/metrics. Several ranks or servers on one machine take consecutive ports. Anyone who
    /// reaches the address can read the metrics.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address, help_heading = "Output")]
    metrics: Option<SocketAddr>,
}

/// Returns the first address of a host name or an address with a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().map_err(|error| error.to_string())?.next();
    found.ok_or_else(|| "the name has no address".to_owned())
}

/// Returns the address in the text of [`VARIABLE`].
///
/// # Errors
/// If the text is not an address.
pub fn of_variable(text: &str) -> Result<SocketAddr> {
    let hint = "for example 127.0.0.1:9400: ranks of one host take the ports from there on";
    address(text).map_err(|error| {
        hinted(anyhow!("{VARIABLE} is '{text}', which is not an address: {error}"), hint)
    })
}

/// Exports a page at the address in the text of [`VARIABLE`], as [`Flags::export`] does. Returns a line
/// with the actual address if it differs.
///
/// # Errors
/// If the variable has no address or the port is taken, as one line.
pub fn export_by_variable(
    text: &str,
    offset: u16,
    page: impl Fn() -> Page + Send + 'static,
) -> Result<Option<String>, String> {
    let exported =
        of_variable(text).and_then(|address| Ok((address, export_after(address, offset, page)?)));
    let (address, found) = exported.map_err(|error| {
        let (message, hint) = failure::lines(&error);
        message + &hint.map_or(String::new(), |hint| format!(" (hint: {hint})"))
    })?;
    Ok((found != address).then(|| at(found)))
}

/// Exports a page at an address, with `offset` added to its port unless the port is 0. Returns the actual
/// address.
fn export_after(
    mut address: SocketAddr,
    offset: u16,
    page: impl Fn() -> Page + Send + 'static,
) -> Result<SocketAddr> {
    if address.port() > 0 {
        let port = address.port().checked_add(offset);
        let port =
            port.ok_or_else(|| anyhow!("metrics at {address}: the port of this process, {offset} higher, would be above 65535"))?;
        address.set_port(port);
    }
    responder::start(address, move || page().to_string())
}

/// Returns the line with the address of the metrics.
fn at(address: SocketAddr) -> String {
    format!("metrics: http://{address}/metrics")
}

impl Flags {
    /// Exports a page if the flag is given, at its port plus `offset`. Port 0 chooses a free port.
    ///
    /// # Errors
    /// If the port is taken, or the sum is larger than 65535.
    pub fn export(&self, offset: u16, page: impl Fn() -> Page + Send + 'static) -> Result<()> {
        let Some(address) = self.metrics else { return Ok(()) };
        let found = export_after(address, offset, page)?;
        if address != found {
            say(at(found));
        }
        Ok(())
    }

    /// Exports a page as [`Flags::export`] does, at the first port from the given one on that no other
    /// process uses.
    ///
    /// # Errors
    /// If [`PORTS_MAX`] ports are taken.
    pub fn export_at_next(&self, page: impl Fn() -> Page + Clone + Send + 'static) -> Result<()> {
        let is_taken = |error: &anyhow::Error| {
            let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
            io.is_some_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
        };
        let last = PORTS_MAX - 1;
        for offset in 0..last {
            match self.export(offset, page.clone()) {
                Err(error) if is_taken(&error) => {}
                exported => return exported,
            }
        }
        self.export(last, page)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use thinwire_server::Stats;
    use thinwire_train::session::Adapted;

    use super::*;

    #[test]
    fn addresses_and_names_are_taken() {
        for text in ["127.0.0.1:9", "[::1]:9", "localhost:9"] {
            assert!(
                address(text).is_ok_and(|it| it.ip().is_loopback() && it.port() == 9),
                "{text}"
            );
        }
        for text in ["localhost", "::1", "[::1]", "localhost:port"] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    /// Returns the names of metrics in a text: words that begin with `thinwire_`.
    fn named(text: &str) -> BTreeSet<&str> {
        let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
        words.filter(|word| word.starts_with("thinwire_")).collect()
    }

    #[test]
    fn a_dashboard_shows_metrics_that_there_are() {
        let step = Taken {
            loss: Some(2.5),
            adapted: Some(Adapted { batch: 8, noise_scale: Some(9.0) }),
            ..Taken::default()
        };
        let rank = RankMetrics::default();
        rank.step(step);
        let staleness = [("aa".to_owned(), vec![1])].into();
        let server = server::page(&Stats { staleness, ..Stats::default() }, 1);
        let pages = [rank.page(), CoordinatorMetrics::default().page(), server];
        let pages = pages.map(|page| page.to_string()).concat();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/grafana/thinwire.json");
        let dashboard = std::fs::read_to_string(path).unwrap();
        let (shown, exported) = (named(&dashboard), named(&pages));
        let missing: Vec<_> = shown.difference(&exported).collect();
        assert!(missing.is_empty() && shown.len() > 15, "{missing:?} of {shown:?}");
    }

    #[test]
    fn a_variable_is_an_address_or_an_error_in_one_line() {
        let export = |text: &str, offset| export_by_variable(text, offset, Page::default);
        let line = export("127.0.0.1:0", 3).unwrap().unwrap();
        let port = line.strip_prefix("metrics: http://127.0.0.1:").unwrap();
        let port: u16 = port.strip_suffix("/metrics").unwrap().parse().unwrap();
        for (text, offset, expected) in [
            ("nowhere", 0, "THINWIRE_METRICS is 'nowhere', which is not an address: "),
            (&format!("127.0.0.1:{}", port - 1), 1, "cannot show metrics at 127.0.0.1:"),
            (
                "127.0.0.1:65535",
                1,
                "metrics at 127.0.0.1:65535: the port of this process, 1 higher,",
            ),
        ] {
            let error = export(text, offset).unwrap_err();
            assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
        }
    }
}
