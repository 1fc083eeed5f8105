//! One search on one cluster: experts, then candidates in the order of their bounds.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rayon::prelude::*;

use super::bound::bound_s;
use super::candidate::{Candidate, Expert, deeper};
use super::evaluate::{Verdict, evaluate};
use super::known::{Guess, Known, Least, Seen, faster};
use super::outcome::{Outcome, Overlap, simulated_s};
use super::pin::Pin;
use super::rule::Rule;
use super::{Found, Planner};
use crate::Error;
use crate::cluster::Cluster;
use crate::cost::Division;

/// How many plans are played through at least, if there are so many, and at most.
const PLAYED: Range<usize> = 20..200;

/// The closed form exceeds what playing gives by less than this factor.
const SLACK: f64 = 1.05;

/// The time of a plan becomes what it takes when it is played through.
fn play(outcome: &mut Outcome, overlap: Overlap) {
    if let Some(seconds) = simulated_s(outcome, overlap) {
        outcome.seconds = seconds;
    }
}

/// Plans played through, the fastest first; the closed form says in which order, and which are too
/// slow to be played.
fn played(mut found: Vec<Outcome>, overlap: Overlap) -> Vec<Outcome> {
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let mut best = f64::INFINITY;
    let mut count = 0;
    for outcome in &mut found {
        let needed = outcome.seconds < SLACK * best && count < PLAYED.end;
        if !needed && count >= PLAYED.start {
            break;
        }
        play(outcome, overlap);
        best = best.min(outcome.seconds);
        count += 1;
    }
    found.truncate(count);
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    found
}

/// One search.
pub(super) struct Round<'a> {
    planner: &'a Planner,
    cluster: &'a Cluster,
    /// The bits of the fastest plan's seconds; numbers above 0 sort like their bits.
    best: AtomicU64,
    found: Mutex<Vec<Outcome>>,
    least_bytes: Mutex<f64>,
    solved: AtomicUsize,
    /// What is known of candidates.
    seen: Mutex<Seen>,
    /// What was known before, and how much faster than then links are at most.
    history: Vec<(f64, &'a Seen)>,
}

