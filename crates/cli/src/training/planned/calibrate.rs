//! A cluster file from what ranks measure: their kernels while all of them compute, and their links.

use std::time::Instant;

use anyhow::{Result, bail};
use thinwire_collective::{Error as Failure, Group, all_gather, barrier};
use thinwire_train::spmd::Speed;

/// A probe of the links takes at least this long.
const PROBE_S: f64 = 0.15;
/// No probe sends more elements to each peer.
const ELEMENTS_MAX: usize = 1 << 24;
/// How often a round is timed.
const ROUNDS: usize = 15;
const GIB: f64 = (1_u64 << 30) as f64;

/// The text of a cluster file for the group's ranks; all of them measure at once.
///
/// # Errors
/// If a peer is lost.
pub fn cluster(group: &mut Group) -> Result<String> {
    let ranks = group.world().size();
    let mine = Speed::measure(|| barrier(group))?;
    let speed = agreed(group, &mine)?;
    let (latency_s, bytes_per_s) = match ranks {
        1 => (0.0, 1e9),
        _ => link(group)?,
    };
    Ok(text(ranks, &speed, latency_s, bytes_per_s))
}

/// What the slowest rank says.
fn agreed(group: &mut Group, mine: &Speed) -> Result<Speed, Failure> {
    let rates = mine.products.iter().map(|(_, rate)| (1e-6 * rate) as f32);
    let mut all: Vec<f32> = rates.collect();
    all.push((1e-6 * mine.memory_bytes_per_s) as f32);
    all.push((1e-6 / mine.overhead_s) as f32);
    let figures = all.len();
    let everyone = all_gather(group, &all)?;
    let least = |at: usize| {
        let figures = everyone.iter().skip(at).step_by(figures);
        1e6 * f64::from(figures.copied().fold(f32::MAX, f32::min))
    };
    let products = mine.products.iter().enumerate().map(|(at, (flops, _))| (*flops, least(at)));
    Ok(Speed {
        products: products.collect(),
        memory_bytes_per_s: least(figures - 2),
        overhead_s: 1.0 / least(figures - 1),
    })
}

/// Seconds of the shortest exchange, and what a rank sends in a second while all of them do.
fn link(group: &mut Group) -> Result<(f64, f64), Failure> {
    let latency_s = exchange_s(group, 1, ROUNDS)?;
    let peers = (group.world().size() - 1) as f64;
    let mut elements = 1 << 12;
    loop {
        let seconds = exchange_s(group, elements, 3)?;
        if seconds > PROBE_S || elements == ELEMENTS_MAX {
            let bytes = peers * (4 * elements + thinwire_wire::HEADER_BYTES) as f64;
            return Ok((latency_s, bytes / (seconds - latency_s).max(seconds / 10.0)));
        }
        elements *= 2;
    }
}

/// The median seconds in which all ranks have what all others sent, as the slowest sees it.
fn exchange_s(group: &mut Group, elements: usize, rounds: usize) -> Result<f64, Failure> {
    let mine = vec![0.5; elements];
    let mut samples = Vec::new();
    for _ in 0..rounds {
        barrier(group)?;
        let started = Instant::now();
        all_gather(group, &mine)?;
        samples.push(started.elapsed().as_secs_f64());
    }
    let median = crate::samples::median(&mut samples);
    let all = all_gather(group, &[median as f32])?;
    Ok(f64::from(all.into_iter().fold(0.0, f32::max)))
}

fn text(ranks: usize, speed: &Speed, latency_s: f64, bytes_per_s: f64) -> String {
    let best = speed.products.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (flops, rate) in &speed.products {
        points.push((1e-9 * flops, (rate / best).clamp(0.001, 1.0)));
    }
    let points: Vec<String> =
        points.iter().map(|(gflop, part)| format!("[{gflop:.6}, {part:.3}]")).collect();
    let memory_gib = memory_bytes() / GIB / ranks as f64;
    format!(
        "# Measured by `thinwire plan calibrate`, with all ranks at work at the same time.\n\
         [[device]]\nname = \"rank\"\ntflops = {:.6}\nmemory_gib = {memory_gib:.3}\n\
         memory_gbyte_per_s = {:.3}\noverhead_us = {:.2}\nefficiency = [{}]\n\n\
         [[level]]\nname = \"link\"\nsize = {ranks}\nlatency_us = {:.1}\ngbit = {:.5}\n",
        1e-12 * best,
        1e-9 * speed.memory_bytes_per_s,
        1e6 * speed.overhead_s,
        points.join(", "),
        1e6 * latency_s,
        8e-9 * bytes_per_s,
    )
}

/// What this machine has; 1 GiB where it does not say.
fn memory_bytes() -> f64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kilobytes.map_or(GIB, |kilobytes| 1024.0 * kilobytes)
}

/// The same text in all ranks: rank 0's, or what has kept it from one.
///
/// # Errors
/// What has kept rank 0 from a text, or a peer is lost.
pub fn of_rank_0(group: &mut Group, mine: Option<&Result<String>>) -> Result<String> {
    let bytes = match mine {
        None => Vec::new(),
        Some(Ok(text)) => [b"+", text.as_bytes()].concat(),
        Some(Err(error)) => [b"-", crate::failure::lines(error).0.as_bytes()].concat(),
    };
    let all = thinwire_collective::all_gather_bytes(group, &bytes)?;
    let first = all.first().map_or("", |bytes| std::str::from_utf8(bytes).unwrap_or_default());
    match first.strip_prefix('+') {
        Some(text) => Ok(text.to_owned()),
        None => bail!("{}", first.trim_start_matches('-')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_a_cluster() {
        let products = vec![(1e6, 2e9), (1e9, 4e10)];
        let speed = Speed { products, memory_bytes_per_s: 5e9, overhead_s: 3e-6 };
        let cluster = thinwire_plan::Cluster::parse(&text(4, &speed, 1e-4, 1.25e7)).unwrap();
        assert_eq!(cluster.size(), 4);
        assert!((cluster.pace().flops_per_s - 4e10).abs() < 1.0);
        assert!((cluster.pace().efficiency.at(1e6) - 0.05).abs() < 1e-9);
        assert!((cluster.levels[0].bytes_per_s - 1.25e7).abs() < 1.0);
    }
}
