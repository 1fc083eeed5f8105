//! Cluster file made from measurements of ranks: their kernels while all ranks compute, and their links.

use anyhow::{Context, Error, Result};
use thinwire_collective::Group;
use thinwire_plan::cluster::Efficiency;
use thinwire_plan::report::counted;
use thinwire_train::spmd::{Probe, Speed, Timed};
use thinwire_wire::Rank;

use super::footprint::Footprint;
use super::links::Links;
use crate::memory;
use crate::output::say;

const MIB: f64 = (1_u64 << 20) as f64;
/// Ratio below which two rates count as equal.
const ALIKE: f64 = 1.3;
const GIB: f64 = (1_u64 << 30) as f64;

/// Returns the text of a cluster file for the group's ranks, and the group. All ranks measure at the same
/// time.
///
/// # Errors
/// If a peer is lost.
pub fn cluster(group: Group) -> Result<(String, Group)> {
    let ranks = group.world().size();
    let speaks = group.world().rank() == Rank(0);
    let tell = |what: &str| {
        if speaks {
            say(format!("calibrating {}: {what}", counted(ranks, "rank")))
        }
    };
    tell("memory and kernels, all ranks at once, half a minute or so");
    let footprint = Footprint::measure()?;
    let mut probe = Probe::new(group);
    let mine = Speed::measure(|| probe.gather(&[0.0]).map(drop))?;
    let speed = agreed(&mut probe, &mine)?;
    let links = match ranks {
        1 => {
            Links { latency_s: 0.0, bytes_per_s: 1e9, byte_s: 0.0, message_s: 0.0, exchange_s: 0.0 }
        }
        _ => {
            tell("links; half a minute at most, unless they are slow");
            Links::measure(&mut probe, ranks)?
        }
    };
    Ok((text(ranks, footprint, &speed, &links), probe.into_group()?))
}

/// Returns the mean over ranks with similar figures, otherwise the figures of the slowest rank.
fn agreed(probe: &mut Probe, mine: &Speed) -> Result<Speed> {
    let rates = mine.products.iter().map(|(_, rate)| (1e-6 * rate) as f32);
    let mut all: Vec<f32> = rates.collect();
    all.push((1e-6 * mine.memory_bytes_per_s) as f32);
    all.push((1e-6 / mine.overhead_s) as f32);
    all.extend(mine.operators.iter().map(|operator| (1e-6 / operator.seconds) as f32));
    let (figures, products) = (all.len(), mine.products.len());
    let everyone = probe.gather(&all)?;
    let least = |at: usize| {
        let rates = everyone.iter().skip(at).step_by(figures).map(|rate| 1e6 * f64::from(*rate));
        common(&rates.collect::<Vec<_>>())
    };
    let rates = mine.products.iter().enumerate().map(|(at, (flops, _))| (*flops, least(at)));
    let operators = mine.operators.iter().enumerate();
    let operators = operators.map(|(at, operator)| Timed {
        seconds: 1.0 / least(products + 2 + at),
        ..operator.clone()
    });
    Ok(Speed {
        products: rates.collect(),
        memory_bytes_per_s: least(products),
        overhead_s: 1.0 / least(products + 1),
        operators: operators.collect(),
    })
}

fn text(ranks: usize, footprint: Footprint, speed: &Speed, links: &Links) -> String {
    let best = speed.products.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (flops, rate) in &speed.products {
        points.push((1e-9 * flops, (rate / best).clamp(0.001, 1.0)));
    }
    let points: Vec<String> =
        points.iter().map(|(gflop, part)| format!("[{gflop:.6}, {part:.3}]")).collect();
    let operators = operators(speed, best);
    let (fixed_mib, slack) = (footprint.fixed_bytes / MIB, footprint.slack);
    // 1 GiB where the system does not tell.
    let memory_bytes =
        memory::in_file("/proc/meminfo", "MemTotal:").map_or(GIB, |bytes| bytes as f64);
    let memory_gib = memory_bytes / GIB / ranks as f64;
    format!(
        "# Measured by `thinwire plan calibrate`, with all ranks at work at the same time.\n\
         [[device]]\nname = \"rank\"\ntflops = {:.6}\nmemory_gib = {memory_gib:.3}\nfixed_mib = {fixed_mib:.1}\n\
         memory_slack = {slack:.3}\nmemory_gbyte_per_s = {:.3}\noverhead_us = {:.2}\nefficiency = [{}]\n{}operators = {{ {operators} }}\n\n\
         [[level]]\nname = \"link\"\nsize = {ranks}\nlatency_us = {:.1}\ngbit = {:.5}\n",
        1e-12 * best,
        1e-9 * speed.memory_bytes_per_s,
        1e6 * speed.overhead_s,
        points.join(", "),
        handling(links),
        1e6 * links.latency_s,
        8e-9 * links.bytes_per_s,
    )
}

