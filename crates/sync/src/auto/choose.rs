//! The choice of a plan.
//!
//! The iteration is simulated ([`crate::auto::timeline`]), and every bucket gets the candidate with which
//! it is shortest. Up to one percent more time is then spent on smaller errors, always in the bucket
//! where a second reduces the error most (Fox, "Discrete optimization via marginal analysis", 1966). In
//! the end a second reduces the error about equally in all buckets that compete for time, as under one
//! Lagrange multiplier: reverse water-filling (Cover and Thomas, "Elements of information theory",
//! 10.3.3). Buckets early in the backward pass have time that later ones cannot use. So a faster link
//! means less error, not an idle wire. A plan that is not at least two percent faster than raw is dropped
//! for raw, so a lossy codec is used only where it is seen to help.

use std::collections::HashSet;

use crate::auto::candidates::Candidate;
use crate::auto::plan::{Assignment, GAIN_MIN, Plan};
use crate::auto::timeline::{self, Measured, Price};

/// The share of the iteration that smaller errors may cost in all: so little that the plan is about as fast
/// as the best fixed choice.
const SLACK: f64 = 0.01;

/// Ratio of time on the wire to that of the fastest plan of one codec, below which another plan is unlike it.
const FEWER_BYTES: f64 = 0.75;

/// Returns the fastest plan for what was measured, by the rules above. `candidates[bucket]` begins with raw.
pub(crate) fn choose(measured: &Measured, candidates: &[Vec<Candidate>]) -> Plan {
    let search = Search { measured, candidates };
    let raw = search.all_raw();
    let raw_s = search.seconds(&raw);
    let (mut picks, best) = search.descend(raw.clone(), raw_s);
    search.fill(&mut picks, best * (1.0 + SLACK));
    if search.seconds(&picks) > raw_s * (1.0 - GAIN_MIN) {
        picks = raw;
    }
    search.finished(&picks)
}

/// Returns the plan in which everything travels raw.
pub(crate) fn raw(measured: &Measured, candidates: &[Vec<Candidate>]) -> Plan {
    let search = Search { measured, candidates };
    search.finished(&search.all_raw())
}

/// Returns up to three plans of one codec each, none of them raw, that are unlike each other: the
/// fastest, the fastest of those with less than a tenth of its error, and the fastest of those that
/// send [a quarter less](FEWER_BYTES). Predictions are least certain where a plan trades bytes for
/// processor time.
pub(crate) fn fixed(measured: &Measured, candidates: &[Vec<Candidate>]) -> Vec<Plan> {
    let search = Search { measured, candidates };
    let throughout = |codec| search.finished(&search.throughout(|_| codec));
    let raw = search.finished(&search.all_raw());
    let plans = search.codecs().into_iter().map(throughout);
    let plans: Vec<Plan> = plans.filter(|plan| plan.hash() != raw.hash()).collect();
    let fastest_of = |wanted: &dyn Fn(&Plan) -> bool| {
        let of = plans.iter().filter(|plan| wanted(plan));
        of.min_by(|a, b| a.iteration_s.total_cmp(&b.iteration_s)).cloned()
    };
    let Some(first) = fastest_of(&|_| true) else { return Vec::new() };
    let exact = fastest_of(&|plan| plan.codec_error < first.codec_error / 10.0);
    let short = fastest_of(&|plan| plan.wire_s() < first.wire_s() * FEWER_BYTES);
    [Some(first), short, exact].into_iter().flatten().collect()
}

/// Returns `plan` with its prices under what is measured now; an assignment that is not a candidate
/// counts as raw.
pub(crate) fn priced(measured: &Measured, candidates: &[Vec<Candidate>], plan: &Plan) -> Plan {
    let find = |(of_bucket, assignment): (&Vec<Candidate>, &Assignment)| {
        let same = of_bucket.iter().position(|candidate| candidate.assignment == *assignment);
        same.unwrap_or_else(|| fastest(of_bucket, of_bucket[0].codec, Partitions::Any))
    };
    let picks: Vec<usize> = candidates.iter().zip(&plan.assignments).map(find).collect();
    Search { measured, candidates }.finished(&picks)
}

/// A change of one bucket's pick.
struct Change {
    pick: usize,
    /// Weighted error, times elements, that it saves per second.
    worth: f64,
}

/// The search: for every bucket the place of its candidate.
struct Search<'a> {
    measured: &'a Measured,
    candidates: &'a [Vec<Candidate>],
}

