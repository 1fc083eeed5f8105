//! Findings about the machine: cores, memory, open files and network.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::thread;

use anyhow::{Context, Result, anyhow};
use thinwire_codec::speed;
use thinwire_link::descriptors;
use thinwire_link::store::mem::Mem;
use thinwire_report::figures::{binary, bytes_per_s, seconds};

use super::finding::Finding;
use crate::command::bench::plain::Plain;
use crate::memory;

/// Free memory below which even a small training may fail.
const MEMORY_LITTLE: u64 = 512 << 20;
/// Number of open files of a job of two ranks with two servers.
const FILES: u64 = 64;
/// Bytes of the message whose round trip is measured.
const PING_BYTES: usize = 64;

/// Returns the findings.
pub fn findings() -> Vec<Finding> {
    let files = Finding::of(
        "open files",
        descriptors::reserve("a job on this machine", FILES),
        |()| "enough".to_owned(),
        "raise the limit: ulimit -n 1024",
    );
    let hint = "a job's ranks meet by TCP on 127.0.0.1: look at the machine's network settings";
    let local = Finding::of("loopback", loopback(), |found| found, hint);
    [cores(), memory(), files, local].into_iter().chain(interfaces()).collect()
}

fn cores() -> Finding {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let found = format!("{cores}, with {} kernels", speed::kernels());
    match cores {
        1 => Finding::note(
            "cores",
            found,
            "two ranks on one core share it: a step takes twice as long",
        ),
        _ => Finding::ok("cores", found),
    }
}

fn memory() -> Finding {
    match memory::free() {
        None => Finding::note(
            "memory",
            "the system does not say how much is free",
            "look at the system's own tools",
        ),
        Some(free) if free < MEMORY_LITTLE => {
            Finding::note("memory", format!("{} free", binary(free as f64)), "end other programs")
        }
        Some(free) => Finding::ok("memory", format!("{} free", binary(free as f64))),
    }
}

/// Measures a plain TCP stream within this machine.
fn loopback() -> Result<String> {
    let (store, host) = (Mem::default(), IpAddr::from(Ipv4Addr::LOCALHOST));
    TcpListener::bind((host, 0)).context("cannot listen on 127.0.0.1")?;
    let measure = |rank| -> Result<_> {
        let plain = Plain::connect(rank, host, &store)?;
        let mut plain = plain.context("two ranks are connected")?;
        Ok((plain.rates()?.one_way, plain.half_round_trip_s(PING_BYTES)?))
    };
    let (rate, half) = thread::scope(|scope| {
        let other = scope.spawn(|| measure(1));
        let found = measure(0);
        other.join().map_err(|_| anyhow!("the other end of the stream has failed"))??;
        found
    })?;
    let (rate, round_trip) = (bytes_per_s(rate), seconds(2.0 * half));
    Ok(format!("{rate} in one TCP stream, round trip {round_trip}"))
}

/// Returns the interfaces to other machines, with the speeds that their drivers report.
fn interfaces() -> Vec<Finding> {
    let read = |name: &str, file: &str| {
        let text = fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?;
        Some(text.trim().to_owned())
    };
    let all = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name != "lo").collect();
    names.sort();
    let is_up = |name: &String| read(name, "operstate").is_some_and(|state| state == "up");
    let up = names.into_iter().filter(is_up);
    let found = up.map(|name| {
        let mbit = read(&name, "speed").and_then(|speed| speed.parse::<u32>().ok());
        let speed = mbit.map_or("of unknown speed".to_owned(), |mbit| format!("{mbit} Mbit/s"));
        Finding::ok("network", format!("{name} is up, {speed}"))
    });
    let found: Vec<Finding> = found.collect();
    match found.is_empty() {
        true => vec![Finding::note(
            "network",
            "no interface to other machines is up",
            "ranks can meet on this machine only",
        )],
        false => found,
    }
}
