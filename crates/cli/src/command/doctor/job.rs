//! Findings about the job that flags and environment describe: its place, token, ports and defaults.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Error};
use thinwire_job::{Form, Host, Overrides, Place, is_loopback, process, resolved};
use thinwire_link::tcp::{Connections, address_towards};
use thinwire_plan::report::counted;
use thinwire_report::figures::seconds;

use super::finding::Finding;
use crate::metrics;
use crate::place::Flags;
use crate::ranks::threads;

/// Longest wait for the coordinator's machine.
const PATIENCE: Duration = Duration::from_secs(3);
/// Default of the links' timeout.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of ranks that a training starts by default.
const RANKS: u32 = 2;

/// Returns the findings.
pub fn findings(flags: &Flags) -> Vec<Finding> {
    let place = match flags.find() {
        Ok(place) => place,
        Err(error) => {
            let place = Finding::error("place", error, "see the flags of thinwire train --help");
            return [place].into_iter().chain(variables(flags)).collect();
        }
    };
    let (here, coordinator) = match &place {
        Some(place) => (
            format!("rank {} of {}, by {}", place.rank, place.world, place.source),
            place.coordinator.clone(),
        ),
        None => {
            ("none: commands start their ranks on this machine".to_owned(), "127.0.0.1".to_owned())
        }
    };
    let mut found = vec![Finding::ok("place", here), token(flags, &coordinator), port()];
    found.extend(variables(flags));
    let place = place.filter(|place| place.world > 1);
    let round_trip = place.as_ref().and_then(|place| {
        let (finding, round_trip) = meeting(place);
        found.extend([finding, link(place)]);
        round_trip
    });
    found.push(chosen(place.as_ref(), round_trip));
    found
}

fn token(flags: &Flags, coordinator: &str) -> Finding {
    let given = Overrides { token: flags.token.clone(), form: Form::Flags, ..Overrides::default() };
    let told = |token: String| match token.is_empty() {
        true => "none, and ranks on this machine need none".to_owned(),
        false => format!("one of {} bytes", token.len()),
    };
    Finding::of(
        "token",
        thinwire_job::token(&given, coordinator, &process),
        told,
        "set THINWIRE_TOKEN",
    )
}

/// Returns a finding on whether ranks can listen.
fn port() -> Finding {
    let port = match thinwire_job::port(None, &process) {
        Ok(port) => port,
        Err(error) => return Finding::error("port", error, "set THINWIRE_PORT to a number"),
    };
    let told =
        port.map_or("a free one for each rank".to_owned(), |port| format!("{port} for all ranks"));
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.unwrap_or(0))) {
        Ok(_) => Finding::ok("port", told),
        // Ranks of another job may share it.
        Err(error) if error.kind() == ErrorKind::AddrInUse => Finding::note(
            "port",
            format!("{told}, is in use"),
            "this is fine if ranks of Thinwire use this port, because they share it",
        ),
        Err(error) => {
            let error = Error::new(error).context(format!("cannot listen at {told}"));
            Finding::error("port", error, "choose another port: THINWIRE_PORT=29418")
        }
    }
}

/// Returns findings about variables that jobs refuse.
fn variables(flags: &Flags) -> Vec<Finding> {
    let heartbeat = thinwire_job::heartbeat_timeout(None, TIMEOUT, &process).map(drop);
    let sharing = thinwire_job::shared_memory(&process).map(drop);
    let metrics = process(metrics::VARIABLE).map(|text| metrics::of_variable(&text));
    let all = [
        ("member", flags.member().map(drop)),
        ("heartbeat", heartbeat.map_err(Error::from)),
        ("sharing", sharing.map_err(Error::from)),
        ("checkpoints", thinwire_checkpoint::check_variables().map_err(Error::from)),
        ("metrics", metrics.transpose().map(drop)),
    ];
    let refused = all.into_iter().filter_map(|(check, it)| Some((check, it.err()?)));
    refused.map(|(check, error)| Finding::error(check, error, "unset the variable")).collect()
}

/// Returns a finding on whether the ranks can connect, and the round trip to their rendezvous store if
/// it answers.
fn meeting(place: &Place) -> (Finding, Option<Duration>) {
    let address = &place.coordinator;
    let hint = "give --coordinator HOST:PORT, an address of the machine of rank 0";
    let found = match resolved(address) {
        Ok(found) => found,
        Err(error) => return (Finding::error("coordinator", error, hint), None),
    };
    if place.rank == 0 && place.host == Host::RankZero {
        let told = |_| format!("this rank, at {address}");
        let bound = TcpListener::bind(found).with_context(|| format!("cannot listen at {address}"));
        return (Finding::of("coordinator", bound, told, hint), None);
    }
    let begun = Instant::now();
    match TcpStream::connect_timeout(&found, PATIENCE) {
        Ok(_) => {
            let taken = begun.elapsed();
            let round_trip = seconds(taken.as_secs_f64());
            (
                Finding::ok("coordinator", format!("{address} answers, round trip {round_trip}")),
                Some(taken),
            )
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let taken = begun.elapsed();
            let told =
                format!("{address} has no job yet, round trip {}", seconds(taken.as_secs_f64()));
            (
                Finding::note("coordinator", told, "ranks wait for it: start rank 0 there"),
                Some(taken),
            )
        }
        Err(error) => {
            let error = Error::new(error).context(format!("cannot reach {address}"));
            (
                Finding::error("coordinator", error, "open this port in the firewalls in between"),
                None,
            )
        }
    }
}

/// Returns a finding about the bandwidth between two hosts, which takes a process on each of them.
fn link(place: &Place) -> Finding {
    let rank = place.rank.min(1);
    let command = format!(
        "measure it between two machines: thinwire bench link --rank {rank} --world 2 --coordinator {}, and \
         the same with --rank {} on the other one",
        place.coordinator,
        1 - rank
    );
    Finding::note("link", "its bandwidth is measured when a job starts", command)
}

/// Returns a finding about the defaults that a training would choose.
fn chosen(place: Option<&Place>, round_trip: Option<Duration>) -> Finding {
    let Some(place) = place else {
        let mut here = Place::alone(Form::Flags);
        here.local_world = RANKS;
        let threads = counted(threads(&here), "thread");
        let found = format!(
            "{RANKS} ranks of {threads}, a link that emulates 100 Mbit/s, no encryption, codec auto"
        );
        return Finding::ok("choice", found);
    };
    let is_local = is_loopback(&place.coordinator);
    let encryption = if is_local { "no encryption" } else { "encryption between hosts" };
    let connections = round_trip.map_or("connections by the round trip".to_owned(), |taken| {
        let count = Connections::default().for_round_trip(taken);
        format!("{} to each peer", counted(count.into(), "connection"))
    });
    let from = resolved(&place.coordinator).ok().and_then(|it| address_towards(it).ok());
    let from = from.map_or(String::new(), |address| format!("from {address}, "));
    let threads = counted(threads(place), "thread");
    Finding::ok("choice", format!("{threads}, {from}{connections}, {encryption}, codec auto"))
}