impl Search<'_> {
    fn all_raw(&self) -> Vec<usize> {
        self.throughout(|of_bucket| of_bucket[0].codec)
    }

    /// Returns a candidate of one codec for each bucket. It compares two sets and returns the faster
    /// one: the candidates that are done first by themselves, and those in the fewest partitions, which
    /// use less of what buckets share.
    fn throughout(&self, codec: impl Fn(&[Candidate]) -> usize) -> Vec<usize> {
        let picks = |few: Partitions| {
            let pick = |of_bucket: &Vec<Candidate>| fastest(of_bucket, codec(of_bucket), few);
            self.candidates.iter().map(pick).collect::<Vec<_>>()
        };
        let (few, any) = (picks(Partitions::Few), picks(Partitions::Any));
        if self.seconds(&any) < self.seconds(&few) { any } else { few }
    }

    fn seconds(&self, picks: &[usize]) -> f64 {
        let picked = self.candidates.iter().zip(picks);
        timeline::seconds(self.measured, picked.map(|(of_bucket, pick)| &of_bucket[*pick].price))
    }

    /// Improves `picks`, which take `best` seconds; returns the fastest picks that it finds, and their
    /// time.
    fn descend(&self, mut picks: Vec<usize>, mut best: f64) -> (Vec<usize>, f64) {
        // A few passes at most, so that planning stays cheap.
        for _ in 0..3 {
            let before = best;
            for bucket in 0..self.candidates.len() {
                best = self.improve(bucket, &mut picks, best);
            }
            if best >= before {
                break;
            }
        }
        // From raw, no bucket may help alone while all together do: try each codec throughout.
        for codec in self.codecs() {
            let all = self.throughout(|_| codec);
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

    /// Gives `bucket` the candidate with which the iteration is shortest; returns the new time.
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

    /// Gives buckets candidates of smaller errors, as long as the iteration keeps to `limit`: always the
    /// change that saves most error for what it costs.
    fn fill(&self, picks: &mut [usize], limit: f64) {
        let mut refused: Vec<HashSet<usize>> = vec![HashSet::new(); picks.len()];
        let mut changes: Vec<Option<Change>> =
            (0..picks.len()).map(|bucket| self.change(bucket, picks, &refused[bucket])).collect();
        let worth = |change: &Option<Change>| change.as_ref().map_or(0.0, |change| change.worth);
        while let Some(bucket) =
            (0..picks.len()).max_by(|&a, &b| worth(&changes[a]).total_cmp(&worth(&changes[b])))
            && let Some(Change { pick, .. }) = changes[bucket]
        {
            let kept = std::mem::replace(&mut picks[bucket], pick);
            if self.seconds(picks) > limit {
                // Later changes only take more time.
                picks[bucket] = kept;
                refused[bucket].insert(pick);
            }
            changes[bucket] = self.change(bucket, picks, &refused[bucket]);
        }
    }

    /// Returns the change of one bucket that saves most error for what it costs, if any saves some.
    fn change(&self, bucket: usize, picks: &[usize], refused: &HashSet<usize>) -> Option<Change> {
        let all = &self.candidates[bucket];
        let now = &all[picks[bucket]];
        let open = (0..all.len()).filter(|pick| !refused.contains(pick));
        let saving = open.filter(|pick| all[*pick].error < now.error);
        let changes = saving.map(|pick| {
            let saved = (now.error - all[pick].error) * now.elements as f64;
            let cost_s = self.cost_s(&all[pick].price) - self.cost_s(&now.price);
            Change { pick, worth: saved / cost_s.max(f64::MIN_POSITIVE) }
        });
        changes.max_by(|a, b| a.worth.total_cmp(&b.worth))
    }

    /// Returns the time for which an exchange occupies what all buckets share: network and processor.
    fn cost_s(&self, price: &Price) -> f64 {
        let Price { wire_s, cpu_s, move_s, commit_s, .. } = price;
        let computed_s = cpu_s + move_s;
        let shared_s = match self.measured.shares_cores {
            true => wire_s + computed_s,
            false => wire_s.max(computed_s),
        };
        shared_s + commit_s
    }

    fn finished(&self, picks: &[usize]) -> Plan {
        let picked = || self.candidates.iter().zip(picks).map(|(all, &pick)| &all[pick]);
        let prices: Vec<Price> = picked().map(|candidate| candidate.price).collect();
        let prediction = timeline::predict(self.measured, &prices);
        Plan {
            assignments: picked().map(|candidate| candidate.assignment.clone()).collect(),
            codec_error: picked().map(|candidate| candidate.error).sum(),
            predicted_s: prediction.exchanges_s(),
            iteration_s: prediction.seconds,
            raw_iteration_s: self.seconds(&self.all_raw()),
            prices,
            fingerprint: String::new(),
        }
    }
}

/// The partitions that a pick may have.
#[derive(Clone, Copy, PartialEq)]
enum Partitions {
    /// As few as any candidate of its codec.
    Few,
    Any,
}

/// Returns the candidate of one codec that is done first if it has the network to itself; the raw
/// candidate for a bucket that cannot have this codec.
fn fastest(candidates: &[Candidate], codec: usize, partitions: Partitions) -> usize {
    let of_codec = |wanted: usize| {
        let indices = || (0..candidates.len()).filter(|&index| candidates[index].codec == wanted);
        let least = indices().map(|index| candidates[index].assignment.partitions).min();
        let least = least.filter(|_| partitions == Partitions::Few);
        let indices = indices().filter(|&index| {
            least.is_none_or(|least| candidates[index].assignment.partitions == least)
        });
        indices.min_by(|&a, &b| candidates[a].price.alone_s.total_cmp(&candidates[b].price.alone_s))
    };
    of_codec(codec).or_else(|| of_codec(candidates[0].codec)).expect("every bucket can travel raw")
}

#[cfg(test)]
mod tests;
