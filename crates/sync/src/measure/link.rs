//! The speed of the network between the ranks, measured by all of them together.
//!
//! Every figure is that of the slowest rank, and the same on all ranks.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use thinwire_collective::{Error, Group, Options, all_gather, all_reduce, broadcast_bytes};
use thinwire_schedule::{Algorithm, Rates};
use thinwire_wire::Rank;

use crate::channel::Channel;
use crate::measure::pairs::{self, Pair, Unequal};
use crate::measure::units::Units;
use crate::measure::{hosts, processor_time};

/// The first probe grows until it takes this long.
const PROBE_S: f64 = 0.06;

/// A later probe is to take this long: beyond what a token bucket lets through at once.
const PROBE_AGAIN_S: f64 = 0.03;

/// A probe has at least and at most this many elements.
const PROBE_ELEMENTS_MIN: usize = 1 << 14;
const PROBE_ELEMENTS_MAX: usize = 4 << 20;

/// Changes that make a link another one: bandwidth by a factor, latency by a factor and by more than
/// threads scatter.
const BANDWIDTH_CHANGE: f64 = 1.25;
const LATENCY_CHANGE: f64 = 1.5;
const LATENCY_SCATTER_S: f64 = 5e-4;

/// Difference by which latencies that two processes measure may scatter: on busy cores, every message waits for the
/// time slices of other threads. The watch still finds a link that has become slower.
const LATENCY_BUSY_S: f64 = 1e-2;

/// Sending to all others counts as faster than the ring if it takes less than this part of the ring's
/// time; it counts as slower by at most the second factor.
const FAN_IN_LESS: f64 = 0.8;
const FAN_IN_MAX: f64 = 2.0;

/// Most bytes of a measurement as JSON.
const JSON_BYTES_MAX: usize = 1 << 20;

/// Largest world whose pairs are measured.
const PAIRED_MAX: usize = 16;

/// The speed of the slowest link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSpeed {
    /// Seconds from a bit's departure to its arrival.
    pub latency_s: f64,
    /// Bytes per second in each direction.
    pub bytes_per_s: f64,
    /// Time of an exchange in which all ranks send to all others, divided by the time that the same
    /// bytes take around a ring: more than 1 if queues of switches overflow, less than 1 if few pairs
    /// of ranks are far apart.
    pub fan_in: f64,
    /// Processor time of sending and receiving one byte, in seconds: system calls, encryption, and the
    /// work of the operating system.
    #[serde(default)]
    pub cpu_s_per_byte: f64,
    /// Processor time of sending and receiving a message, however short, in seconds.
    #[serde(default)]
    pub cpu_s_per_message: f64,
    /// Ranks that are further apart than others; `None` if there are none, or pairs were not measured.
    #[serde(default)]
    pub unequal: Option<Unequal>,
    /// All pairs of ranks, in the order of their ranks; empty if there are too many to measure each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<Pair>,
}

impl LinkSpeed {
    /// Returns the links within units of `ranks` ranks and between them, as every rank sees them; this
    /// link for both if no such units were measured.
    pub(crate) fn in_units(&self, ranks: usize) -> [LinkSpeed; 2] {
        let unequal = self.unequal.as_ref();
        let units = unequal.and_then(|it| it.units).filter(|units| units.ranks == ranks);
        let Some(Units { latency_s, bytes_per_s, between_bytes_per_s, .. }) = units else {
            return [self.clone(), self.clone()];
        };
        // Around the circle of all ranks one rank of a unit alone sends to another one: all of them reach no
        // more each, and no less than a part of it.
        let least = self.bytes_per_s / ranks as f64;
        let between = between_bytes_per_s.clamp(least, self.bytes_per_s);
        // Where two-shot beats the circle, it is for the links within units.
        let fan_in = self.fan_in.max(1.0);
        [
            LinkSpeed { latency_s, bytes_per_s, fan_in: 1.0, ..self.clone() },
            LinkSpeed { bytes_per_s: between, fan_in, ..self.clone() },
        ]
    }

    /// Returns the rates of all pairs, if there is more than one pair and all were measured.
    pub(crate) fn rates(&self, ranks: usize) -> Option<Rates> {
        let is_complete = ranks > 2 && self.pairs.len() == ranks * (ranks - 1) / 2;
        let rate = |low: usize, high: usize| {
            let ends = (low as u32, high as u32);
            self.pairs
                .iter()
                .find(|pair| pair.ranks == ends)
                .map_or(f64::NAN, |pair| pair.bytes_per_s)
        };
        // Not a number, or no bytes at all, means that a pair was not measured.
        let rates = is_complete.then(|| Rates::new(ranks, rate));
        rates.filter(|rates| {
            (0..ranks).all(|a| (0..ranks).all(|b| a == b || rates.pair(a, b) > 0.0))
        })
    }

