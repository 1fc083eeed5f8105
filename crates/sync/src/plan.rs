//! Who carries each bucket: codec, algorithm and partitions.
//!
//! The planner simulates the iteration ([`crate::predict`]) and gives every bucket the candidate
//! with which it is shortest. Then it goes back towards raw: as long as the iteration stays within
//! four percent, a bucket gets the codec that loses less. A plan that is not at least two percent
//! faster than raw is dropped for raw. So raw is used whenever raw is not slower, and a lossy
//! codec only where it is seen to help.

use serde::{Deserialize, Serialize};
use thinwire_codec::{Choice, Exchange};
use thinwire_collective::operations::preferred;
use thinwire_schedule::{Algorithm, Cost};
use thinwire_wire::World;

use crate::bucket::Bucket;
use crate::iteration::{self, Measured};

/// A faster plan must win this much over raw, and a new one over the one in force.
const GAIN_MIN: f64 = 0.02;

/// What going back to codecs that lose less may cost in all: accuracy is bought with what nobody
/// notices, and no more than one could tell from the best fixed choice.
const SLACK: f64 = 0.04;

/// How one bucket travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The codec, as [`Choice::parse`] takes it.
    pub codec: String,
    /// The algorithm, as [`Algorithm`] parses it.
    pub algorithm: String,
    /// Into how many pipelined partitions the bucket is cut.
    pub partitions: usize,
}

/// How all buckets travel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// One assignment per bucket.
    pub assignments: Vec<Assignment>,
    /// The time from the end of readiness to the end of exchange that is expected per bucket, in
    /// seconds; zero where nothing was measured.
    pub predicted_s: Vec<f64>,
    /// How long the iteration should take, in seconds; zero where nothing was measured.
    pub iteration_s: f64,
}

/// One way for one bucket, and what it costs alone.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) assignment: Assignment,
    /// The place of the codec in the list of candidates, from the one that loses least.
    pub(crate) loss: usize,
    pub(crate) cost: Cost,
    /// What is left to do when all bytes are there, in seconds.
    pub(crate) commit_s: f64,
}

impl Plan {
    /// The plan for one codec, without measuring: the same every time.
    pub(crate) fn fixed(
        choice: &Choice,
        asked: Option<Algorithm>,
        buckets: &[&Bucket],
        world: World,
    ) -> Plan {
        let assign = |bucket: &&Bucket| {
            let raw = Choice::Bytes(bucket.raw());
            let plain = matches!(choice, Choice::Bytes(codec) if codec.is_raw());
            let choice = if bucket.exempt || plain { &raw } else { choice };
            Assignment {
                codec: choice.to_string(),
                algorithm: algorithm(choice, asked, world, bucket.elements).to_string(),
                partitions: thinwire_collective::operations::partitions(bucket.elements),
            }
        };
        let assignments = buckets.iter().map(assign).collect();
        Plan { assignments, predicted_s: vec![0.0; buckets.len()], iteration_s: 0.0 }
    }

    /// Whether this plan is expected to be faster than `other` by more than noise.
    pub(crate) fn beats(&self, other: &Plan) -> bool {
        self.iteration_s < other.iteration_s * (1.0 - GAIN_MIN)
    }
}

/// The algorithm that carries a codec: the one that was asked for where it can, else the preferred.
pub(crate) fn algorithm(
    choice: &Choice,
    asked: Option<Algorithm>,
    world: World,
    elements: usize,
) -> Algorithm {
    let exchange = match choice {
        Choice::Bytes(codec) => codec.exchange(),
        Choice::LowRank(_) => Exchange::Summable,
    };
    match (exchange, asked) {
        (Exchange::Summable, Some(asked)) => asked,
        (Exchange::TwoShot, Some(asked @ (Algorithm::TwoShot | Algorithm::Gather))) => asked,
        _ => preferred(exchange, world, elements),
    }
}

/// The fastest plan for what was measured, by the rules above. `candidates[bucket]` begins with raw.
pub(crate) fn choose(measured: &Measured, candidates: &[Vec<Candidate>]) -> Plan {
    let raw: Vec<usize> =
        candidates.iter().map(|of_bucket| fastest_of_loss(of_bucket, 0)).collect();
    let mut picks = raw.clone();
    let time = |picks: &[usize]| iteration::predict(measured, &pick(candidates, picks)).seconds;
    let mut best = time(&picks);
    let raw_s = best;
    for _ in 0..3 {
        let before = best;
        for (bucket, of_bucket) in candidates.iter().enumerate() {
            best = improve(bucket, &mut picks, of_bucket.len(), best, &time);
        }
        if best >= before {
            break;
        }
    }
    // With everything raw one bucket alone may not help, all together do: try each codec throughout.
    let losses = candidates.iter().flatten().map(|candidate| candidate.loss).max().unwrap_or(0);
    for loss in 1..=losses {
        let all: Vec<usize> =
            candidates.iter().map(|of_bucket| fastest_of_loss(of_bucket, loss)).collect();
        let seconds = time(&all);
        if seconds < best {
            (picks, best) = (all, seconds);
        }
    }
    let limit = best * (1.0 + SLACK);
    for (bucket, of_bucket) in candidates.iter().enumerate() {
        relax(bucket, &mut picks, of_bucket, limit, &time);
    }
    if time(&picks) > raw_s * (1.0 - GAIN_MIN) {
        picks = raw;
    }
    finished(measured, candidates, &picks)
}

