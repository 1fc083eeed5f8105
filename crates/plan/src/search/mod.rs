//! The search: which mesh, how many stages and micro-batches, and the best strategies for them.
//!
//! Every candidate has a bound, the time of its arithmetic alone. Expert plans are worked out
//! first; then candidates in the order of their bounds, until no bound is below the best plan. Of
//! the best twenty the pipelines are played through, and the fastest is taken. Nothing that was
//! left out can be faster than its bound, so the least of all bounds says how far from the best
//! the plan can be.

mod candidate;
mod chain;
mod evaluate;
mod outcome;
mod prepare;
mod rule;

pub use candidate::{Candidate, Expert, candidates, experts};
pub use chain::{Chain, Choice, Pins};
pub use evaluate::{Recompute, Settings, Verdict, best_of, bound_s, costs, evaluate};
pub use outcome::{Outcome, Overlap, StageOutcome, estimate_s, simulated_s, tail_s};
pub use prepare::{Class, Prepared};
pub use rule::Rule;

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rayon::prelude::*;
use thinwire_model::Graph;

use crate::Error;
use crate::cluster::Cluster;
use crate::cost::Sharding;

/// What is known of candidates.
type Seen = HashMap<Candidate, Known>;

/// What is known of a candidate.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// No plan of it takes less than these seconds.
    Seconds(f64),
    /// It does not fit: it needs these bytes of a device's memory, or infinitely many.
    Bytes(f64),
}

impl Known {
    /// The same as seconds.
    fn bound_s(self) -> f64 {
        match self {
            Known::Seconds(seconds) => seconds,
            Known::Bytes(_) => f64::INFINITY,
        }
    }
}

/// How many plans are played through.
const PLAYED: usize = 20;
/// What is known of how many clusters is kept.
const HISTORY: usize = 8;

/// A model that is planned, perhaps several times, for clusters that differ.
pub struct Planner {
    settings: Settings,
    batch: usize,
    /// By sequences of a micro-batch.
    prepared: HashMap<usize, Prepared>,
    graph: Box<dyn Fn(usize) -> Result<Graph, Error> + Send + Sync>,
    /// The clusters that were planned for last, and what their candidates came to.
    history: Vec<(Cluster, Seen)>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The fastest plan.
    pub best: Outcome,
    /// The next fastest ones.
    pub others: Vec<Outcome>,
    /// The best of each kind of expert plan, or the bytes that it would need.
    pub experts: Vec<(Expert, Result<Outcome, f64>)>,
    /// No plan takes less than this many seconds.
    pub bound_s: f64,
    /// How many candidates there were, and of how many all strategies were looked at.
    pub candidates: [usize; 2],
}

impl Found {
    /// The part of its time that the plan may lose to the best one.
    pub fn gap(&self) -> f64 {
        (1.0 - self.bound_s / self.best.seconds).max(0.0)
    }
}

impl Planner {
    /// A planner for steps of `batch` sequences; `graph` builds the model for so many.
    pub fn new(
        batch: usize,
        settings: Settings,
        graph: impl Fn(usize) -> Result<Graph, Error> + Send + Sync + 'static,
    ) -> Planner {
        Planner {
            settings,
            batch,
            prepared: HashMap::new(),
            graph: Box::new(graph),
            history: Vec::new(),
        }
    }

    /// The model for a candidate's micro-batches, once there was a plan.
    pub fn prepared(&self, candidate: &Candidate) -> Option<&Prepared> {
        self.prepared.get(&(self.batch / candidate.micro_batches))
    }

    /// Sequences of a step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The best plan for a cluster. What an earlier plan has learnt is used again.
    ///
    /// # Errors
    /// If the model cannot be built or cut into blocks, or nothing fits the devices' memory.
    pub fn plan(&mut self, cluster: &Cluster) -> Result<Found, Error> {
        let blocks = (self.graph)(1)?.blocks.len();
        let all = candidates(cluster, self.batch, blocks);
        let of_expert =
            Expert::ALL.map(|expert| (expert, experts(cluster, self.batch, blocks, expert)));
        self.prepare(all.iter().chain(of_expert.iter().flat_map(|(_, list)| list)))?;
        let round = Round::new(self, cluster);
        let mut expert_plans = Vec::new();
        for (expert, list) in &of_expert {
            expert_plans.push((*expert, round.best_of(list)));
        }
        let bounded = round.bounded(&all);
        round.evaluate(&bounded);
        let found = round.finish(&bounded, expert_plans)?;
        let seen = round.seen.into_inner().expect("no thread has panicked");
        self.history.retain(|(before, _)| before != cluster);
        self.history.push((cluster.clone(), seen));
        self.history.drain(..self.history.len().saturating_sub(HISTORY));
        Ok(found)
    }

