//! One search on one cluster: expert plans first, then candidates in the order of their bounds.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::candidate::deeper;
use super::simulate::{Fastest, SLACK, order, refined, simulate_all, simulate_schedules};
use super::{
    Candidate, Evaluated, Expert, Found, Outcome, Pin, Planner, Rule, Settings, bound_s, evaluate,
    shortfall,
};
use crate::cost::Division;
use crate::{Cluster, Error, TooLarge};

/// Search under way.
pub(super) struct Round<'a> {
    planner: &'a Planner,
    cluster: &'a Cluster,
    settings: &'a Settings,
    /// Fastest plan; its time is the larger of its closed form and its simulation.
    best: Fastest,
    found: Mutex<Vec<Outcome>>,
    too_large: Mutex<Option<TooLarge>>,
    solved: AtomicUsize,
    /// Lower bound in seconds of every candidate; infinite if no plan of the candidate fits.
    bounds: Mutex<HashMap<Candidate, f64>>,
}

/// Search that has found no plan.
#[derive(Debug)]
pub(super) struct Unfound {
    /// Reason.
    pub error: Error,
    /// Lower bound in seconds on all plans of its candidates; infinite if none fits.
    pub bound_s: f64,
    /// Number of candidates, and number of those whose strategies were solved.
    pub candidates: [usize; 2],
}

impl Unfound {
    /// Returns the error of this search, with the bound of both searches.
    pub fn and(self, other: &Unfound) -> Unfound {
        let candidates = [0, 1].map(|place| self.candidates[place] + other.candidates[place]);
        Unfound { bound_s: self.bound_s.min(other.bound_s), candidates, ..self }
    }
}

impl From<Error> for Unfound {
    fn from(error: Error) -> Unfound {
        Unfound { error, bound_s: f64::INFINITY, candidates: [0, 0] }
    }
}

