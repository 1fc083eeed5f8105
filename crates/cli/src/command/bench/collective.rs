//! `thinwire bench collective`: measures the all-reduce of f32 values, compared with its bytes over the
//! bandwidth.
//!
//! Bus bandwidth is 2(n−1)/n · bytes over time: every rank must send and receive at least 2(n−1)/n ·
//! bytes if all links are equal. The floor is the floor of `thinwire_schedule::Rates` for the rate of
//! each rank's own link. For an emulated link, this is the emulated rate. Otherwise, it is the highest
//! rate of one plain TCP stream to any peer in the same run, in each direction while both are used. Each
//! repetition starts at a barrier, and its time is the time of the slowest rank. Results are medians
//! after a warm-up.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde::Serialize;
use thinwire_codec::Choice;
use thinwire_collective::{Group, Options, all_gather, all_reduce, all_reduce_many, barrier};
use thinwire_report::figures::{bytes, bytes_per_s, median, ratio, seconds};
use thinwire_schedule::{self as schedule, Algorithm, Summation, Trees, UnknownAlgorithm};

use super::plain::{Rates, repetitions, timed};
use super::rates;
use crate::link::Settings;
use crate::output::{Format, print_lines, say};
use crate::place::Flags;
use crate::ranks::{self, Start};
use crate::units;

const BUDGET: Duration = Duration::from_secs(1);
const SMALL_TENSORS: usize = 10_000;
const SMALL_ELEMENTS: usize = 8;

/// Measure all-reduce, and the time of its bytes in a plain TCP stream.
#[derive(clap::Args)]
pub struct Args {
    /// Ranks to start here [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64), help_heading = "Ranks")]
    ranks: Option<u32>,
    /// Sizes of the tensor
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "32KiB,1MiB,4MiB,25MiB,100MiB", value_parser = units::bytes(0..=usize::MAX))]
    sizes: Vec<usize>,
    /// Algorithms [default: what a call would choose]
    ///
    /// ring, halving, two-shot, gather, ring-gather; trees (computed for the measured rates of the ranks), or
    /// trees:WEIGHT*PARENTS+… with the parent of each rank, as in trees:2*0.0.0+1*1.1.1; hierarchical:UNIT:ALGORITHM
    /// for units of UNIT ranks.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    algorithms: Vec<Requested>,
    /// Codec that needs no error feedback
    #[arg(long, default_value = "none")]
    codec: Choice,
    /// Also reduce ten thousand tensors of 8 elements
    ///
    /// They are compared with one tensor of the same total size.
    #[arg(long)]
    small: bool,
    #[command(flatten)]
    link: Settings,
    #[command(flatten)]
    place: Flags,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// A requested algorithm.
#[derive(Clone, Copy)]
enum Requested {
    Sum(Summation),
    /// Trees computed for the measured rates.
    Trees,
}

impl FromStr for Requested {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Requested, UnknownAlgorithm> {
        if name == "trees" { Ok(Requested::Trees) } else { name.parse().map(Requested::Sum) }
    }
}

impl Requested {
    /// # Errors
    /// If trees have too many ranks.
    fn for_rates(self, rates: &schedule::Rates) -> Result<Summation> {
        match self {
            Requested::Sum(summation) => Ok(summation),
            Requested::Trees => {
                let trees = rates.trees().ok_or_else(|| {
                    let (size, most) = (rates.ranks(), Trees::RANKS_MAX);
                    anyhow!("trees of {size} ranks, expected at most {most}")
                })?;
                Ok(Algorithm::Trees(trees).into())
            }
        }
    }
}

#[derive(Serialize)]
struct Line {
    peer: String,
    world: u32,
    bytes: usize,
    seconds_median: f64,
    runs: usize,
    network: String,
    bus_bytes_per_s: f64,
    floor_s: f64,
}

