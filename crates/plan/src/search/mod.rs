//! The search: finds the mesh, the numbers of stages and micro-batches, and the best strategies for them.
//!
//! Every candidate has a lower bound, the time of its arithmetic. Expert plans are solved first, and then
//! candidates in the order of their bounds, until no bound is below the time of the best plan. The best plan
//! is then also tried on meshes of three dimensions. The pipelines of the best twenty plans are simulated,
//! and the fastest plan is taken. On meshes of up to two dimensions, a candidate that was left out
//! cannot be faster than its bound. The least of all bounds therefore limits how far the plan can be
//! from the optimum.

mod block;
mod bound;
mod cache;
mod candidate;
mod capacity;
mod chain;
mod codec_choice;
mod evaluate;
mod evaluation;
mod load_balance;
mod memory_bound;
mod memory_fitting;
mod outcome;
mod overlap;
mod pin;
mod prepare;
mod round;
mod rule;
mod savings;
mod settings;
mod shared_parameters;
mod shortfall;
mod simulate;
mod single;
mod staging;

pub use block::Given;
pub use bound::bound_s;
pub use candidate::{Candidate, Expert, MICRO_BATCHES_MAX, Scope, candidates, experts};
pub use chain::{Chain, Choice, Part};
pub use evaluate::{Evaluated, best_of, evaluate};
pub use outcome::{Outcome, StageOutcome, done_s, estimate_s, simulated_s, timeline};
pub use overlap::{Exposed, Overlap};
pub use pin::{Pin, check_pins};
pub use prepare::{Class, Prepared};
pub use rule::Rule;
pub use savings::{ParameterOverride, Savings};
pub use settings::{ACTIVATION_BUDGET, Recompute, Settings, costs};

use std::collections::HashMap;
use std::sync::Arc;

use candidate::check_counts;
use rayon::prelude::*;
use round::{Round, Unfound};
use thinwire_model::Graph;

use crate::cluster::Subset;
use crate::cost::Sharding;
use crate::{Cluster, Error};

/// Memory in bytes that no plan fills.
const MEMORY_WITHOUT_END: f64 = 1e18;

/// Function that builds the model for a number of sequences.
type Build = Arc<dyn Fn(usize) -> Result<Graph, Error> + Send + Sync>;

/// Condition for a candidate to be searched.
type Wanted<'a> = &'a dyn Fn(&Candidate) -> bool;

/// Planner of one model.
pub struct Planner {
    settings: Settings,
    batch: usize,
    /// Prepared models, by sequences of a micro-batch.
    prepared: HashMap<usize, Prepared>,
    graph: Build,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// Fastest plan.
    pub best: Outcome,
    /// Next fastest plans.
    pub others: Vec<Outcome>,
    /// Best expert plan of each kind, or the bytes that it would need if none fits.
    pub experts: Vec<(Expert, Result<Outcome, f64>)>,
    /// Lower bound in seconds on the step time of all plans.
    pub bound_s: f64,
    /// Number of candidates, and number of those whose strategies were solved.
    pub candidates: [usize; 2],
    /// Devices that the fastest plan uses, if some kinds of devices are left out.
    pub subset: Option<Subset>,
}

impl Found {
    /// Returns the gap: the plan is slower than the optimum by at most this fraction of its time.
    pub fn gap(&self) -> f64 {
        (1.0 - self.bound_s / self.best.seconds).max(0.0)
    }

    /// Returns the cluster of the fastest plan: the whole one, or a subset of it.
    pub fn used<'a>(&'a self, whole: &'a Cluster) -> &'a Cluster {
        self.subset.as_ref().map_or(whole, |subset| &subset.cluster)
    }

    /// Returns the device number of every rank of the fastest plan; empty if every rank r is on device r.
    pub fn devices(&self) -> Vec<usize> {
        let all = self.subset.as_ref().map_or(&[][..], |subset| &subset.devices);
        let used: Vec<usize> = all.iter().copied().take(self.best.candidate.devices()).collect();
        if used.iter().enumerate().all(|(rank, device)| rank == *device) {
            Vec::new()
        } else {
            used
        }
    }

    /// Returns the result combined with the result for a subset of the cluster.
    fn beside_subset(self, subset: Subset, other: Found) -> Found {
        let experts = self.experts.clone();
        let faster = other.best.seconds < self.best.seconds;
        let both = self.and(Found { experts: Vec::new(), ..other });
        let subset = if faster { Some(subset) } else { both.subset };
        Found { experts, subset, ..both }
    }

    /// Returns the result combined with the bound of another search that has found nothing. One of that
    /// search's plans may fit after all and be faster.
    fn beside(self, other: &Unfound) -> Found {
        let candidates = [0, 1].map(|place| self.candidates[place] + other.candidates[place]);
        Found { bound_s: self.bound_s.min(other.bound_s), candidates, ..self }
    }