    /// Returns whether one of the two has this many times the bandwidth of the other, or of its latency by more than
    /// busy cores explain.
    pub(crate) fn is_far(&self, other: &LinkSpeed, times: f64) -> bool {
        let factor = |a: f64, b: f64| if a > b { a / b } else { b / a };
        let later_s = (self.latency_s - other.latency_s).abs();
        factor(self.bytes_per_s, other.bytes_per_s) >= times
            || later_s > LATENCY_BUSY_S && factor(self.latency_s, other.latency_s) >= times
    }

    /// Returns whether this number of ranks can have measured this.
    pub(crate) fn is_possible(&self, ranks: usize) -> bool {
        let units = self.unequal.as_ref().and_then(|unequal| unequal.units);
        let rates = units.map(|units| [units.bytes_per_s, units.between_bytes_per_s]);
        let is_unit = |units: Units| units.ranks > 0 && ranks.is_multiple_of(units.ranks);
        let rates = rates.into_iter().flatten().chain([self.bytes_per_s, self.fan_in]);
        rates.into_iter().all(|rate| rate > 0.0)
            && [self.latency_s, self.cpu_s_per_byte, self.cpu_s_per_message]
                .iter()
                .all(|s| *s >= 0.0)
            && units.is_none_or(is_unit)
    }

    /// Returns whether this is another link than `other`, by more than measuring scatters.
    pub(crate) fn differs(&self, other: &LinkSpeed) -> bool {
        let factor = |a: f64, b: f64| if a > b { a / b } else { b / a };
        let later_s = (self.latency_s - other.latency_s).abs();
        factor(self.bytes_per_s, other.bytes_per_s) > BANDWIDTH_CHANGE
            || later_s > LATENCY_SCATTER_S
                && factor(self.latency_s, other.latency_s) > LATENCY_CHANGE
    }
}

/// Measures latency and bandwidth by all-reduces: latency is the time of a tiny one, and bandwidth
/// follows from the additional time of a larger one. The size doubles until the time is long enough to
/// trust, on all ranks alike.
pub(crate) fn probe(group: &mut Group) -> Result<LinkSpeed, Error> {
    let size = group.world().size();
    if size == 1 {
        return Ok(LinkSpeed {
            latency_s: 0.0,
            bytes_per_s: f64::INFINITY,
            fan_in: 1.0,
            cpu_s_per_byte: 0.0,
            cpu_s_per_message: 0.0,
            unequal: None,
            pairs: Vec::new(),
        });
    }
    let round_s = round(group, 7)?;
    let mut elements = PROBE_ELEMENTS_MIN;
    loop {
        let (first, second) = (timed(group, elements, None)?, timed(group, elements, None)?);
        let seconds = first.seconds.min(second.seconds);
        if seconds > PROBE_S || elements >= PROBE_ELEMENTS_MAX {
            let fan_in = fan_in(group, elements, seconds)?;
            let bytes_per_s = rate(elements, size, seconds, round_s);
            let cpu_s_per_byte = first.cpu_s.min(second.cpu_s) / sent_bytes(elements, size);
            let latency_s = round_s / 2.0;
            let (pairs, unequal) = distances(group, latency_s, bytes_per_s)?;
            return Ok(LinkSpeed {
                latency_s,
                bytes_per_s,
                fan_in,
                cpu_s_per_byte,
                cpu_s_per_message: cpu_s_per_message(group)?,
                unequal,
                pairs,
            });
        }
        elements *= 2;
    }
}

/// Measures the link once more, in less time than [`probe`], where it was `known` and bytes now take
/// `slowdown` times as long.
pub(crate) fn probe_again(
    group: &mut Group,
    known: &LinkSpeed,
    slowdown: f64,
) -> Result<LinkSpeed, Error> {
    let size = group.world().size();
    let round_s = round(group, 5)?;
    // Predictions err, so the factor is believed up to ten.
    let bytes = PROBE_AGAIN_S * known.bytes_per_s / slowdown.clamp(0.1, 10.0);
    // The inverse of `sent_bytes`.
    let elements = (bytes * size as f64 / (8 * (size - 1)) as f64) as usize;
    let elements = elements.clamp(PROBE_ELEMENTS_MIN, PROBE_ELEMENTS_MAX);
    // The first empties what a token bucket has saved; the better of the others was disturbed less.
    timed(group, elements / 2, None)?;
    let seconds = best(group, elements, 2)?;
    let bytes_per_s = rate(elements, size, seconds, round_s);
    let mut link = LinkSpeed { latency_s: round_s / 2.0, bytes_per_s, ..known.clone() };
    // Pairs take long to measure, except the only one of two ranks, which is the link.
    if size == 2 || link.differs(known) {
        (link.pairs, link.unequal) = distances(group, link.latency_s, bytes_per_s)?;
    }
    Ok(link)
}

