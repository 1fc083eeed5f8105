//! The planner: the measurements of links, codecs and buckets, and the plan that follows from them.
//!
//! Every rank keeps a planner and feeds it the same figures, so that all come to the same verdicts. Rank 0
//! alone decides on plans and sends them to all, because rounding and load may differ.

pub(crate) mod saved;

use std::time::Instant;

use thinwire_wire::World;

use crate::StepRecord;
use crate::auto::backward::Backward;
use crate::auto::candidates::{Candidate, Candidates};
use crate::auto::choose;
use crate::auto::explain::{self, Planning};
use crate::auto::plan::Plan;
use crate::auto::timeline::{self, Measured, Readiness};
use crate::auto::trials::Trials;
use crate::auto::watch::{INTERVAL, InForce, Reading, Watch};
use crate::bucket::layout::Bucket;
use crate::bucket::state::BucketState;
use crate::measure::codecs::{self, Calibration};
use crate::measure::link::LinkSpeed;
use crate::options::Overrides;

/// Steps since the buckets were laid out after which `auto` plans again with what it has seen, and the steps
/// between two plannings after these.
const PLANNING_STEPS: [u64; 4] = [1, 4, 16, 50];
const PLANNING_INTERVAL: u64 = 100;

/// Least time on the wire that says something about the link: a share of the iteration, since shorter times
/// are mostly those of threads that wait for cores, and at least the scatter of threads.
const TELLING_SHARE: f64 = 0.2;
const TELLING_S: f64 = 1e-3;

/// Steps of a training from which on the whole error budget holds, and the share of it in the first step, which
/// permits int8.
const WHOLE_BUDGET_STEPS: u64 = 400;
const FIRST_BUDGET: f64 = 0.05;

/// Factor of bandwidth up to which a change of the link does not end a trial: the load of cores may cause it,
/// and plans are compared within rounds anyway.
const TRYING_CHANGE: f64 = 2.0;

/// The figures of one rank's report on one step: time on the wire, as measured and as predicted, and the
/// iteration's time, in seconds.
const FIGURES: usize = 3;

/// The limits that a plan must keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) overrides: Overrides,
    /// The error budget of a training that has settled; the largest number for codecs that were named.
    pub(crate) error_budget: f64,
    /// Whether computing for the exchange takes cores away from backward.
    pub(crate) shares_cores: bool,
}

impl Limits {
    /// Returns the error budget after some steps of a training.
    ///
    /// A loss that falls as a power of the steps has a slope that falls as one over them, or faster. What is lost
    /// of a gradient reaches the parameters late, and costs as much as the loss falls meanwhile. So the budget
    /// grows with the steps.
    fn budget_after(&self, steps: u64) -> f64 {
        if self.error_budget >= f64::MAX {
            return self.error_budget;
        }
        let share = steps as f64 / WHOLE_BUDGET_STEPS as f64;
        self.error_budget * share.clamp(FIRST_BUDGET, 1.0)
    }
}

/// The state of planning.
#[derive(Debug)]
pub(crate) struct Planner {
    candidates: Candidates,
    /// This rank among those that exchange the buckets.
    world: World,
    limits: Limits,
    /// The error budget at this step of the training.
    error_budget: f64,
    watch: Watch,
    trials: Trials,
    /// Figures of every bucket: the weighted error of each codec on its gradients, the mean of all ranks, then
    /// the lengths over those expected, the longest of all ranks; empty until they were measured.
    errors: Vec<Vec<f32>>,
    /// Samples of this step's gradients, by bucket.
    samples: Vec<Vec<f32>>,
    measured: Measured,
    /// This rank's own backward.
    backward: Backward,
    /// The figures of this rank's last steps that it has not reported yet.
    reports: Vec<f32>,
    /// Steps before a state that was loaded which nobody has reported.
    untold: usize,
    /// The record of the last planning, on rank 0.
    planning: Option<Planning>,
    /// Whether no step's record contains it yet.
    is_news: bool,
}

impl Planner {
    pub(crate) fn new(calibration: Calibration, world: World, limits: Limits) -> Planner {
        let bytes_per_s = calibration.link.bytes_per_s;
        Planner {
            candidates: Candidates::new(calibration, world, limits.overrides),
            world,
            limits,
            error_budget: limits.budget_after(0),
            // Until the first plan is in force.
            watch: Watch::new(InForce { hash: 0, is_raw: true }),
            trials: Trials::new(bytes_per_s),
            errors: Vec::new(),
            samples: Vec::new(),
            measured: Measured::default(),
            backward: Backward::default(),
            reports: Vec::new(),
            untold: 0,
            planning: None,
            is_news: false,
        }
    }