    /// Builds the model for every size of micro-batch.
    fn prepare<'a>(&mut self, all: impl Iterator<Item = &'a Candidate>) -> Result<(), Error> {
        let mut sizes: Vec<usize> =
            all.map(|candidate| self.batch / candidate.micro_batches).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.retain(|size| !self.prepared.contains_key(size));
        let build = |size: &usize| Ok((*size, Prepared::new((self.graph)(*size)?)?));
        let built: Vec<_> = sizes.par_iter().map(build).collect::<Result<_, Error>>()?;
        self.prepared.extend(built);
        Ok(())
    }
}

/// One search.
struct Round<'a> {
    planner: &'a Planner,
    cluster: &'a Cluster,
    /// The bits of the fastest plan's seconds; numbers above 0 sort like their bits.
    best: AtomicU64,
    found: Mutex<Vec<Outcome>>,
    least_bytes: Mutex<f64>,
    solved: AtomicUsize,
    /// What is known of candidates.
    seen: Mutex<Seen>,
    /// What was known before, already made valid for this cluster.
    known: Seen,
}

impl<'a> Round<'a> {
    fn new(planner: &'a Planner, cluster: &'a Cluster) -> Round<'a> {
        let mut known = Seen::new();
        for (before, seen) in &planner.history {
            let Some(faster) = faster(before, cluster) else { continue };
            for (candidate, now) in seen {
                let scaled = match *now {
                    Known::Seconds(seconds) => Known::Seconds(seconds / faster),
                    Known::Bytes(bytes) => Known::Bytes(bytes),
                };
                let best = known.entry(candidate.clone()).or_insert(scaled);
                if best.bound_s() < scaled.bound_s() {
                    *best = scaled;
                }
            }
        }
        Round {
            planner,
            cluster,
            best: AtomicU64::new(f64::INFINITY.to_bits()),
            found: Mutex::default(),
            least_bytes: Mutex::new(f64::INFINITY),
            solved: AtomicUsize::new(0),
            seen: Mutex::default(),
            known,
        }
    }

    /// The fastest of some candidates.
    fn best_of(&self, list: &[Candidate]) -> Result<Outcome, f64> {
        let fastest = AtomicU64::new(f64::INFINITY.to_bits());
        let mut ordered: Vec<(Known, &Candidate)> =
            list.iter().map(|one| (self.known(one), one)).collect();
        ordered.sort_by(|(a, _), (b, _)| a.bound_s().total_cmp(&b.bound_s()));
        let verdict = |(known, one): &(Known, &Candidate)| {
            if known.bound_s() < f64::from_bits(fastest.load(Ordering::Relaxed)) {
                return self.verdict(one, &fastest);
            }
            self.remember(one, *known);
            Some(match *known {
                Known::Seconds(seconds) => Verdict::TooSlow(seconds),
                Known::Bytes(bytes) => Verdict::TooLarge(bytes),
            })
        };
        let verdicts: Vec<Verdict> =
            ordered.par_iter().with_max_len(1).filter_map(verdict).collect();
        let mut best: Result<Outcome, f64> = Err(f64::INFINITY);
        for verdict in verdicts {
            best = match (verdict, best) {
                (Verdict::Found(outcome), Ok(best)) if best.seconds <= outcome.seconds => Ok(best),
                (Verdict::Found(outcome), _) => Ok(*outcome),
                (Verdict::TooLarge(bytes), Err(least)) => Err(least.min(bytes)),
                (_, best) => best,
            };
        }
        best
    }

    fn verdict(&self, candidate: &Candidate, fastest: &AtomicU64) -> Option<Verdict> {
        let prepared = self.planner.prepared(candidate)?;
        let enough_s = || f64::from_bits(fastest.load(Ordering::Relaxed));
        let settings = &self.planner.settings;
        let verdict = evaluate(self.cluster, prepared, candidate, settings, &enough_s);
        match &verdict {
            Verdict::Found(outcome) => {
                fastest.fetch_min(outcome.seconds.to_bits(), Ordering::Relaxed);
                self.best.fetch_min(outcome.seconds.to_bits(), Ordering::Relaxed);
                self.found.lock().expect("no thread has panicked").push((**outcome).clone());
                let least = outcome.bound_s.min(outcome.seconds);
                self.remember(candidate, Known::Seconds(least));
            }
            Verdict::TooLarge(bytes) => {
                let mut least = self.least_bytes.lock().expect("no thread has panicked");
                *least = least.min(*bytes);
                self.remember(candidate, Known::Bytes(*bytes));
            }
            Verdict::TooSlow(seconds) => self.remember(candidate, Known::Seconds(*seconds)),
            Verdict::Impossible => self.remember(candidate, Known::Bytes(f64::INFINITY)),
        }
        Some(verdict)
    }

    fn remember(&self, candidate: &Candidate, known: Known) {
        self.seen.lock().expect("no thread has panicked").insert(candidate.clone(), known);
    }

    /// What an earlier search says of a candidate.
    fn known(&self, candidate: &Candidate) -> Known {
        self.known.get(candidate).copied().unwrap_or(Known::Seconds(0.0))
    }

    /// Candidates with their bounds, the least first.
    fn bounded(&self, all: &[Candidate]) -> Vec<(f64, Candidate)> {
        let settings = &self.planner.settings;
        let bound = |candidate: &Candidate| {
            let prepared = self.planner.prepared(candidate)?;
            let arithmetic = bound_s(self.cluster, prepared, candidate, settings);
            Some((arithmetic.max(self.known(candidate).bound_s()), candidate.clone()))
        };
        let mut bounded: Vec<(f64, Candidate)> = all.par_iter().filter_map(bound).collect();
        bounded.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        bounded
    }

    /// Evaluates every candidate whose bound is below the best plan.
    fn evaluate(&self, bounded: &[(f64, Candidate)]) {
        bounded.par_iter().with_max_len(1).for_each(|(bound, candidate)| {
            let best = f64::from_bits(self.best.load(Ordering::Relaxed));
            if *bound < best {
                self.solved.fetch_add(1, Ordering::Relaxed);
                self.verdict(candidate, &self.best);
            } else {
                let known = self.known(candidate);
                let bytes = matches!(known, Known::Bytes(_));
                self.remember(candidate, if bytes { known } else { Known::Seconds(*bound) });
            }
        });
    }

    fn finish(
        &self,
        bounded: &[(f64, Candidate)],
        mut experts: Vec<(Expert, Result<Outcome, f64>)>,
    ) -> Result<Found, Error> {
        let mut found = std::mem::take(&mut *self.found.lock().expect("no thread has panicked"));
        found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        found.truncate(PLAYED);
        found.extend(experts.iter().filter_map(|(_, plan)| plan.clone().ok()));
        let overlap = self.planner.settings.overlap;
        let played = |outcome: &mut Outcome| {
            if let Some(seconds) = simulated_s(outcome, overlap) {
                outcome.seconds = seconds;
            }
        };
        found.iter_mut().for_each(played);
        experts.iter_mut().filter_map(|(_, plan)| plan.as_mut().ok()).for_each(played);
        found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let seen = self.seen.lock().expect("no thread has panicked");
        let least = seen.values().map(|known| known.bound_s()).fold(f64::INFINITY, f64::min);
        let solved = self.solved.load(Ordering::Relaxed);
        if found.is_empty() {
            return Err(self.too_large());
        }
        let best = found.remove(0);
        let bound_s = least.min(best.seconds);
        Ok(Found { best, others: found, experts, bound_s, candidates: [bounded.len(), solved] })
    }

    fn too_large(&self) -> Error {
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        let least = *self.least_bytes.lock().expect("no thread has panicked");
        let memory = self.cluster.pace().memory_bytes * (1.0 - self.planner.settings.reserve);
        let found = format!("the smallest plan needs {:.2} GiB per device", gib(least));
        let hint = format!(
            "devices with {:.0} GiB, {:.1} times as many devices, or a smaller model would do",
            (gib(least) / (1.0 - self.planner.settings.reserve)).ceil(),
            least / memory
        );
        Error::memory(format!("{found}, expected at most {:.2} GiB", gib(memory))).with_hint(hint)
    }
}

/// How much faster any plan can be on a cluster than on another one with the same devices; none
/// if they differ in more than their links.
fn faster(before: &Cluster, now: &Cluster) -> Option<f64> {
    let same = before.devices == now.devices && before.kinds == now.kinds;
    if !same || before.levels.len() != now.levels.len() {
        return None;
    }
    let mut most: f64 = 1.0;
    for (before, now) in before.levels.iter().zip(&now.levels) {
        if before.size != now.size {
            return None;
        }
        most = most.max(now.bytes_per_s / before.bytes_per_s);
        if before.latency_s > now.latency_s {
            most = most.max(before.latency_s / now.latency_s);
        }
    }
    Some(most)
}

/// What is divided in a plan, as people call it.
pub fn zero_stage(sharding: Sharding) -> u8 {
    match sharding {
        Sharding::None => 0,
        Sharding::Optimizer => 1,
        Sharding::Parameters => 3,
    }
}
