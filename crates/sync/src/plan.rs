//! Who carries each bucket: codec, algorithm and partitions.
//!
//! The planner simulates the iteration ([`crate::iteration`]) and gives every bucket the candidate
//! with which it is shortest. Then it goes back towards raw: as long as the iteration stays within
//! two percent, a bucket gets the codec that loses less. A plan that is not at least two percent
//! faster than raw is dropped for raw. So raw is used whenever raw is not slower, and a lossy
//! codec only where it is seen to help.

use serde::{Deserialize, Serialize};
use thinwire_codec::Choice;
use thinwire_collective::operations::{carries, partitions, preferred};
use thinwire_schedule::Algorithm;
use thinwire_wire::World;

use crate::bucket::Bucket;
use crate::iteration::{self, Measured, Price};
use crate::policy::Asked;
use crate::ways::Candidate;

/// A faster plan must win this much over raw, and a new one over the one in force.
const GAIN_MIN: f64 = 0.02;

/// What going back to codecs that lose less may cost in all: accuracy is bought with what nobody
/// notices, and no more than one could tell from the best fixed choice.
const SLACK: f64 = 0.02;

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
    /// The relative squared error of one encoding, summed over buckets.
    #[serde(default)]
    pub loss: f64,
    /// What each bucket's exchange should take by itself; none where nothing was measured.
    #[serde(default)]
    pub prices: Vec<Price>,
    /// How long the iteration would take if everything travelled raw; zero where nothing was
    /// measured.
    #[serde(default)]
    pub raw_iteration_s: f64,
    /// What had been asked for, in a plan that was saved: for anything else it says nothing.
    #[serde(default)]
    pub asked: String,
}

impl Plan {
    /// The plan for one codec, without measuring: the same every time.
    pub(crate) fn fixed(choice: &Choice, asked: Asked, buckets: &[&Bucket], world: World) -> Plan {
        let assign = |bucket: &&Bucket| {
            let raw = Choice::Bytes(bucket.raw());
            let plain = matches!(choice, Choice::Bytes(codec) if codec.is_raw());
            let choice = if bucket.exempt || plain { &raw } else { choice };
            Assignment {
                codec: choice.to_string(),
                algorithm: algorithm(choice, asked.algorithm, world, bucket.elements).to_string(),
                partitions: asked.partitions.unwrap_or_else(|| partitions(bucket.elements)),
            }
        };
        let assignments = buckets.iter().map(assign).collect();
        Plan { assignments, predicted_s: vec![0.0; buckets.len()], ..Plan::default() }
    }

    /// Whether this plan is expected to be faster than `other` by more than noise, or as fast and to
    /// lose not half as much.
    pub(crate) fn beats(&self, other: &Plan) -> bool {
        let over = self.iteration_s / other.iteration_s;
        over < 1.0 - GAIN_MIN || over < 1.0 + GAIN_MIN && self.loss < 0.5 * other.loss
    }

    /// What all ranks must agree on: how buckets travel, not how long it should take.
    pub fn hash(&self) -> u32 {
        let text = serde_json::to_string(&self.assignments).expect("strings and numbers");
        thinwire_wire::checksum(text.as_bytes())
    }
}

/// The algorithm that carries a codec: the one that was asked for where it can, else the preferred.
pub(crate) fn algorithm(
    choice: &Choice,
    asked: Option<Algorithm>,
    world: World,
    elements: usize,
) -> Algorithm {
    let exchange = choice.exchange();
    let asked = asked.filter(|asked| carries(*asked, exchange));
    asked.unwrap_or_else(|| preferred(exchange, world, elements))
}

/// The fastest plan for what was measured, by the rules above. `candidates[bucket]` begins with raw.
pub(crate) fn choose(measured: &Measured, candidates: &[Vec<Candidate>]) -> Plan {
    let search = Search { measured, candidates };
    let raw = search.all_raw();
    let raw_s = search.seconds(&raw);
    let (mut picks, best) = search.descend(raw.clone(), raw_s);
    search.relax(&mut picks, best * (1.0 + SLACK));
    if search.seconds(&picks) > raw_s * (1.0 - GAIN_MIN) {
        picks = raw;
    }
    search.finished(&picks)
}

/// The plan in which everything travels raw.
pub(crate) fn raw(measured: &Measured, candidates: &[Vec<Candidate>]) -> Plan {
    let search = Search { measured, candidates };
    search.finished(&search.all_raw())
}