/// `plan` with what it would take under what is measured now; unknown assignments count as raw.
pub(crate) fn priced(measured: &Measured, candidates: &[Vec<Candidate>], plan: &Plan) -> Plan {
    let find = |(of_bucket, assignment): (&Vec<Candidate>, &Assignment)| {
        let same = of_bucket.iter().position(|candidate| candidate.assignment == *assignment);
        same.unwrap_or_else(|| fastest_of_loss(of_bucket, 0))
    };
    let picks: Vec<usize> = candidates.iter().zip(&plan.assignments).map(find).collect();
    finished(measured, candidates, &picks)
}

/// Gives `bucket` the candidate with which the iteration is shortest; the new time.
fn improve(
    bucket: usize,
    picks: &mut [usize],
    count: usize,
    best: f64,
    time: &dyn Fn(&[usize]) -> f64,
) -> f64 {
    let (mut kept, mut best) = (picks[bucket], best);
    for candidate in 0..count {
        picks[bucket] = candidate;
        let seconds = time(picks);
        if seconds < best {
            (kept, best) = (candidate, seconds);
        }
    }
    picks[bucket] = kept;
    best
}

/// Gives `bucket` the candidate that loses least within the time limit.
fn relax(
    bucket: usize,
    picks: &mut [usize],
    candidates: &[Candidate],
    limit: f64,
    time: &dyn Fn(&[usize]) -> f64,
) {
    let kept = picks[bucket];
    for loss in 0..candidates[kept].loss {
        picks[bucket] = fastest_of_loss(candidates, loss);
        if candidates[picks[bucket]].loss == loss && time(picks) <= limit {
            return;
        }
    }
    picks[bucket] = kept;
}

/// The cheapest candidate of one codec; that of raw for a bucket that has no other.
fn fastest_of_loss(candidates: &[Candidate], loss: usize) -> usize {
    let of_loss = |wanted: usize| {
        let indices = (0..candidates.len()).filter(move |&index| candidates[index].loss == wanted);
        indices.min_by(|&a, &b| candidates[a].cost.seconds.total_cmp(&candidates[b].cost.seconds))
    };
    of_loss(loss).or_else(|| of_loss(0)).expect("every bucket can travel raw")
}

fn pick<'a>(candidates: &'a [Vec<Candidate>], picks: &[usize]) -> Vec<&'a Candidate> {
    candidates.iter().zip(picks).map(|(of_bucket, &index)| &of_bucket[index]).collect()
}

fn finished(measured: &Measured, candidates: &[Vec<Candidate>], picks: &[usize]) -> Plan {
    let picked = pick(candidates, picks);
    let prediction = iteration::predict(measured, &picked);
    Plan {
        assignments: picked.iter().map(|candidate| candidate.assignment.clone()).collect(),
        predicted_s: prediction.exchanges_s,
        iteration_s: prediction.seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iteration::Readiness;

    /// Raw takes as long as its bytes, the others shrink the wire time and cost some computing.
    fn candidates(wire_s: f64, compute_s: f64) -> Vec<Candidate> {
        let make = |(loss, name): (usize, &str)| {
            let shrink = [1.0, 0.5, 0.25, 0.125][loss];
            let cpu_seconds = compute_s * loss as f64;
            let cost = Cost {
                seconds: wire_s * shrink + cpu_seconds,
                cpu_seconds,
                egress_seconds: wire_s * shrink,
                ingress_seconds: wire_s * shrink,
                ..Cost::default()
            };
            let assignment = Assignment {
                codec: name.to_owned(),
                algorithm: "two-shot".to_owned(),
                partitions: 1,
            };
            Candidate { assignment, loss, cost, commit_s: 0.0 }
        };
        ["none", "bf16", "int8", "int4"].into_iter().enumerate().map(make).collect()
    }

    fn plan(backward_s: f64, wire_s: f64, compute_s: f64) -> Plan {
        let readiness = |index: usize| Readiness { ready_s: backward_s * (index + 1) as f64 / 4.0 };
        let measured =
            Measured { backward_s, buckets: (0..4).map(readiness).collect(), crowded: true };
        choose(&measured, &vec![candidates(wire_s, compute_s); 4])
    }

    fn codecs(plan: &Plan) -> Vec<&str> {
        plan.assignments.iter().map(|assignment| assignment.codec.as_str()).collect()
    }

    #[test]
    fn a_fast_link_is_left_raw() {
        assert_eq!(codecs(&plan(1.0, 0.001, 0.002)), ["none"; 4]);
    }

    #[test]
    fn a_slow_link_gets_the_strongest_codec() {
        assert_eq!(codecs(&plan(0.1, 10.0, 0.001)), ["int4"; 4]);
    }

    #[test]
    fn only_what_overlap_cannot_hide_is_compressed() {
        let plan = plan(4.0, 0.9, 0.001);
        assert_eq!(&codecs(&plan)[..3], ["none"; 3]);
        assert_ne!(codecs(&plan)[3], "none");
    }
}