    /// Returns the results of two searches combined. Of plans that are equally fast, the first search's
    /// counts as best.
    fn and(self, other: Found) -> Found {
        let faster = self.best.seconds <= other.best.seconds;
        let (mut one, other) = if faster { (self, other) } else { (other, self) };
        one.others.push(other.best);
        one.others.extend(other.others);
        one.others.sort_by(simulate::order);
        for ((_, mine), (_, plan)) in one.experts.iter_mut().zip(other.experts) {
            match (&mine, plan) {
                (Ok(a), Ok(b)) if b.seconds < a.seconds => *mine = Ok(b),
                (Err(_), Ok(b)) => *mine = Ok(b),
                (Err(a), Err(b)) if b < *a => *mine = Err(b),
                _ => {}
            }
        }
        let bound_s = one.bound_s.min(other.bound_s);
        let candidates = [0, 1].map(|place| one.candidates[place] + other.candidates[place]);
        Found { bound_s, candidates, ..one }
    }
}

impl Planner {
    /// Returns a planner for steps of `batch` sequences; `graph` builds the model for a number of
    /// sequences.
    pub fn new(
        batch: usize,
        settings: Settings,
        graph: impl Fn(usize) -> Result<Graph, Error> + Send + Sync + 'static,
    ) -> Planner {
        Planner { settings, batch, prepared: HashMap::new(), graph: Arc::new(graph) }
    }

    /// Returns the prepared model for a candidate's micro-batches, if a plan with them was made.
    pub fn prepared(&self, candidate: &Candidate) -> Option<&Prepared> {
        self.prepared.get(&(self.batch / candidate.micro_batches))
    }

    /// Returns the prepared model of a plan.
    ///
    /// # Errors
    /// If this planner has not made the plan.
    pub fn prepared_of(&self, outcome: &Outcome) -> Result<&Prepared, Error> {
        let unplanned = || Error::impossible("the planner has not made this plan");
        self.prepared(&outcome.candidate).ok_or_else(unplanned)
    }

    /// Returns the sequences of a step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the settings under which a plan was found: the planner's settings with the plan's activation
    /// budget.
    pub fn settings_of(&self, outcome: &Outcome) -> Settings {
        self.settings.with_activation_budget(outcome.activation_budget)
    }

    /// Returns the best plan for a cluster.
    ///
    /// # Errors
    /// Returns an error if the model cannot be built or cut into blocks, or nothing fits the
    /// devices' memory.
    pub fn plan(&mut self, cluster: &Cluster) -> Result<Found, Error> {
        let found = self.binding(|planner, wanted| planner.plan_of_subsets(cluster, wanted));
        let fits = |larger: &Cluster| {
            // What is idle lends no memory.
            let settings = Settings { idle: false, ..self.settings.clone() };
            Planner { settings, ..self.fresh() }.plan_once(larger).map(drop)
        };
        let reserve = self.settings.reserve;
        found.map_err(|unfound| shortfall::explained(cluster, reserve, unfound.error, &fits))
    }

    /// Returns the best plan for the cluster or one of its subsets, among the candidates that are wanted.
    fn plan_of_subsets(&mut self, cluster: &Cluster, wanted: Wanted<'_>) -> Result<Found, Unfound> {
        let mut found = self.search(cluster, wanted, None);
        let subsets = if self.settings.idle { cluster.subsets() } else { Vec::new() };
        for subset in subsets {
            let known = found.as_ref().ok().map(|found| &found.best);
            found = match (self.search(&subset.cluster, wanted, known), found) {
                (Ok(other), Ok(found)) => Ok(found.beside_subset(subset, other)),
                (Ok(other), Err(unfound)) => {
                    Ok(Found { subset: Some(subset), ..other.beside(&unfound) })
                }
                (Err(unfound), Ok(found)) => Ok(found.beside(&unfound)),
                (Err(other), Err(unfound)) => Err(unfound.and(&other)),
            };
        }
        found
    }

    /// Returns the step time in seconds of the best plan on the same devices with unlimited memory.
    ///
    /// # Errors
    /// Returns the errors of [`Planner::plan`].
    pub fn boundless_s(&self, cluster: &Cluster) -> Result<f64, Error> {
        let mut boundless = cluster.clone();
        boundless.devices.iter_mut().for_each(|device| device.memory_bytes = MEMORY_WITHOUT_END);
        Ok(self.fresh().plan_once(&boundless)?.best.seconds)
    }

    /// Returns a planner for the same model.
    fn fresh(&self) -> Planner {
        let (settings, graph) = (self.settings.clone(), Arc::clone(&self.graph));
        Planner { settings, batch: self.batch, prepared: HashMap::new(), graph }
    }

    /// Returns the best plan for all devices of a cluster.
    fn plan_once(&mut self, cluster: &Cluster) -> Result<Found, Error> {
        let found = self.binding(|planner, wanted| planner.search(cluster, wanted, None));
        found.map_err(|unfound| unfound.error)
    }