    /// Forgets everything about the buckets, because they were laid out anew.
    pub(crate) fn lay_out(&mut self, buckets: usize) {
        // Nothing is known of backward yet: as if everything were ready at once.
        self.measured = Measured {
            backward_s: 0.0,
            buckets: vec![Readiness::default(); buckets],
            shares_cores: self.limits.shares_cores,
        };
        self.backward = Backward::default();
        self.errors.clear();
        self.samples = vec![Vec::new(); buckets];
        self.reports.clear();
        self.untold = 0;
        self.restart();
    }

    /// Forgets trials and the record of the last planning, because a state was loaded.
    pub(crate) fn restart(&mut self) {
        self.trials = Trials::new(self.link().bytes_per_s);
        self.watch.settled();
        self.planning = None;
    }

    pub(crate) fn link(&self) -> LinkSpeed {
        self.candidates.calibration().link.clone()
    }

    /// Returns whether a plan is due after a step that is `age` steps after the buckets were laid out.
    pub(crate) fn is_due(age: u64) -> bool {
        PLANNING_STEPS.contains(&age) || (age > 0 && age.is_multiple_of(PLANNING_INTERVAL))
    }

    /// Returns whether ranks report to each other after such a step.
    pub(crate) fn reports(age: u64) -> bool {
        Planner::is_due(age) || age % INTERVAL == INTERVAL - 1
    }

    /// Sets the error budget to that after some steps of the training.
    pub(crate) fn set_budget_after(&mut self, steps: u64) {
        self.error_budget = self.limits.budget_after(steps);
    }

    /// Sets the error budget of a training that has settled, unless codecs were named, and permits a trial of what comes
    /// within it.
    pub(crate) fn set_error_budget(&mut self, budget: f64) {
        if self.limits.error_budget < f64::MAX && self.limits.error_budget != budget {
            self.limits.error_budget = budget;
            self.trials.permit_one();
        }
    }

    /// Permits a trial of what came within the error budget since the last planning, if the budget has grown
    /// meanwhile; called on all ranks alike, before they plan after some steps of the training.
    pub(crate) fn permit_trial_after(&mut self, steps: u64) {
        let before = self.limits.budget_after(steps.saturating_sub(PLANNING_INTERVAL));
        if before < self.limits.budget_after(steps) {
            self.trials.permit_one();
        }
    }

    /// Keeps some of a bucket's gradients until the step's end.
    pub(crate) fn sample(&mut self, bucket: usize, values: &[f32]) {
        self.samples[bucket] = codecs::sample(values, self.samples.len());
    }

    /// Forgets the gradients of a step that was skipped, which nobody reports.
    pub(crate) fn forget_samples(&mut self) {
        self.samples.iter_mut().for_each(Vec::clear);
    }

    /// Records a step of this rank.
    pub(crate) fn record(&mut self, record: &StepRecord, plan: &Plan) {
        self.backward.record(record);
        let spans = record.buckets.iter().map(|bucket| (bucket.ready_s, bucket.done_s));
        let computed_s = record.total(|bucket| bucket.encode_s + bucket.decode_s);
        let wire_s = timeline::wire_s(spans, computed_s);
        let predicted = timeline::predict(&seen(record), &plan.prices);
        let computed_s = plan.prices.iter().map(|price| price.cpu_s).sum();
        let predicted_s = timeline::wire_s(predicted.spans.into_iter(), computed_s);
        let seconds = record.backward_s + record.wait_s + record.commit_s;
        self.reports.extend([wire_s, predicted_s, seconds].map(|figure| figure as f32));
    }

    /// Returns this rank's figures: the times at which its buckets were ready, those of its last steps, and
    /// codec errors of its gradients if it has sampled them.
    pub(crate) fn report(&mut self) -> Vec<f32> {
        self.repeat_last();
        let mut message: Vec<f32> = self.backward.times_s().map(|seconds| seconds as f32).collect();
        message.append(&mut self.reports);
        let calibration = self.candidates.calibration();
        for sample in self.samples.iter_mut().map(std::mem::take).filter(|s| !s.is_empty()) {
            message.extend(calibration.try_on(&sample));
        }
        message
    }

