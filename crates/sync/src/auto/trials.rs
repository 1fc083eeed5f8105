//! The trials of a job: when one begins, with which plans, and with which result.
//!
//! Every rank keeps its own and feeds it the same times, so that plans take turns on all ranks alike.
//! Rank 0 decides which plans are tried, and sends them to all.
//!
//! A first trial begins after more than [`FIRST_STEP`] steps, when backward and the codec errors of
//! gradients are known. Its plans are the proposal of the cost model, the plan in force, everything raw,
//! and the best fixed codecs. Another such trial follows when the link has become [`FAR`] times as fast
//! or slow. Otherwise a prediction alone does not change a plan that keeps to the error budget: a new
//! proposal is first tried against the plan in force, as soon as [`Allowance`] permits. While the error
//! budget grows, at the beginning of a training, this trial begins at once.

use serde::{Deserialize, Serialize};

use crate::auto::plan::Plan;
use crate::auto::trial::{ARM_STEPS, Allowance, Arm, Trial};

/// Steps since the buckets were laid out up to which nothing is tried.
const FIRST_STEP: u64 = 16;

/// Factor of bandwidth from which on the results of trials no longer hold. A link that is limited by cores
/// is often half or twice as fast as a moment ago.
pub(crate) const FAR: f64 = 3.0;

/// The trials of a job: the one under way, and what the earlier ones found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Trials {
    /// The trial under way, and the plans of its arms.
    under_way: Option<(Trial, Vec<Plan>)>,
    allowance: Allowance,
    /// Steps since the buckets were laid out.
    steps: u64,
    /// The number of trials that were decided since then.
    decided: usize,
    /// The plans that were tried under this link.
    tried: Vec<u32>,
    /// The share of a raw step that the plan that was kept last saves, as measured.
    saved: Option<(u32, f64)>,
    /// The bandwidth of the link in bytes per second: now, and when a trial ended last.
    bytes_per_s: f64,
    ended_at: Option<f64>,
}

impl Trials {
    /// Returns the trials of buckets that were just laid out, none so far, under a link of this
    /// bandwidth.
    pub(crate) fn new(bytes_per_s: f64) -> Trials {
        Trials {
            under_way: None,
            allowance: Allowance::first(),
            steps: 0,
            decided: 0,
            tried: Vec::new(),
            saved: None,
            bytes_per_s,
            ended_at: None,
        }
    }

    /// Records the times of some steps on the slowest rank, in seconds.
    pub(crate) fn record(&mut self, seconds: &[f64]) {
        self.steps = self.steps.saturating_add(seconds.len() as u64);
        match &mut self.under_way {
            Some((trial, _)) => {
                trial.record(seconds);
                self.allowance.spend(seconds.len());
            }
            None => self.allowance.save(seconds.len()),
        }
    }

    /// Adopts a changed bandwidth of the link, under which nothing was tried yet. If it is far from the
    /// bandwidth under which a trial ended last, the result of that trial no longer holds.
    pub(crate) fn link_changed(&mut self, bytes_per_s: f64) {
        self.allowance.link_changed();
        self.tried.clear();
        self.bytes_per_s = bytes_per_s;
        self.ended_at = self.ended_at.filter(|at| (1.0 / FAR..FAR).contains(&(bytes_per_s / at)));
        (self.under_way, self.saved) = (None, None);
    }

    /// Grants the steps in which one plan is tried against the plan in force.
    pub(crate) fn permit_one(&mut self) {
        self.allowance.grant(2 * ARM_STEPS);
    }

    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns the plans of the trial under way; empty without a trial.
    pub(crate) fn plans(&self) -> &[Plan] {
        self.under_way.as_ref().map_or(&[], |(_, plans)| plans)
    }

    /// Returns whether trials that were read from a state can continue under `plan`.
    pub(crate) fn go_on_under(&self, plan: &Plan) -> bool {
        self.under_way.as_ref().is_none_or(|(trial, plans)| {
            trial.arms() == plans.len() && plans[trial.arm()].hash() == plan.hash()
        })
    }

    /// Returns whether no trial has ended yet under about this link, so that predictions decide on the plan.
    pub(crate) fn is_first(&self) -> bool {
        self.ended_at.is_none()
    }

    /// Returns `current` and the plans that are worth a trial against it: distinct ones that were not tried
    /// yet, as many as the allowance has steps for.
    pub(crate) fn worth(&self, current: Plan, others: impl IntoIterator<Item = Plan>) -> Vec<Plan> {
        let mut plans = vec![current];
        if self.steps <= FIRST_STEP {
            return plans;
        }
        for plan in others {
            let known = |known: &Plan| known.hash() == plan.hash();
            if !plans.iter().any(known) && !self.tried.contains(&plan.hash()) {
                plans.push(plan);
            }
        }
        plans.truncate((self.allowance.steps() / ARM_STEPS).max(1));
        plans
    }

    /// Begins a trial of some plans, of which the first one is in force; a single plan needs no trial.
    pub(crate) fn begin(&mut self, plans: Vec<Plan>) {
        if plans.len() < 2 {
            return;
        }
        let arm = |plan: &Plan| Arm { error: plan.codec_error, predicted_s: plan.iteration_s };
        let trial = Trial::new(plans.iter().map(arm).collect(), self.allowance.steps());
        self.under_way = Some((trial, plans));
    }

    /// Returns the plan of the next step while there is a trial, and at its end.
    pub(crate) fn turn(&mut self) -> Option<Plan> {
        let (trial, plans) = self.under_way.take()?;
        let plan = plans[trial.arm()].clone();
        if trial.is_decided() {
            self.decided = self.decided.saturating_add(1);
            self.tried.extend(plans.iter().map(Plan::hash));
            self.ended_at = Some(self.bytes_per_s);
            self.saved = saved(&trial, &plans).map(|share| (plan.hash(), share));
        } else {
            self.under_way = Some((trial, plans));
        }
        Some(plan)
    }

    /// Returns the number of trials that were decided since the buckets were laid out.
    pub(crate) fn decided(&self) -> usize {
        self.decided
    }

    /// Returns the share of a raw step that a plan saves, if a trial has measured it.
    pub(crate) fn saved_by(&self, plan: &Plan) -> Option<f64> {
        self.saved.filter(|(kept, _)| *kept == plan.hash()).map(|(_, share)| share)
    }
}

/// Returns the share of a raw step that the kept arm saves; `None` if raw was not tried.
fn saved(trial: &Trial, plans: &[Plan]) -> Option<f64> {
    let is_raw = |plan: &Plan| plan.codec_error == 0.0 && plan.iteration_s == plan.raw_iteration_s;
    let raw = plans.iter().position(is_raw)?;
    Some(1.0 - trial.seconds(trial.arm())? / trial.seconds(raw)?)
}