/// Returns the measurement of rank 0 and its peers. Groups of peers measure at the same time and find
/// different figures, but all ranks must make the same decisions.
pub(crate) fn of_rank_0(
    channel: &Channel,
    peers: &Channel,
    measured: LinkSpeed,
) -> Result<LinkSpeed, crate::Error> {
    // There is no JSON for the infinite rate of a rank that exchanges with nobody.
    if peers.world().size() == channel.world().size() || peers.world().size() == 1 {
        return Ok(measured);
    }
    let json = serde_json::to_vec(&measured).expect("a link has only finite numbers");
    let json = channel.call(move |group| broadcast_bytes(group, &json, Rank(0), JSON_BYTES_MAX))?;
    let wrong = |error| {
        crate::Error::Invalid(format!(
            "cannot read the speed of the link that rank 0 sent: {error}"
        ))
    };
    serde_json::from_slice(&json).map_err(wrong)
}

/// Measures the distances between ranks: all pairs if there are few enough. For two ranks, it returns
/// the measured link as the only pair; for many ranks, no pairs, but the units that their hosts make.
fn distances(
    group: &mut Group,
    latency_s: f64,
    bytes_per_s: f64,
) -> Result<(Vec<Pair>, Option<Unequal>), Error> {
    let size = group.world().size();
    let pairs = match size {
        2 => vec![pairs::of_two(group, latency_s, bytes_per_s)?],
        3..=PAIRED_MAX => pairs::measure(group, Group::shares_host)?,
        _ => return Ok((Vec::new(), hosts::measure(group, Group::shares_host)?)),
    };
    let unequal = pairs::unequal(size, &pairs);
    Ok((pairs, unequal))
}

/// Returns the time of two-shot over that of the ring, which sends as many bytes.
fn fan_in(group: &mut Group, elements: usize, ring_s: f64) -> Result<f64, Error> {
    if group.world().size() == 2 {
        return Ok(1.0);
    }
    let mut time = || timed(group, elements, Some(Algorithm::TwoShot)).map(|timed| timed.seconds);
    let two_shot_s = time()?.min(time()?);
    let ratio = two_shot_s / ring_s;
    Ok(if ratio < FAN_IN_LESS { ratio } else { ratio.clamp(1.0, FAN_IN_MAX) })
}

/// Returns the time of a tiny all-reduce.
fn round(group: &mut Group, times: usize) -> Result<f64, Error> {
    let size = group.world().size();
    best(group, size, times)
}

/// Returns the processor time of a short message, in seconds: of a tiny all-reduce in which every rank sends to every
/// other, twice.
fn cpu_s_per_message(group: &mut Group) -> Result<f64, Error> {
    let size = group.world().size();
    let mut times = (0..5).map(|_| timed(group, size, Some(Algorithm::TwoShot)));
    let least = times.try_fold(f64::INFINITY, |least, timed| Ok(least.min(timed?.cpu_s)))?;
    Ok(least / (2 * (size - 1)) as f64)
}

/// Returns the shortest of some times: disturbances of a thread make them longer, never shorter.
fn best(group: &mut Group, elements: usize, times: usize) -> Result<f64, Error> {
    let mut times = (0..times).map(|_| timed(group, elements, None));
    times.try_fold(f64::INFINITY, |best, timed| Ok(best.min(timed?.seconds)))
}

fn rate(elements: usize, size: usize, seconds: f64, round_s: f64) -> f64 {
    sent_bytes(elements, size) / (seconds - round_s).max(seconds / 10.0)
}

/// Returns the bytes that a rank sends in a raw all-reduce.
fn sent_bytes(elements: usize, size: usize) -> f64 {
    (elements * 8 * (size - 1)) as f64 / size as f64
}

/// The time of one raw all-reduce, on the rank where it took most.
struct Timed {
    seconds: f64,
    cpu_s: f64,
}

fn timed(group: &mut Group, elements: usize, algorithm: Option<Algorithm>) -> Result<Timed, Error> {
    let mut values = vec![0.0; elements];
    let (begin, cpu) = (Instant::now(), processor_time());
    let algorithm = algorithm.map(Algorithm::into);
    all_reduce(group, &mut values, &Options { algorithm, ..Options::default() })?;
    let mine = [begin.elapsed(), processor_time() - cpu].map(|time| time.as_secs_f32());
    let all = all_gather(group, &mine)?;
    let most = |first: usize| all.iter().skip(first).step_by(2).copied().fold(0.0, f32::max);
    Ok(Timed { seconds: most(0).into(), cpu_s: most(1).into() })
}
