//! Chooses the way in which ranks get the rows of other parts, by the bytes sent per pass.
//!
//! In the first way, every rank keeps copies of the rows of its closure, which are sent once. In the
//! second, it requests remote rows through a cache. The bytes of both ways are computed before the
//! training, from the closures and all samples.

use std::sync::Arc;
use std::thread;

use anyhow::{Result, anyhow};
use serde::Serialize;
use thinwire_graph::partition::{Parts, Report};
use thinwire_graph::{Batches, FanOut, Frontier, Sampling, Split, Store};
use thinwire_loader::{Demand, REQUEST_BYTES};
use thinwire_report::figures::{bytes, parse_bytes};
use thinwire_rows::SLOT_BYTES;

use super::task::per_rank;
use crate::failure::hinted;
use crate::output::{Format, print_lines};

/// Default number of seeds in a rank's batch.
const BATCH: u32 = 1024;
/// Number of batches that a cache with foresight knows in advance, equal to the default of the Python loader.
const AHEAD: u32 = 32;

/// What is predicted.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Fan-outs of the hops, to predict bytes
    ///
    /// The seeds' fan-out comes first; -1 takes all neighbours. The command predicts the bytes of
    /// features that ranks send in two cases: each rank has a copy of its whole closure, or it requests
    /// remote rows. It chooses one of the two.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        allow_hyphen_values = true,
        conflicts_with = "hops",
        value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX))
    )]
    pub fan_outs: Vec<i64>,
    /// Seeds of a step, all ranks together [default: 1024 per rank]
    #[arg(long, value_name = "N", requires = "fan_outs", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Passes over which the bytes of copies are spread
    #[arg(long, value_name = "N", default_value_t = 5, requires = "fan_outs", value_parser = clap::value_parser!(u64).range(1..10_000))]
    passes: u64,
    /// Bytes of a rank's cache of remote rows [default: none]
    #[arg(long, value_name = "BYTES", requires = "fan_outs", value_parser = parse_bytes)]
    cache: Option<u64>,
    /// Limit on the features in a rank's memory [default: none]
    #[arg(long, value_name = "BYTES", requires = "fan_outs", value_parser = parse_bytes)]
    memory: Option<u64>,
}

/// Cost of one way to supply rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Cost {
    /// Bytes that all ranks receive per pass.
    pass_bytes: f64,
    /// Largest memory for features on any rank.
    memory_bytes: u64,
}