/// `plan` with what it would take under what is measured now; what is no candidate counts as raw.
pub(crate) fn priced(measured: &Measured, candidates: &[Vec<Candidate>], plan: &Plan) -> Plan {
    let find = |(of_bucket, assignment): (&Vec<Candidate>, &Assignment)| {
        let same = of_bucket.iter().position(|candidate| candidate.assignment == *assignment);
        same.unwrap_or_else(|| fastest(of_bucket, of_bucket[0].codec))
    };
    let picks: Vec<usize> = candidates.iter().zip(&plan.assignments).map(find).collect();
    Search { measured, candidates }.finished(&picks)
}

/// What is searched: for every bucket the place of its candidate.
struct Search<'a> {
    measured: &'a Measured,
    candidates: &'a [Vec<Candidate>],
}

impl Search<'_> {
    fn all_raw(&self) -> Vec<usize> {
        self.candidates.iter().map(|of_bucket| fastest(of_bucket, of_bucket[0].codec)).collect()
    }

    fn seconds(&self, picks: &[usize]) -> f64 {
        let picked = self.candidates.iter().zip(picks);
        iteration::seconds(self.measured, picked.map(|(of_bucket, pick)| &of_bucket[*pick].price))
    }

    /// The fastest picks that are found from some that take `best`.
    fn descend(&self, mut picks: Vec<usize>, mut best: f64) -> (Vec<usize>, f64) {
        for _ in 0..3 {
            let before = best;
            for bucket in 0..self.candidates.len() {
                best = self.improve(bucket, &mut picks, best);
            }
            if best >= before {
                break;
            }
        }
        // With everything raw one bucket alone may not help, all together do: try each codec throughout.
        for codec in self.codecs() {
            let all: Vec<usize> =
                self.candidates.iter().map(|of_bucket| fastest(of_bucket, codec)).collect();
            let seconds = self.seconds(&all);
            if seconds < best {
                (picks, best) = (all, seconds);
            }
        }
        (picks, best)
    }

    fn codecs(&self) -> Vec<usize> {
        let mut codecs: Vec<usize> =
            self.candidates.iter().flatten().map(|candidate| candidate.codec).collect();
        codecs.sort_unstable();
        codecs.dedup();
        codecs
    }

    /// Gives `bucket` the candidate with which the iteration is shortest; the new time.
    fn improve(&self, bucket: usize, picks: &mut [usize], best: f64) -> f64 {
        let (mut kept, mut best) = (picks[bucket], best);
        for candidate in 0..self.candidates[bucket].len() {
            picks[bucket] = candidate;
            let seconds = self.seconds(picks);
            if seconds < best {
                (kept, best) = (candidate, seconds);
            }
        }
        picks[bucket] = kept;
        best
    }

    /// Gives every bucket the candidate that loses least within the time limit.
    fn relax(&self, picks: &mut [usize], limit: f64) {
        for (bucket, of_bucket) in self.candidates.iter().enumerate() {
            let kept = picks[bucket];
            let error = of_bucket[kept].error;
            let mut codecs: Vec<(f64, usize)> =
                of_bucket.iter().map(|c| (c.error, c.codec)).filter(|c| c.0 < error).collect();
            codecs.sort_by(|a, b| a.0.total_cmp(&b.0));
            codecs.dedup();
            let fits = codecs.into_iter().find(|(_, codec)| {
                picks[bucket] = fastest(of_bucket, *codec);
                self.seconds(picks) <= limit
            });
            if fits.is_none() {
                picks[bucket] = kept;
            }
        }
    }

    fn finished(&self, picks: &[usize]) -> Plan {
        let picked = || self.candidates.iter().zip(picks).map(|(all, &pick)| &all[pick]);
        let prices: Vec<Price> = picked().map(|candidate| candidate.price).collect();
        let prediction = iteration::predict(self.measured, &prices);
        Plan {
            assignments: picked().map(|candidate| candidate.assignment.clone()).collect(),
            loss: picked().map(|candidate| candidate.error).sum(),
            predicted_s: prediction.exchanges_s(),
            iteration_s: prediction.seconds,
            raw_iteration_s: self.seconds(&self.all_raw()),
            prices,
            asked: String::new(),
        }
    }
}

/// The cheapest candidate of one codec; that of raw for a bucket that cannot have it.
fn fastest(candidates: &[Candidate], codec: usize) -> usize {
    let of_codec = |wanted: usize| {
        let indices = (0..candidates.len()).filter(move |&index| candidates[index].codec == wanted);
        indices.min_by(|&a, &b| candidates[a].price.alone_s.total_cmp(&candidates[b].price.alone_s))
    };
    of_codec(codec).or_else(|| of_codec(candidates[0].codec)).expect("every bucket can travel raw")
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
