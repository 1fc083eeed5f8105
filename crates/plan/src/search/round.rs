//! One search on one cluster: experts, then candidates in the order of their bounds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::bound::bound_s;
use super::candidate::{Candidate, Expert, deeper};
use super::evaluate::{Evaluated, evaluate};
use super::outcome::Outcome;
use super::pin::Pin;
use super::rule::Rule;
use super::settings::Settings;
use super::simulate::{Fastest, order, refined, simulate_all, simulate_schedules};
use super::warm_start::{Expectation, LowerBound, WarmStart, WarmStarts, faster};
use super::{Found, Planner, shortfall};
use crate::Error;
use crate::cluster::Cluster;
use crate::cost::Division;
use crate::error::TooLarge;

/// Search under way.
pub(super) struct Round<'a> {
    planner: &'a Planner,
    cluster: &'a Cluster,
    settings: &'a Settings,
    /// Fastest plan, by the larger of its closed form and its simulation.
    best: Fastest,
    found: Mutex<Vec<Outcome>>,
    too_large: Mutex<Option<TooLarge>>,
    solved: AtomicUsize,
    /// Warm starts for later searches.
    warm_starts: Mutex<WarmStarts>,
    /// Warm starts of earlier searches, with the largest factor by which links are faster now.
    history: Vec<(f64, &'a WarmStarts)>,
}