impl<'a> Round<'a> {
    pub fn new(planner: &'a Planner, cluster: &'a Cluster) -> Round<'a> {
        let known = |(before, seen): &'a (Cluster, Seen)| Some((faster(before, cluster)?, seen));
        let history = planner.history.iter().filter_map(known).collect();
        Round {
            planner,
            cluster,
            best: AtomicU64::new(f64::INFINITY.to_bits()),
            found: Mutex::default(),
            least_bytes: Mutex::new(f64::INFINITY),
            solved: AtomicUsize::new(0),
            seen: Mutex::default(),
            history,
        }
    }

    /// The fastest of some candidates.
    pub fn best_of(&self, list: &[Candidate]) -> Result<Outcome, f64> {
        let fastest = AtomicU64::new(f64::INFINITY.to_bits());
        let mut ordered: Vec<(Known, &Candidate)> =
            list.iter().filter_map(|one| Some((self.known(one)?, one))).collect();
        ordered.sort_by(|(a, _), (b, _)| a.expected_s().total_cmp(&b.expected_s()));
        let verdict = |(known, one): &(Known, &Candidate)| {
            if known.may_beat(f64::from_bits(fastest.load(Ordering::Relaxed))) {
                return self.verdict(one, *known, &fastest);
            }
            self.remember(one, *known);
            Some(match known.least {
                Least::Seconds(seconds) => Verdict::TooSlow(seconds),
                Least::Bytes(bytes) => Verdict::TooLarge(bytes),
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

    fn verdict(&self, candidate: &Candidate, known: Known, fastest: &AtomicU64) -> Option<Verdict> {
        let prepared = self.planner.prepared(candidate)?;
        let enough_s = || f64::from_bits(fastest.load(Ordering::Relaxed));
        let settings = &self.planner.settings;
        let verdict = evaluate(self.cluster, prepared, candidate, settings, &enough_s);
        let known = match &verdict {
            Verdict::Found(outcome) => {
                fastest.fetch_min(outcome.seconds.to_bits(), Ordering::Relaxed);
                self.best.fetch_min(outcome.seconds.to_bits(), Ordering::Relaxed);
                self.found.lock().expect("no thread has panicked").push((**outcome).clone());
                let least = Least::Seconds(outcome.bound_s.min(outcome.seconds));
                let found_s = outcome.seconds.min(outcome.left_s);
                let plan = match outcome.waits() {
                    true => Guess::NONE,
                    false => Guess::found(found_s, outcome.computed_s(settings.overlap)),
                };
                Known { least, plan, ..known }
            }
            Verdict::TooLarge(bytes) => {
                let mut least = self.least_bytes.lock().expect("no thread has panicked");
                *least = least.min(*bytes);
                Known { least: Least::Bytes(*bytes), ..known }
            }
            Verdict::TooSlow(seconds) => Known { least: Least::Seconds(*seconds), ..known },
            Verdict::Impossible => Known { least: Least::Bytes(f64::INFINITY), ..known },
        };
        self.remember(candidate, known);
        Some(verdict)
    }

    fn remember(&self, candidate: &Candidate, known: Known) {
        self.seen.lock().expect("no thread has panicked").insert(candidate.clone(), known);
    }

    /// What is known of a candidate: its arithmetic, or what earlier searches say.
    fn known(&self, candidate: &Candidate) -> Option<Known> {
        let before = |(faster, seen): &(f64, &Seen)| Some(seen.get(candidate)?.on(*faster));
        let all = self.history.iter().filter_map(before);
        all.reduce(Known::and).or_else(|| {
            let prepared = self.planner.prepared(candidate)?;
            let settings = &self.planner.settings;
            let seconds = bound_s(self.cluster, prepared, candidate, settings);
            let hides = settings.overlap.sync / candidate.micro_batches as f64;
            Some(Known::arithmetic(seconds, hides))
        })
    }

    /// Candidates with what is known of them, those first that are expected to be fastest.
    pub fn bounded(&self, all: &[Candidate]) -> Vec<(Known, Candidate)> {
        let bound = |candidate: &Candidate| Some((self.known(candidate)?, candidate.clone()));
        let mut bounded: Vec<(Known, Candidate)> = all.par_iter().filter_map(bound).collect();
        bounded.sort_by(|(a, _), (b, _)| a.expected_s().total_cmp(&b.expected_s()));
        bounded
    }

    /// Evaluates every candidate that may be faster than the best plan.
    pub fn evaluate(&self, bounded: &[(Known, Candidate)]) {
        bounded.par_iter().with_max_len(1).for_each(|(known, candidate)| {
            if known.may_beat(f64::from_bits(self.best.load(Ordering::Relaxed))) {
                self.solved.fetch_add(1, Ordering::Relaxed);
                self.verdict(candidate, *known, &self.best);
            } else {
                self.remember(candidate, *known);
            }
        });
    }

    /// The best candidate on meshes of one more dimension, and the best of such that were looked at
    /// before.
    pub fn deeper(&self) -> Vec<Candidate> {
        let found = self.found.lock().expect("no thread has panicked");
        let free = found.iter().filter(|plan| plan.candidate.rule == Rule::Free);
        let best = free.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let mut deep = best.map_or_else(Vec::new, |plan| deeper(&self.freed(&plan.candidate)));
        let remembered = self.remembered().filter(|one| !deep.contains(one));
        deep.extend(remembered);
        deep
    }

    /// The best candidate of those of the last search that were on three dimensions.
    fn remembered(&self) -> Option<Candidate> {
        let (_, seen) = self.history.last()?;
        let size = self.cluster.size();
        let fits = |one: &Candidate| one.is_deep() && one.devices() <= size;
        let deep = seen.iter().filter(|(candidate, _)| fits(candidate));
        let best = deep.min_by(|(_, a), (_, b)| a.expected_s().total_cmp(&b.expected_s()));
        best.map(|(candidate, _)| candidate.clone())
    }

    /// A candidate with parameters divided as is best, where that may be.
    fn freed(&self, candidate: &Candidate) -> Candidate {
        let division = match self.cluster.kinds.is_empty() {
            true => Division::Each,
            false => candidate.division,
        };
        Candidate { division, ..candidate.clone() }
    }

    /// What was found, and what is known now.
    pub fn finish(
        self,
        bounded: &[(Known, Candidate)],
        mut experts: Vec<(Expert, Result<Outcome, f64>)>,
    ) -> Result<(Found, Seen), Error> {
        let found = std::mem::take(&mut *self.found.lock().expect("no thread has panicked"));
        let overlap = self.planner.settings.overlap;
        for (_, plan) in &mut experts {
            plan.iter_mut().for_each(|outcome| play(outcome, overlap));
        }
        let found: Vec<Outcome> = found
            .into_iter()
            .chain(experts.iter().filter_map(|(_, plan)| plan.clone().ok()))
            .collect();
        let mut found = played(found, overlap);
        let seen = std::mem::take(&mut *self.seen.lock().expect("no thread has panicked"));
        let least = seen.values().map(|known| known.bound_s()).fold(f64::INFINITY, f64::min);
        let solved = self.solved.load(Ordering::Relaxed);
        if found.is_empty() {
            return Err(self.too_large());
        }
        let best = found.remove(0);
        let bound_s = least.min(best.seconds);
        let candidates = [bounded.len(), solved];
        Ok((Found { best, others: found, experts, bound_s, candidates }, seen))
    }

    /// No mesh can be cut as is asked for.
    fn impossible(&self) -> Error {
        let devices = self.cluster.size();
        let pins: Vec<String> = self.planner.settings.pins.iter().map(Pin::to_string).collect();
        if pins.is_empty() {
            return Error::impossible(format!("no mesh of {devices} devices can run the model"));
        }
        let found = format!("no mesh of {devices} devices allows all pins: {}", pins.join("; "));
        Error::impossible(found).with_hint("an axis must be as long as a multiple of its dimension")
    }

    fn too_large(&self) -> Error {
        let least = *self.least_bytes.lock().expect("no thread has panicked");
        if !least.is_finite() {
            return self.impossible();
        }
        let memory = self.cluster.pace().memory_bytes * (1.0 - self.planner.settings.reserve);
        Error::too_large("the smallest plan", least, memory)
    }
}