#[derive(Serialize)]
struct Line {
    supply: &'static str,
    #[serde(flatten)]
    cost: Cost,
    chosen: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Names of both ways, in the order of their costs.
const NAMES: [&str; 2] = ["copies", "remote rows"];

/// Computes the bytes of both ways for parts with a report, chooses one and prints the reason.
///
/// # Errors
/// If the graph has no features, batches cannot be sampled, or standard output is closed.
pub fn run(
    args: &Args,
    store: &Store,
    parts: &Parts,
    report: &Report,
    seed: u64,
    format: Format,
) -> Result<()> {
    let rows = store.features();
    let rows = rows.ok_or_else(|| {
        hinted(
            anyhow!("the graph has no features, so --fan-outs cannot predict their bytes"),
            "thinwire graph import --features FILE.npy",
        )
    })?;
    let width = u64::from(rows.width);
    let cache = args.cache.unwrap_or(0);
    let requested = requested(args, store, parts, cache / (width + SLOT_BYTES as u64), seed)?;
    let largest = |sizes: &[u64]| width * sizes.iter().max().copied().unwrap_or(0);
    let per_pass = |rows: u64, row_bytes: u64| (rows * row_bytes) as f64 / args.passes as f64;
    let costs = [
        Cost {
            pass_bytes: per_pass(report.remote, width),
            memory_bytes: largest(&report.closures),
        },
        Cost {
            pass_bytes: per_pass(requested, width + REQUEST_BYTES as u64),
            memory_bytes: largest(&report.vertices) + cache,
        },
    ];
    print(costs, args.memory, format)
}

/// Returns the number of rows of other parts that all ranks request in all passes.
fn requested(args: &Args, store: &Store, parts: &Parts, cached: u64, seed: u64) -> Result<u64> {
    let fan_outs = args.fan_outs.iter().map(fan_out).collect();
    let sampling = Sampling { fan_outs, frontier: Frontier::New, ..Sampling::new(&[]) };
    let demand = Demand { sampling, passes: args.passes, cached, ahead: AHEAD };
    let training = parts.deal(&store.vertices_of(Split::Train));
    let batch = per_rank(args.batch, training.len() as u32, BATCH)?;
    let batches = Batches::local(training, batch, seed)?;
    let (graph, parts) = (store.adjacency(), Arc::new(parts.clone()));
    let (demand, batches, parts) = (&demand, &batches, &parts);
    let workers = thread::available_parallelism().map_or(1, usize::from) as u32;
    thread::scope(|scope| {
        let work = |first: u32| {
            scope.spawn(move || {
                let ranks = (first..batches.ranks()).step_by(workers as usize);
                ranks.map(|rank| demand.rows(graph, batches, parts, rank)).sum::<Result<u64, _>>()
            })
        };
        let running: Vec<_> = (0..workers).map(work).collect();
        let counts = running.into_iter().map(|it| it.join().expect("counting does not panic"));
        Ok(counts.sum::<Result<u64, _>>()?)
    })
}

/// Returns the fan-out for a number; a negative number means all in-neighbours.
pub fn fan_out(limit: &i64) -> FanOut {
    u32::try_from(*limit).map_or(FanOut::All, FanOut::Limit)
}

/// Chooses the way that sends fewer bytes among those that fit in memory. Also returns the reason in one
/// line.
fn choose(costs: [Cost; 2], memory_max: Option<u64>) -> (usize, String) {
    let fits = costs.map(|cost| memory_max.is_none_or(|most| cost.memory_bytes <= most));
    let memory = costs.map(|cost| bytes(cost.memory_bytes as f64));
    let most = bytes(memory_max.unwrap_or(0) as f64);
    if fits[0] && fits[1] {
        let best = usize::from(costs[1].pass_bytes < costs[0].pass_bytes);
        let [this, other] = [best, 1 - best].map(|way| bytes(costs[way].pass_bytes));
        let why = format!("{} send {this} per pass, {} {other}", NAMES[best], NAMES[1 - best]);
        return (best, why);
    }
    if fits[0] || fits[1] {
        let best = usize::from(fits[1]);
        let other = 1 - best;
        let why = format!(
            "{} take {} of a rank's memory, at most {most} are allowed",
            NAMES[other], memory[other]
        );
        return (best, format!("{}, as {why}", NAMES[best]));
    }
    let best = usize::from(costs[1].memory_bytes < costs[0].memory_bytes);
    let why = format!(
        "{} take {} of a rank's memory, less than {}",
        NAMES[best],
        memory[best],
        NAMES[1 - best]
    );
    (best, format!("{why}, but at most {most} are allowed"))
}

fn print(costs: [Cost; 2], memory_max: Option<u64>, format: Format) -> Result<()> {
    let (best, why) = choose(costs, memory_max);
    let line = |way: usize| Line {
        supply: NAMES[way],
        cost: costs[way],
        chosen: way == best,
        reason: (way == best).then(|| why.clone()),
    };
    let lines = [line(0), line(1)];
    print_lines(&lines, format, ["features", "sent per pass", "memory", ""], |line| {
        [
            line.supply.to_owned(),
            bytes(line.cost.pass_bytes),
            bytes(line.cost.memory_bytes as f64),
            line.reason.as_ref().map_or_else(String::new, |why| format!("chosen: {why}")),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_the_fewest_bytes_that_fit_in_memory() {
        let [copies, remote] = [(2e6, 40_000_000), (5e6, 30_000_000)]
            .map(|(pass_bytes, memory_bytes)| Cost { pass_bytes, memory_bytes });
        let table = [
            ([copies, remote], None, 0, "copies send 2.00 MB per pass, remote rows 5.00 MB"),
            (
                [copies, Cost { pass_bytes: 1e6, ..remote }],
                None,
                1,
                "remote rows send 1.00 MB per pass, copies 2.00 MB",
            ),
            (
                [copies, remote],
                Some(35_000_000),
                1,
                "remote rows, as copies take 40.0 MB of a rank's memory, at most 35.0 MB are allowed",
            ),
            (
                [copies, Cost { memory_bytes: 50_000_000, ..remote }],
                Some(45_000_000),
                0,
                "copies, as remote rows take 50.0 MB of a rank's memory, at most 45.0 MB are allowed",
            ),
            (
                [copies, remote],
                Some(1000),
                1,
                "remote rows take 30.0 MB of a rank's memory, less than copies, but at most 1.00 kB are allowed",
            ),
        ];
        for (costs, memory, best, why) in table {
            assert_eq!(choose(costs, memory), (best, why.to_owned()));
        }
    }
}