impl<'a> Round<'a> {
    pub fn new(planner: &'a Planner, cluster: &'a Cluster, settings: &'a Settings) -> Round<'a> {
        let budget = settings.activation_budget;
        let alike = planner.history.iter().filter(|past| past.activation_budget == budget);
        let history =
            alike.filter_map(|past| Some((faster(&past.cluster, cluster)?, &past.warm_starts)));
        Round {
            history: history.collect(),
            planner,
            cluster,
            settings,
            best: Fastest::default(),
            found: Mutex::default(),
            too_large: Mutex::default(),
            solved: AtomicUsize::new(0),
            warm_starts: Mutex::default(),
        }
    }

    /// Returns the fastest plan of some candidates, or the least bytes that one needs.
    pub fn best_of(&self, list: &[Candidate]) -> Result<Outcome, f64> {
        let fastest = Fastest::default();
        let mut ordered: Vec<(WarmStart, &Candidate)> =
            list.iter().filter_map(|one| Some((self.warm_start(one)?, one))).collect();
        ordered.sort_by(|(a, _), (b, _)| a.expected_s().total_cmp(&b.expected_s()));
        let verdict = |(known, one): &(WarmStart, &Candidate)| {
            if known.may_beat(fastest.enough_s(one)) {
                return self.verdict(one, *known, &fastest);
            }
            self.remember(one, *known);
            Some(match known.least {
                LowerBound::Seconds(seconds) => Evaluated::TooSlow(seconds),
                LowerBound::Bytes(bytes) => {
                    let bound_s = f64::INFINITY;
                    Evaluated::TooLarge(TooLarge { needed_bytes: bytes, least_bytes: 0.0, bound_s })
                }
            })
        };
        let verdicts: Vec<Evaluated> =
            ordered.par_iter().with_max_len(1).filter_map(verdict).collect();
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

    /// Evaluates a candidate and records its warm start.
    fn verdict(
        &self,
        candidate: &Candidate,
        known: WarmStart,
        fastest: &Fastest,
    ) -> Option<Evaluated> {
        let prepared = self.planner.prepared(candidate)?;
        let enough_s = || fastest.enough_s(candidate);
        let settings = self.settings;
        let verdict = evaluate(self.cluster, prepared, candidate, settings, &enough_s);
        // An earlier bound holds as well, and may be sharper.
        let least = |seconds: f64| LowerBound::Seconds(seconds.max(known.bound_s()));
        let known = match &verdict {
            Evaluated::Found(outcome) => {
                self.meet(outcome, candidate, fastest);
                self.found.lock().expect("no thread has panicked").push((**outcome).clone());
                let least = least(outcome.least_s());
                let found_s = outcome.seconds.min(outcome.pruned_bound_s);
                let plan = match outcome.waits() {
                    // Messages set the pace, so computation says little about the step on other
                    // links.
                    true => Expectation::NONE,
                    false => Expectation::found(found_s, outcome.computed_s(settings.overlap)),
                };
                WarmStart { least, plan, ..known }
            }
            Evaluated::TooLarge(all) => {
                let mut known_of_all = self.too_large.lock().expect("no thread has panicked");
                *known_of_all = Some(known_of_all.map_or(*all, |before| before.and(*all)));
                let least = match all.may_fit() {
                    true => least(all.bound_s),
                    false => LowerBound::Bytes(all.needed_bytes),
                };
                WarmStart { least, ..known }
            }
            Evaluated::TooSlow(seconds) => WarmStart { least: least(*seconds), ..known },
            Evaluated::Impossible => WarmStart { least: LowerBound::Bytes(f64::INFINITY), ..known },
        };
        self.remember(candidate, known);
        Some(verdict)
    }

    /// Simulates a plan that may be the fastest: others may be slower in closed form and yet faster
    /// simulated.
    fn meet(&self, outcome: &Outcome, candidate: &Candidate, fastest: &Fastest) {
        if outcome.seconds < fastest.enough_s(candidate) {
            let mut plan = outcome.clone();
            simulate_schedules(&mut plan, self.settings.overlap);
            let seconds = plan.seconds.max(outcome.seconds);
            fastest.meet(candidate, seconds);
            self.best.meet(candidate, seconds);
        }
    }

    fn remember(&self, candidate: &Candidate, known: WarmStart) {
        self.warm_starts.lock().expect("no thread has panicked").insert(candidate.clone(), known);
    }

    /// Returns the warm start of a candidate, from its arithmetic or earlier searches.
    fn warm_start(&self, candidate: &Candidate) -> Option<WarmStart> {
        let before = |(faster, warm_starts): &(f64, &WarmStarts)| {
            Some(warm_starts.get(candidate)?.on(*faster))
        };
        let all = self.history.iter().filter_map(before);
        all.reduce(WarmStart::and).or_else(|| {
            let prepared = self.planner.prepared(candidate)?;
            let settings = self.settings;
            let seconds = bound_s(self.cluster, prepared, candidate, settings);
            let hides = settings.overlap.sync / candidate.micro_batches as f64;
            Some(WarmStart::arithmetic(seconds, hides))
        })
    }

    /// Returns candidates with their warm starts, in the order of expected time.
    pub fn bounded(&self, all: &[Candidate]) -> Vec<(WarmStart, Candidate)> {
        let bound = |candidate: &Candidate| Some((self.warm_start(candidate)?, candidate.clone()));
        let mut bounded: Vec<(WarmStart, Candidate)> = all.par_iter().filter_map(bound).collect();
        bounded.sort_by(|(a, _), (b, _)| a.expected_s().total_cmp(&b.expected_s()));
        bounded
    }

    /// Evaluates every candidate that may be faster than the best plan.
    pub fn evaluate(&self, bounded: &[(WarmStart, Candidate)]) {
        bounded.par_iter().with_max_len(1).for_each(|(known, candidate)| {
            if known.may_beat(self.best.enough_s(candidate)) {
                self.solved.fetch_add(1, Ordering::Relaxed);
                self.verdict(candidate, *known, &self.best);
            } else {
                self.remember(candidate, *known);
            }
        });
    }

    /// Returns the best candidate on meshes of one more dimension, and the best such candidate of
    /// the last search.
    pub fn deeper(&self) -> Vec<Candidate> {
        let found = self.found.lock().expect("no thread has panicked");
        let free = found.iter().filter(|plan| plan.candidate.rule == Rule::Free);
        let best = free.min_by(|a, b| order(a, b));
        let mut deep = best.map_or_else(Vec::new, |plan| deeper(&self.freed(&plan.candidate)));
        let remembered = self.remembered().filter(|one| !deep.contains(one));
        deep.extend(remembered);
        deep
    }

    /// Returns the best candidate on three dimensions of the last search.
    fn remembered(&self) -> Option<Candidate> {
        let (_, warm_starts) = self.history.last()?;
        let size = self.cluster.size();
        let fits = |one: &Candidate| one.is_deep() && one.devices() <= size;
        let deep = warm_starts.iter().filter(|(candidate, _)| fits(candidate));
        // Candidates for which a plan was found come first.
        let key = |known: &WarmStart| (known.plan.seconds() == 0.0, known.expected_s());
        let best = deep.min_by(|(one, a), (other, b)| {
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then_with(|| one.before(other))
        });
        best.map(|(candidate, _)| candidate.clone())
    }

    /// Returns a candidate with parameters sharded one by one, where devices are equal.
    fn freed(&self, candidate: &Candidate) -> Candidate {
        let division = match self.cluster.kinds.is_empty() {
            true => Division::Each,
            false => candidate.division,
        };
        Candidate { division, ..candidate.clone() }
    }

    /// Returns the result of the search and its warm starts.
    pub fn finish(
        self,
        candidates: usize,
        mut experts: Vec<(Expert, Result<Outcome, f64>)>,
    ) -> Result<(Found, WarmStarts), Error> {
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
        let warm_starts =
            std::mem::take(&mut *self.warm_starts.lock().expect("no thread has panicked"));
        let least = warm_starts.values().map(|known| known.bound_s()).fold(f64::INFINITY, f64::min);
        let solved = self.solved.load(Ordering::Relaxed);
        if found.is_empty() {
            return Err(self.too_large());
        }
        let mut best = found.remove(0);
        if let Some(prepared) = self.planner.prepared(&best.candidate) {
            best = refined(self.cluster, prepared, self.settings, &best);
        }
        let bound_s = least.min(best.seconds);
        let candidates = [candidates, solved];
        Ok((Found { best, others: found, experts, bound_s, candidates }, warm_starts))
    }

    /// Returns the error that no mesh can be cut as asked.
    fn impossible(&self) -> Error {
        let devices = self.cluster.size();
        let pins: Vec<String> = self.settings.pins.iter().map(Pin::to_string).collect();
        if pins.is_empty() {
            return Error::impossible(format!("no mesh of {devices} devices can run the model"));
        }
        let found = format!("no mesh of {devices} devices allows all pins: {}", pins.join("; "));
        Error::impossible(found).with_hint("an axis must be as long as a multiple of its dimension")
    }

    fn too_large(&self) -> Error {
        let all = *self.too_large.lock().expect("no thread has panicked");
        let Some(all) = all else { return self.impossible() };
        shortfall::too_large("the smallest plan", all, self.cluster, self.settings.reserve)
    }
}
