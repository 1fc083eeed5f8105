//! One search on one cluster: experts, then candidates in the order of their bounds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::bound::bound_s;
use super::candidate::{Candidate, Expert, deeper};
use super::evaluate::{Verdict, evaluate};
use super::known::{Guess, Known, Least, Seen, faster};
use super::outcome::Outcome;
use super::pin::Pin;
use super::play::{Fastest, order, play, played, refined};
use super::rule::Rule;
use super::settings::Settings;
use super::{Found, Planner, fit};
use crate::Error;
use crate::cluster::Cluster;
use crate::cost::Division;
use crate::error::TooLarge;

/// One search.
pub(super) struct Round<'a> {
    planner: &'a Planner,
    cluster: &'a Cluster,
    settings: &'a Settings,
    /// The fastest plan, with what playing adds to its closed form.
    best: Fastest,
    found: Mutex<Vec<Outcome>>,
    too_large: Mutex<Option<TooLarge>>,
    solved: AtomicUsize,
    /// What is known of candidates.
    seen: Mutex<Seen>,
    /// What was known before, and how much faster than then links are at most.
    history: Vec<(f64, &'a Seen)>,
}

impl<'a> Round<'a> {
    pub fn new(planner: &'a Planner, cluster: &'a Cluster, settings: &'a Settings) -> Round<'a> {
        let budget = settings.activation_budget;
        let alike = planner.history.iter().filter(|past| past.activation_budget == budget);
        let history = alike.filter_map(|past| Some((faster(&past.cluster, cluster)?, &past.seen)));
        Round {
            history: history.collect(),
            planner,
            cluster,
            settings,
            best: Fastest::default(),
            found: Mutex::default(),
            too_large: Mutex::default(),
            solved: AtomicUsize::new(0),
            seen: Mutex::default(),
        }
    }

    /// The fastest of some candidates.
    pub fn best_of(&self, list: &[Candidate]) -> Result<Outcome, f64> {
        let fastest = Fastest::default();
        let mut ordered: Vec<(Known, &Candidate)> =
            list.iter().filter_map(|one| Some((self.known(one)?, one))).collect();
        ordered.sort_by(|(a, _), (b, _)| a.expected_s().total_cmp(&b.expected_s()));
        let verdict = |(known, one): &(Known, &Candidate)| {
            if known.may_beat(fastest.enough_s(one)) {
                return self.verdict(one, *known, &fastest);
            }
            self.remember(one, *known);
            Some(match known.least {
                Least::Seconds(seconds) => Verdict::TooSlow(seconds),
                Least::Bytes(bytes) => {
                    let bound_s = f64::INFINITY;
                    Verdict::TooLarge(TooLarge { needed_bytes: bytes, least_bytes: 0.0, bound_s })
                }
            })
        };
        let verdicts: Vec<Verdict> =
            ordered.par_iter().with_max_len(1).filter_map(verdict).collect();
        let mut best: Result<Outcome, f64> = Err(f64::INFINITY);
        for verdict in verdicts {
            best = match (verdict, best) {
                (Verdict::Found(outcome), Ok(best)) if best.seconds <= outcome.seconds => Ok(best),
                (Verdict::Found(outcome), _) => Ok(*outcome),
                (Verdict::TooLarge(all), Err(least)) => Err(least.min(all.needed_bytes)),
                (_, best) => best,
            };
        }
        best
    }

    fn verdict(&self, candidate: &Candidate, known: Known, fastest: &Fastest) -> Option<Verdict> {
        let prepared = self.planner.prepared(candidate)?;
        let enough_s = || fastest.enough_s(candidate);
        let settings = self.settings;
        let verdict = evaluate(self.cluster, prepared, candidate, settings, &enough_s);
        // What was known before holds as well, and may be sharper.
        let least = |seconds: f64| Least::Seconds(seconds.max(known.bound_s()));
        let known = match &verdict {
            Verdict::Found(outcome) => {
                self.meet(outcome, candidate, fastest);
                self.found.lock().expect("no thread has panicked").push((**outcome).clone());
                let least = least(outcome.least_s());
                let found_s = outcome.seconds.min(outcome.left_s);
                let plan = match outcome.waits() {
                    true => Guess::NONE,
                    false => Guess::found(found_s, outcome.computed_s(settings.overlap)),
                };
                Known { least, plan, ..known }
            }
            Verdict::TooLarge(all) => {
                let mut known_of_all = self.too_large.lock().expect("no thread has panicked");
                *known_of_all = Some(known_of_all.map_or(*all, |before| before.and(*all)));
                let least = match all.may_fit() {
                    true => least(all.bound_s),
                    false => Least::Bytes(all.needed_bytes),
                };
                Known { least, ..known }
            }
            Verdict::TooSlow(seconds) => Known { least: least(*seconds), ..known },
            Verdict::Impossible => Known { least: Least::Bytes(f64::INFINITY), ..known },
        };
        self.remember(candidate, known);
        Some(verdict)
    }

    /// A plan that may be the fastest is played through: others may be slower in closed form and
    /// faster than that.
    fn meet(&self, outcome: &Outcome, candidate: &Candidate, fastest: &Fastest) {
        if outcome.seconds < fastest.enough_s(candidate) {
            let mut plan = outcome.clone();
            play(&mut plan, self.settings.overlap);
            let seconds = plan.seconds.max(outcome.seconds);
            fastest.meet(candidate, seconds);
            self.best.meet(candidate, seconds);
        }
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
            let settings = self.settings;
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
            if known.may_beat(self.best.enough_s(candidate)) {
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
        let best = free.min_by(|a, b| order(a, b));
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
        // One of which a plan was found first.
        let key = |known: &Known| (known.plan.seconds() == 0.0, known.expected_s());
        let best = deep.min_by(|(one, a), (other, b)| {
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then_with(|| one.before(other))
        });
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

    /// What was found among so many candidates, and what is known now.
    pub fn finish(
        self,
        candidates: usize,
        mut experts: Vec<(Expert, Result<Outcome, f64>)>,
    ) -> Result<(Found, Seen), Error> {
        let mut found = std::mem::take(&mut *self.found.lock().expect("no thread has panicked"));
        // What some order of threads would have left out counts in none.
        let most_s = self.best.seconds();
        // Of a plan that is as fast as its bound the bound may be rounded up.
        let counts = |one: &Outcome| one.bound_s.min(one.seconds) <= most_s;
        found.retain(counts);
        found.iter_mut().for_each(|one| one.rivals.retain(counts));
        let overlap = self.settings.overlap;
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
        let mut best = found.remove(0);
        if let Some(prepared) = self.planner.prepared(&best.candidate) {
            best = refined(self.cluster, prepared, self.settings, &best);
        }
        let bound_s = least.min(best.seconds);
        let candidates = [candidates, solved];
        Ok((Found { best, others: found, experts, bound_s, candidates }, seen))
    }

    /// No mesh can be cut as is asked for.
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
        fit::too_large("the smallest plan", all, self.cluster, self.settings.reserve)
    }
}