    /// Absorbs the reports of all ranks, each of `length` numbers; `sampled` are the buckets whose gradients
    /// were sampled. Returns the factor by which bytes take longer than predicted, if the link is to be
    /// measured.
    pub(crate) fn absorb_reports(
        &mut self,
        all: &[f32],
        length: usize,
        sampled: &[usize],
    ) -> Option<f64> {
        let buckets = self.measured.buckets.len();
        let of = |index: usize| all.iter().skip(index).step_by(length).copied();
        let longest = |index: usize| of(index).fold(0.0, f32::max);
        self.measured = Measured {
            backward_s: longest(0).into(),
            buckets: (1..1 + buckets).map(|i| Readiness { ready_s: longest(i).into() }).collect(),
            shares_cores: self.limits.shares_cores,
        };
        let codecs = self.candidates.calibration().codecs.len();
        let figures = 2 * codecs;
        let errors = length - sampled.len() * figures;
        let ranks = all.len() / length.max(1);
        let mean = |index: usize| of(index).sum::<f32>() / ranks as f32;
        // Until gradients are sampled again, the errors of the last samples hold.
        if !sampled.is_empty() {
            self.errors = vec![Vec::new(); buckets];
        }
        for (place, bucket) in sampled.iter().enumerate() {
            let first = errors + place * figures;
            let lengths = first + codecs;
            // What is lost is lost on average; an exchange waits for the longest encodings.
            let of_all = (first..lengths).map(mean);
            self.errors[*bucket] = of_all.chain((lengths..first + figures).map(longest)).collect();
        }
        let steps = (1 + buckets..errors).step_by(FIGURES);
        let readings: Vec<Reading> = steps
            .map(|first| {
                let ranks = of(first).zip(of(first + 1)).zip(of(first + 2));
                reading(ranks.map(|((wire, predicted), seconds)| [wire, predicted, seconds]))
            })
            .collect();
        let seconds: Vec<f64> = readings.iter().map(|reading| reading.seconds).collect();
        self.trials.record(&seconds);
        // Later readings would be forgotten with the measurement that an earlier one asks for.
        readings.into_iter().find_map(|reading| self.watch.record(reading))
    }

    /// Adopts a new measurement of the link; returns whether the link has changed.
    pub(crate) fn learn(&mut self, link: LinkSpeed) -> bool {
        let known = self.link();
        let times = link.bytes_per_s / known.bytes_per_s;
        let goes_on = self.is_trying() && (1.0 / TRYING_CHANGE..TRYING_CHANGE).contains(&times);
        let changed = link.differs(&known) && !goes_on;
        if changed {
            self.watch.found_other_link();
            self.trials.link_changed(link.bytes_per_s);
            self.candidates.set_link(link);
        } else {
            self.watch.found_same_link();
        }
        changed
    }

    /// Returns what rank 0 decides: the plan to follow, and after it those that are worth a trial against it.
    ///
    /// The plan to follow is the one in force, or the proposal of the cost model if that is better and either
    /// the plan in force now exceeds the error budget or nothing was tried yet. Raw and the best fixed codecs
    /// take part in a first trial.
    pub(crate) fn propose(
        &mut self,
        buckets: &[BucketState],
        plan: &Plan,
        reason: String,
    ) -> Vec<Plan> {
        let begin = Instant::now();
        let all = self.candidates(buckets);
        let usable = self.usable(&all);
        let proposal = choose::choose(&self.measured, &usable);
        // Before the first plan none is in force.
        let current = match plan.assignments.is_empty() {
            true => proposal.clone(),
            false => choose::priced(&self.measured, &usable, plan),
        };
        let is_better = proposal.beats(&current);
        let untried = self.trials.is_first();
        let mut others = Vec::from_iter(is_better.then(|| proposal.clone()));
        if untried {
            others.extend([proposal.clone(), current.clone()]);
            others.push(choose::raw(&self.measured, &usable));
            others.extend(choose::fixed(&self.measured, &usable));
        }
        // Assignments beyond the error budget are no candidates any more, and `priced` has put raw in their place.
        let is_open = untried || current.hash() != plan.hash();
        let chosen = if is_open && is_better { proposal } else { current };
        // A single rank has no link on which plans could be raced.
        let plans = match self.world.size() {
            1 => vec![chosen],
            _ => self.trials.worth(chosen, others),
        };
        self.explain(&plans, &all, reason, begin);
        plans
    }

    /// Explains, on rank 0, the plan that a trial has ended with, or a state.
    pub(crate) fn conclude(&mut self, buckets: &[BucketState], plan: &Plan, reason: &str) {
        let begin = Instant::now();
        let all = self.candidates(buckets);
        let mut plans = vec![choose::priced(&self.measured, &self.usable(&all), plan)];
        let rivals = self.trials.plans().iter().filter(|it| it.hash() != plan.hash());
        plans.extend(rivals.cloned());
        self.explain(&plans, &all, reason.to_owned(), begin);
    }