/// Measures, and prints the results on rank 0.
///
/// # Errors
/// If the connection between ranks is lost.
pub fn run(args: &Args) -> Result<u8> {
    let Choice::Bytes(codec) = args.codec.clone() else {
        return Err(anyhow!(
            "codec {} cannot be used in a plain all-reduce, which has no error feedback",
            args.codec
        ));
    };
    ensure!(
        args.sizes.iter().all(|size| (4..=1 << 32).contains(size)),
        "sizes must be from 4 bytes to 4 GiB"
    );
    let place = match ranks::start(&args.place, args.ranks, 2)? {
        Start::Rank(place) => place,
        Start::Done(code) => return Ok(code),
    };
    let meeting = args.link.meet(&place, &args.place, args.link.limit())?;
    let limit = args.link.limit().map(|limit| limit.bytes_per_s());
    let (plain, rates) = rates::of_ranks(&meeting, limit)?;
    let mut group = Group::new(meeting.link()?).with_timeout(args.link.timeout);
    if place.rank == 0 {
        say(format!(
            "link: {}; one plain TCP stream: {}{}",
            args.link.describe(args.link.limit(), &place),
            in_words(plain),
            rates::differing(&rates)
        ));
    }
    let rates = schedule::Rates::new(rates.len(), |low, high| rates[low].min(rates[high]));
    let summations = args.algorithms.iter().map(|it| it.for_rates(&rates).map(Some));
    let mut summations = summations.collect::<Result<Vec<_>>>()?;
    let mut bench = Bench { rates, args, group: &mut group };
    if summations.is_empty() {
        summations.push(None);
    }
    let mut lines = Vec::new();
    for size in &args.sizes {
        for summation in &summations {
            let options = Options { codec: codec.clone(), ..Options::default() };
            lines.push(bench.one(size / 4, *summation, options)?);
        }
    }
    if args.small {
        lines.push(bench.one(SMALL_TENSORS * SMALL_ELEMENTS, None, Options::default())?);
        lines.push(bench.many()?);
    }
    barrier(&mut group)?;
    if place.rank == 0 { show(&lines, args.json.into()) } else { Ok(0) }
}

fn show(lines: &[Line], format: Format) -> Result<u8> {
    let header = ["", "ranks", "size", "time", "runs", "bus bandwidth", "floor", "× floor"];
    print_lines(lines, format, header, |line| {
        [
            line.peer.clone(),
            line.world.to_string(),
            bytes(line.bytes as f64),
            seconds(line.seconds_median),
            line.runs.to_string(),
            bytes_per_s(line.bus_bytes_per_s),
            seconds(line.floor_s),
            ratio(line.seconds_median / line.floor_s),
        ]
    })?;
    Ok(0)
}

fn in_words(rates: Option<Rates>) -> String {
    rates.map_or("not measured".to_owned(), |rates| {
        let (one, both) = (bytes_per_s(rates.one_way), bytes_per_s(rates.both_ways));
        format!("{one} one way, {both} each way at once")
    })
}

struct Bench<'a> {
    args: &'a Args,
    group: &'a mut Group,
    rates: schedule::Rates,
}

impl Bench<'_> {
    fn one(
        &mut self,
        elements: usize,
        summation: Option<Summation>,
        mut options: Options,
    ) -> Result<Line> {
        let name = match summation {
            None => "thinwire".to_owned(),
            Some(summation) => format!("thinwire {summation}"),
        };
        options.algorithm = summation.or(options.algorithm);
        let mut values = vec![1.0; elements];
        self.line(name, elements, |group| {
            // Sums must not grow from run to run into what is no number.
            values.fill(1.0);
            timed(|| all_reduce(group, &mut values, &options))
        })
    }

    fn many(&mut self) -> Result<Line> {
        let mut tensors = vec![[1.0_f32; SMALL_ELEMENTS]; SMALL_TENSORS];
        let name = format!("thinwire, {SMALL_TENSORS} tensors");
        self.line(name, SMALL_TENSORS * SMALL_ELEMENTS, |group| {
            tensors.fill([1.0; SMALL_ELEMENTS]);
            let mut parts: Vec<&mut [f32]> =
                tensors.iter_mut().map(|tensor| &mut tensor[..]).collect();
            timed(|| all_reduce_many(group, &mut parts, &Options::default()))
        })
    }

    fn line(
        &mut self,
        peer: String,
        elements: usize,
        mut work: impl FnMut(&mut Group) -> Result<f64, thinwire_collective::Error>,
    ) -> Result<Line> {
        let mut once = |group: &mut Group| -> Result<f64> {
            barrier(group)?;
            let mine = work(group)?;
            Ok(all_gather(group, &[mine as f32])?.into_iter().fold(0.0, f32::max).into())
        };
        once(self.group)?;
        let runs = repetitions(once(self.group)?, BUDGET);
        let times: Result<Vec<f64>> = (0..runs).map(|_| once(self.group)).collect();
        let seconds_median = median(&mut times?);
        let (world, bytes) = (self.group.world().size(), 4 * elements);
        let least = 2.0 * (world as f64 - 1.0) / world as f64 * bytes as f64;
        Ok(Line {
            peer,
            world: world as u32,
            bytes,
            seconds_median,
            runs,
            network: self.args.link.network(),
            bus_bytes_per_s: least / seconds_median,
            floor_s: bytes as f64 * self.rates.bound(),
        })
    }
}