    /// Searches meshes on which every pin has an effect, or all meshes if none of those has a plan.
    fn binding(
        &mut self,
        mut search: impl FnMut(&mut Planner, Wanted<'_>) -> Result<Found, Unfound>,
    ) -> Result<Found, Unfound> {
        if self.settings.pins.is_empty() {
            return search(self, &|_| true);
        }
        let pins = self.settings.pins.clone();
        let bound = |candidate: &Candidate| pins.iter().all(|pin| pin.binds(&candidate.mesh));
        search(self, &bound).or_else(|_| search(self, &|_| true))
    }

    /// Searches candidates.
    fn search(
        &mut self,
        cluster: &Cluster,
        wanted: Wanted<'_>,
        known: Option<&Outcome>,
    ) -> Result<Found, Unfound> {
        check_counts(self.batch, 1)?;
        let blocks = (self.graph)(1)?.blocks.len();
        let scope = Scope { batch: self.batch, blocks, idle: self.settings.idle };
        let divisions = self.settings.divisions(cluster);
        let mut all = candidates(cluster, &scope, &divisions);
        all.retain(wanted);
        let mut of_expert = Expert::ALL.map(|expert| {
            let mut list = experts(cluster, &scope, expert);
            list.retain(wanted);
            (expert, list)
        });
        if known.is_some() {
            // Experts are reported of the whole cluster; here their plans are candidates as others.
            of_expert.iter_mut().for_each(|(_, list)| all.append(list));
        }
        self.prepare(all.iter().chain(of_expert.iter().flat_map(|(_, list)| list)))?;
        let budgets = self.settings.activation_budgets(cluster).into_iter();
        let settings = budgets.map(|budget| self.settings.with_activation_budget(budget));
        let searches = settings.map(|settings| {
            let round = Round::new(self, cluster, &settings, known);
            Planner::once(round, &all, &of_expert)
        });
        searches.reduce(fastest).expect("there is a budget")
    }

    /// Searches with one activation budget.
    fn once(
        round: Round<'_>,
        all: &[Candidate],
        of_expert: &[(Expert, Vec<Candidate>)],
    ) -> Result<Found, Unfound> {
        // Experts come first: they set the time that other candidates must stay below.
        let experts = of_expert.iter().map(|(expert, list)| (*expert, round.best_of(list)));
        let experts = experts.collect();
        let bounded = round.bounded(all);
        round.evaluate(&bounded);
        let deep = round.bounded(&round.deeper());
        round.evaluate(&deep);
        round.finish(bounded.len() + deep.len(), experts)
    }

    /// Builds the model for every size of micro-batch.
    fn prepare<'a>(&mut self, all: impl Iterator<Item = &'a Candidate>) -> Result<(), Error> {
        let mut sizes: Vec<usize> =
            all.map(|candidate| self.batch / candidate.micro_batches).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.retain(|size| !self.prepared.contains_key(size));
        let build = |size: &usize| {
            Ok((*size, Prepared::pinned((self.graph)(*size)?, &self.settings.pins)?))
        };
        let built: Vec<_> = sizes.par_iter().map(build).collect::<Result<_, Error>>()?;
        for (size, prepared) in built {
            let prepared = match self.prepared.values().next() {
                Some(other) => prepared.beside(other),
                None => prepared,
            };
            self.prepared.insert(size, prepared);
        }
        Ok(())
    }
}

/// Returns the combined results of two searches of the same cluster, if either found anything.
fn fastest(one: Result<Found, Unfound>, other: Result<Found, Unfound>) -> Result<Found, Unfound> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok(one.and(other)),
        (Ok(found), Err(unfound)) | (Err(unfound), Ok(found)) => Ok(found.beside(&unfound)),
        (Err(one), Err(other)) => Err(other.and(&one)),
    }
}

/// Returns the ZeRO stage of a sharding.
pub fn zero_stage(sharding: Sharding) -> u8 {
    match sharding {
        Sharding::None => 0,
        Sharding::Optimizer => 1,
        Sharding::Gradients => 2,
        Sharding::Parameters => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_search_without_a_plan_knows_bounds_the_plan_of_another() {
        let cluster = "[[device]]\nname = \"a\"\ntflops = 1\nmemory_gib = 1\nmemory_gbyte_per_s = 10\n\
            [[level]]\nname = \"l\"\nsize = 1\nlatency_us = 1\ngbit = 1\n";
        let mut planner = Planner::new(4, Settings::default(), |batch| {
            let model = "gpt:layers=1,width=16,heads=2,vocabulary=16,positions=16";
            thinwire_model::named(model, batch, 16).map_err(|error| Error::from_model(&error))
        });
        let found = planner.plan(&Cluster::parse(cluster).unwrap()).unwrap();
        let bound_s = found.bound_s / 2.0;
        let unfound =
            || Unfound { bound_s, candidates: [2, 1], ..Error::impossible("none").into() };
        let candidates = [found.candidates[0] + 2, found.candidates[1] + 1];
        for both in [fastest(Ok(found.clone()), Err(unfound())), fastest(Err(unfound()), Ok(found))]
        {
            let both = both.unwrap();
            assert_eq!((both.bound_s, both.candidates), (bound_s, candidates));
        }
    }
}