    /// Begins a trial of some plans, of which the first one is in force; a single plan needs no trial.
    pub(crate) fn begin_trial(&mut self, plans: Vec<Plan>) {
        self.trials.begin(plans);
    }

    pub(crate) fn is_trying(&self) -> bool {
        self.trials.are_under_way()
    }

    /// Returns the plan of the next step while there is a trial, and at its end.
    pub(crate) fn turn(&mut self) -> Option<Plan> {
        self.trials.turn()
    }

    /// Records that `plan` is in force from now on.
    pub(crate) fn switched(&mut self, plan: &Plan) {
        self.watch.switched(plan.in_force());
        if !self.is_trying() {
            self.watch.settled();
        }
        self.reports.clear();
    }

    /// Returns the record of the last planning, once.
    pub(crate) fn news(&mut self) -> Option<Planning> {
        match std::mem::take(&mut self.is_news) {
            true => self.planning.clone(),
            false => None,
        }
    }

    /// Returns the record of the last planning, on rank 0.
    pub(crate) fn planning(&self) -> Option<&Planning> {
        self.planning.as_ref()
    }

    fn candidates(&mut self, buckets: &[BucketState]) -> Vec<Vec<Candidate>> {
        let (candidates, errors) = (&mut self.candidates, &self.errors);
        let of_bucket = |(index, state): (usize, &BucketState)| {
            let errors = errors.get(index).filter(|errors| !errors.is_empty());
            candidates.of_bucket(&state.bucket, errors.map(Vec::as_slice))
        };
        buckets.iter().enumerate().map(of_bucket).collect()
    }

    /// Returns the candidates within the error budget; raw ones always are.
    fn usable(&self, all: &[Vec<Candidate>]) -> Vec<Vec<Candidate>> {
        let budget = self.error_budget;
        let within = |candidate: &&Candidate| candidate.error <= budget;
        all.iter().map(|of_bucket| of_bucket.iter().filter(within).cloned().collect()).collect()
    }

    /// Records why the first of `plans` is followed, and which others are tried against it.
    fn explain(&mut self, plans: &[Plan], all: &[Vec<Candidate>], reason: String, begin: Instant) {
        let (budget, trials) = (self.error_budget, self.trials.decided());
        let plan = &plans[0];
        let trying = explain::rivals(plans, all);
        let line = explain::line(plan, all, self.trials.saved_by(plan));
        self.is_news = true;
        self.planning = Some(Planning {
            line: format!("{line}; {}", explain::progress(trials, &trying)),
            trials,
            trying,
            reason,
            link: (self.world.size() > 1).then(|| self.link()),
            error_budget: budget,
            iteration_s: plan.iteration_s,
            raw_iteration_s: plan.raw_iteration_s,
            took_s: begin.elapsed().as_secs_f64(),
            buckets: explain::decisions(&self.measured, plan, all, budget),
        });
    }

    /// Gives the buckets of the last planning their names.
    pub(crate) fn name_buckets<'a>(&mut self, names: impl Iterator<Item = (String, &'a Bucket)>) {
        let Some(planning) = &mut self.planning else { return };
        for (decision, (name, bucket)) in planning.buckets.iter_mut().zip(names) {
            (decision.name, decision.elements) = (name, bucket.elements);
        }
    }
}

fn seen(record: &StepRecord) -> Measured {
    let ready = |bucket: &crate::BucketRecord| Readiness { ready_s: bucket.ready_s };
    Measured {
        backward_s: record.backward_s,
        buckets: record.buckets.iter().map(ready).collect(),
        // What computing took from backward is in the times that were measured.
        shares_cores: false,
    }
}

/// Returns the reading of a step from every rank's figures. The rank that was ready last has waited for
/// no other: its time on the wire is that of the link.
fn reading(ranks: impl Iterator<Item = [f32; FIGURES]>) -> Reading {
    let (mut least, mut seconds) = ([f32::INFINITY; FIGURES], 0.0_f32);
    for figures in ranks {
        seconds = seconds.max(figures[2]);
        if figures[0] < least[0] {
            least = figures;
        }
    }
    let (wire_s, predicted_s) = (f64::from(least[0]), f64::from(least[1]));
    let telling = (f64::from(seconds) * TELLING_SHARE).max(TELLING_S);
    let tells = predicted_s > 0.0 && wire_s.max(predicted_s) > telling;
    // A ratio to next to nothing is mostly noise.
    let drift = tells.then(|| wire_s.max(TELLING_S / 10.0) / predicted_s.max(TELLING_S / 10.0));
    Reading { seconds: seconds.into(), drift }
}

#[cfg(test)]
mod tests;