impl<'a> Round<'a> {
    /// Returns a search for plans. With a known plan, only faster ones are searched.
    pub fn new(
        planner: &'a Planner,
        cluster: &'a Cluster,
        settings: &'a Settings,
        known: Option<&Outcome>,
    ) -> Round<'a> {
        let best = Fastest::default();
        known.into_iter().for_each(|plan| best.meet(&plan.candidate, plan.seconds));
        Round {
            planner,
            cluster,
            settings,
            best,
            found: Mutex::default(),
            too_large: Mutex::default(),
            solved: AtomicUsize::new(0),
            bounds: Mutex::default(),
        }
    }

    /// Returns the fastest plan of some candidates, or the fewest bytes that one of them needs.
    pub fn best_of(&self, list: &[Candidate]) -> Result<Outcome, f64> {
        let fastest = Fastest::default();
        let verdict = |(least_s, one): &(f64, Candidate)| {
            if *least_s < fastest.enough_s(one) {
                return self.verdict(one, *least_s, &fastest);
            }
            // The bound of a candidate that is not evaluated counts in the bound on all plans, too.
            self.record(one, *least_s);
            None
        };
        // One by one, since every plan that is found rules others out.
        let verdicts: Vec<Evaluated> =
            self.bounded(list).par_iter().with_max_len(1).filter_map(verdict).collect();
        let mut best: Result<Outcome, f64> = Err(f64::INFINITY);
        for verdict in verdicts {
            best = match (verdict, best) {
                (Evaluated::Found(outcome), Ok(best)) if best.seconds <= outcome.seconds => {
                    Ok(best)
                }
                (Evaluated::Found(outcome), _) => Ok(*outcome),
                (Evaluated::TooLarge(all), Err(least)) => Err(least.min(all.needed_bytes)),
                (_, best) => best,
            };
        }
        best
    }

    /// Evaluates a candidate whose arithmetic takes `least_s` seconds, and records its lower bound.
    fn verdict(&self, candidate: &Candidate, least_s: f64, fastest: &Fastest) -> Option<Evaluated> {
        let prepared = self.planner.prepared(candidate)?;
        let enough_s = || fastest.enough_s(candidate);
        let verdict = evaluate(self.cluster, prepared, candidate, self.settings, &enough_s);
        let bound_s = match &verdict {
            Evaluated::Found(outcome) => {
                self.meet(outcome, candidate, fastest);
                self.found.lock().expect("no thread has panicked").push((**outcome).clone());
                outcome.least_s()
            }
            Evaluated::TooLarge(all) => {
                let mut known_of_all = self.too_large.lock().expect("no thread has panicked");
                *known_of_all = Some(known_of_all.map_or(*all, |before| before.and(*all)));
                all.bound_s
            }
            Evaluated::TooSlow(seconds) => *seconds,
            Evaluated::Impossible => f64::INFINITY,
        };
        self.record(candidate, bound_s.max(least_s));
        Some(verdict)
    }

    /// Simulates a plan that may be the fastest, and records it with the larger of its two times.
    ///
    /// With the smaller time, the search would prune plans that are slower in closed form but faster in
    /// the simulation.
    fn meet(&self, outcome: &Outcome, candidate: &Candidate, fastest: &Fastest) {
        if outcome.seconds < fastest.enough_s(candidate) {
            let mut plan = outcome.clone();
            simulate_schedules(&mut plan, self.settings.overlap);
            let seconds = plan.seconds.max(outcome.seconds);
            fastest.meet(candidate, seconds);
            self.best.meet(candidate, seconds);
        }
    }

    fn record(&self, candidate: &Candidate, bound_s: f64) {
        self.bounds.lock().expect("no thread has panicked").insert(candidate.clone(), bound_s);
    }

    /// Returns candidates with the seconds of their arithmetic, the fastest first.
    pub fn bounded(&self, all: &[Candidate]) -> Vec<(f64, Candidate)> {
        let bound = |candidate: &Candidate| {
            let prepared = self.planner.prepared(candidate)?;
            let least_s = bound_s(self.cluster, prepared, candidate, self.settings);
            Some((least_s, candidate.clone()))
        };
        let mut bounded: Vec<(f64, Candidate)> = all.par_iter().filter_map(bound).collect();
        bounded.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        bounded
    }

    /// Evaluates every candidate that may be faster than the best plan.
    pub fn evaluate(&self, bounded: &[(f64, Candidate)]) {
        bounded.par_iter().with_max_len(1).for_each(|(least_s, candidate)| {
            if *least_s < self.best.enough_s(candidate) {
                self.solved.fetch_add(1, Ordering::Relaxed);
                self.verdict(candidate, *least_s, &self.best);
            } else {
                self.record(candidate, *least_s);
            }
        });
    }

    /// Returns the refinements of the best candidate on meshes of one more dimension.
    pub fn deeper(&self) -> Vec<Candidate> {
        let found = self.found.lock().expect("no thread has panicked");
        let free = found.iter().filter(|plan| plan.candidate.rule == Rule::Free);
        let best = free.min_by(|a, b| order(a, b));
        best.map_or_else(Vec::new, |plan| deeper(&self.freed(&plan.candidate)))
    }

    /// Returns a candidate whose parameters are sharded individually, if devices are equal.
    fn freed(&self, candidate: &Candidate) -> Candidate {
        let division = match self.cluster.kinds.is_empty() {
            true => Division::Each,
            false => candidate.division,
        };
        Candidate { division, ..candidate.clone() }
    }

    /// Returns the result of the search.
    pub fn finish(
        self,
        candidates: usize,
        mut experts: Vec<(Expert, Result<Outcome, f64>)>,
    ) -> Result<Found, Unfound> {
        let mut found = std::mem::take(&mut *self.found.lock().expect("no thread has panicked"));
        // Plans that another order of threads would have pruned are left out, so results are
        // deterministic.
        let most_s = self.best.seconds();
        // The bound of an optimal plan may be rounded above its time.
        let counts = |one: &Outcome| one.bound_s.min(one.seconds) <= most_s;
        found.retain(counts);
        found.iter_mut().for_each(|one| one.other_schedules.retain(counts));
        let overlap = self.settings.overlap;
        for (_, plan) in &mut experts {
            plan.iter_mut().for_each(|outcome| simulate_schedules(outcome, overlap));
        }
        let found: Vec<Outcome> = found
            .into_iter()
            .chain(experts.iter().filter_map(|(_, plan)| plan.clone().ok()))
            .collect();
        let mut found = simulate_all(found, overlap);
        let bounds = self.bounds.lock().expect("no thread has panicked");
        let least = bounds.values().copied().fold(f64::INFINITY, f64::min);
        let candidates = [candidates, self.solved.load(Ordering::Relaxed)];
        if found.is_empty() {
            return Err(Unfound { error: self.too_large(), bound_s: least, candidates });
        }
        let mut most_s = f64::INFINITY;
        for plan in &mut found {
            // Refining evaluates a candidate several times more: only plans that may become the fastest are worth it.
            if plan.least_s() < most_s
                && plan.seconds < SLACK * most_s
                && let Some(prepared) = self.planner.prepared(&plan.candidate)
            {
                *plan = refined(self.cluster, prepared, self.settings, plan, most_s);
                most_s = most_s.min(plan.seconds);
            }
        }
        found.sort_by(order);
        let best = found.remove(0);
        let bound_s = least.min(best.seconds);
        Ok(Found { best, others: found, experts, bound_s, candidates, subset: None })
    }

    /// Returns the error that no mesh can be cut as the user has asked.
    fn impossible(&self) -> Error {
        let devices = self.cluster.size();
        let pins: Vec<String> = self.settings.pins.iter().map(Pin::to_string).collect();
        if pins.is_empty() {
            return Error::impossible(format!("no mesh of {devices} devices can run the model"));
        }
        let found = format!("no mesh of {devices} devices allows all pins: {}", pins.join("; "));
        Error::impossible(found).with_hint(
            "the length of a pinned axis must be a multiple of the size of its dimension",
        )
    }

    fn too_large(&self) -> Error {
        let all = *self.too_large.lock().expect("no thread has panicked");
        let Some(all) = all else { return self.impossible() };
        shortfall::too_large("the smallest plan", all, self.cluster, self.settings.reserve)
    }
}