/// Returns the mean of rates that differ by no more than a measurement error, otherwise the lowest rate.
fn common(rates: &[f64]) -> f64 {
    let least = rates.iter().copied().fold(f64::MAX, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    match most <= ALIKE * least {
        true => rates.iter().sum::<f64>() / rates.len() as f64,
        false => least,
    }
}

/// Returns the factors by which operators that were timed separately are faster than others of their kind.
fn operators(speed: &Speed, best: f64) -> String {
    let points = speed.products.iter().map(|(flops, rate)| (*flops, rate / best)).collect();
    let efficiency = Efficiency::through(points);
    let pace = |operator: &Timed| {
        let memory_s = operator.bytes / speed.memory_bytes_per_s;
        let product_s = operator.flops / (best * efficiency.at(operator.flops));
        let usual_s = if operator.multiplies { memory_s.max(product_s) } else { memory_s };
        format!("{} = {:.3}", operator.name, (usual_s / operator.seconds).max(0.001))
    };
    speed.operators.iter().map(pace).collect::<Vec<_>>().join(", ")
}

/// Returns the lines about the time that a rank itself spends on moving bytes.
fn handling(links: &Links) -> String {
    let rate = (links.byte_s > 0.0).then(|| 1e-9 / links.byte_s);
    let rate = rate.map_or(String::new(), |rate| format!("handling_gbyte_per_s = {rate:.4}\n"));
    let [message_us, exchange_us] = [links.message_s, links.exchange_s].map(|s| 1e6 * s);
    format!("{rate}handling_us = {message_us:.2}\nexchange_us = {exchange_us:.1}\n")
}

/// Returns rank 0's text on all ranks, or rank 0's error.
///
/// # Errors
/// If rank 0 has no text, or a peer is lost.
pub fn of_rank_0(group: &mut Group, mine: Option<&Result<String>>) -> Result<String> {
    let told = mine.map(|mine| mine.as_ref().map_err(|error| crate::failure::lines(error).0));
    let all = thinwire_collective::all_gather_bytes(group, &serde_json::to_vec(&told)?)?;
    let first: Option<Result<String, String>> = serde_json::from_slice(&all[0])?;
    first.context("rank 0 has no text")?.map_err(Error::msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_a_cluster() {
        let products = vec![(1e6, 2e9), (1e9, 4e10)];
        let timed =
            |name, seconds| Timed { name, multiplies: false, flops: 0.0, bytes: 5e6, seconds };
        let operators = vec![timed("sum", 5e-4), timed("update", 2e-3)];
        let speed = Speed { products, memory_bytes_per_s: 5e9, overhead_s: 3e-6, operators };
        let footprint = Footprint { fixed_bytes: f64::from(7 << 20), slack: 0.125 };
        let links = Links {
            latency_s: 1e-4,
            bytes_per_s: 1.25e7,
            byte_s: 1e-9,
            message_s: 2e-5,
            exchange_s: 3e-5,
        };
        let cluster = thinwire_plan::Cluster::parse(&text(4, footprint, &speed, &links)).unwrap();
        let handling = cluster.pace().handling;
        assert!((handling.seconds(10.0, 1e6) - 1.2e-3).abs() < 1e-9);
        assert_eq!(cluster.size(), 4);
        assert!((cluster.pace().flops_per_s - 4e10).abs() < 1.0);
        assert!((cluster.pace().efficiency.at(1e6) - 0.05).abs() < 1e-9);
        assert_eq!(cluster.pace().fixed_bytes, f64::from(7 << 20));
        assert_eq!(cluster.pace().slack, 0.125);
        assert_eq!(cluster.pace().pace("sum"), Some(2.0));
        assert_eq!(cluster.pace().pace("update"), Some(0.5));
        assert!((cluster.levels[0].bytes_per_s - 1.25e7).abs() < 1.0);
    }
}
