//! Adaptation of a training by policies.
//!
//! Rank 0 asks its policies after each step. With the next step, all ranks receive the adjustment, which
//! takes effect in the step after that. The adjustment is part of the row that ranks exchange anyway to
//! agree on a step. If each rank trains independently, the others receive the row some steps later, and the
//! adjustment takes effect at the end of the next round.
//!
//! The batch, the factor of the learning rate and the error budget in force are called terms. Law: terms
//! are the same on all ranks after the same step. They are part of the state that joiners take over and
//! that checkpoints contain.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thinwire_policy::{Noise, NoiseScale, Observation, Part, Policy, Spec};
use thinwire_report::training::Adjusted;
use thinwire_sync::Time;
use thinwire_wire::{Rank, World};

use super::{Event, Session};
use crate::data::rows;
use crate::error::Error;

/// Key, in the manifest of a checkpoint, of the terms and of the seconds that the training has taken.
pub(super) const TERMS: &str = "terms";
pub(super) const ELAPSED: &str = "elapsed_s";
/// Time after which a job that did not answer is asked again.
const ASKED_AGAIN: Duration = Duration::from_secs(30);

/// Interface for changing the number of ranks of a job.
pub trait Resizer {
    /// Returns the range within which the job's number of ranks may lie.
    ///
    /// # Errors
    /// If the job does not answer.
    fn bounds(&self) -> Result<RangeInclusive<u32>, Error>;

    /// Asks the job to change its number of ranks to `ranks`.
    ///
    /// # Errors
    /// If the job does not answer, or refuses.
    fn resize(&self, ranks: u32) -> Result<(), Error>;
}

/// Terms of training that policies have changed so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Terms {
    /// Rows per step, all ranks together.
    pub batch: usize,
    /// Rows per step at the beginning.
    pub first_batch: usize,
    /// Factor of the learning rate.
    pub rate: f32,
    /// Error budget of `auto`, if it has changed since the beginning.
    pub error_budget: Option<f32>,
    /// The first step with this batch.
    since: u64,
    /// Number of rows that were read before that step.
    rows: u64,
}

impl Terms {
    /// Returns the batch and other terms at the beginning of a training.
    pub fn new(batch: usize) -> Terms {
        Terms { batch, first_batch: batch, rate: 1.0, error_budget: None, since: 0, rows: 0 }
    }

    fn rows_before(&self, step: u64) -> u64 {
        self.rows + step.saturating_sub(self.since) * self.batch as u64
    }

    /// Returns the number of steps of a training that reads as many rows as `steps` steps of the first batch.
    pub fn total(&self, steps: u64) -> u64 {
        let left = (steps * self.first_batch as u64).saturating_sub(self.rows);
        self.since + left.div_ceil(self.batch as u64)
    }

    /// Returns the rows that are left before a step.
    fn rows_left(&self, steps: u64, step: u64) -> u64 {
        (steps * self.first_batch as u64).saturating_sub(self.rows_before(step))
    }

    /// Returns the step in the learning rate's schedule: the step at which the first batch would have read
    /// the same number of rows.
    pub fn scheduled(&self, step: u64) -> u64 {
        self.rows_before(step) / self.first_batch as u64
    }

    /// Applies a proposal from a step on.
    fn adopt(&mut self, proposal: Proposal, step: u64) {
        if proposal.batch > 0 && proposal.batch != self.batch {
            (self.rows, self.since) = (self.rows_before(step), step);
            self.batch = proposal.batch;
        }
        if proposal.rate > 0.0 {
            self.rate = proposal.rate;
        }
        if proposal.error_budget > 0.0 {
            self.error_budget = Some(proposal.error_budget);
        }
    }
}

/// Number of values in the notes of a proposal, including the time.
pub(super) const NOTES: usize = 4;

/// Notes of all ranks in a step. A rank's notes are a proposal, and a sketch of its gradients if one was
/// due.
#[derive(Debug, PartialEq)]
pub(super) struct Told {
    /// Number of the step.
    pub step: u64,
    /// Notes, by rank.
    pub notes: Vec<Vec<f32>>,
}

/// Proposal that rank 0 sends to all ranks with a step; zero means no change.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Proposal {
    batch: usize,
    rate: f32,
    error_budget: f32,
}

impl Proposal {
    /// Returns the proposal and the seconds so far as numbers for the row of a step. f32 represents all
    /// of them exactly.
    fn notes(self, elapsed_s: f64) -> [f32; NOTES] {
        [self.batch as f32, self.rate, self.error_budget, elapsed_s as f32]
    }

    fn of(notes: &[f32]) -> Proposal {
        Proposal { batch: notes[0] as usize, rate: notes[1], error_budget: notes[2] }
    }
}

/// Adaptation of one rank's training, across all epochs.
#[derive(Debug)]
pub(super) struct Adaptation {
    policies: Vec<Spec>,
    noise: NoiseScale,
    proposal: Proposal,
    /// The number of ranks in the last request.
    ranks: Option<u32>,
    /// Numbers of ranks that the job may have, once the job has answered.
    bounds: Option<RangeInclusive<u32>>,
    /// Time that the training has taken, in seconds, up to a moment.
    elapsed_s: f64,
    at: Instant,
    /// Time of the last request for the job's bounds that got no answer.
    unanswered: Option<Instant>,
}

/// Figures of a step, as policies see them.
pub(super) struct Taken {
    /// Steps that are done.
    pub done: u64,
    /// Number of steps of the whole training, counted in steps of the first batch.
    pub steps: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// Division of the recent time per step.
    pub time: Time,
    /// Error budget of `auto`, if it chooses codecs.
    pub error_budget: Option<f64>,
}

impl Adaptation {
    /// Returns an adaptation by policies, before the first step.
    pub fn new(policies: &[Spec]) -> Adaptation {
        Adaptation {
            policies: policies.to_vec(),
            noise: NoiseScale::default(),
            proposal: Proposal::default(),
            ranks: None,
            bounds: None,
            elapsed_s: 0.0,
            at: Instant::now(),
            unanswered: None,
        }
    }

    /// Continues a training that has taken this many seconds before.
    pub fn set_elapsed(&mut self, seconds: f64) {
        (self.elapsed_s, self.at) = (seconds, Instant::now());
    }

    /// Returns the seconds of the training, including those before a checkpoint.
    pub fn elapsed_s(&self) -> f64 {
        self.elapsed_s + self.at.elapsed().as_secs_f64()
    }

    /// Returns the notes that this rank sends in the next step; empty without policies.
    pub fn notes(&self) -> Vec<f32> {
        match self.policies.is_empty() {
            true => Vec::new(),
            false => self.proposal.notes(self.elapsed_s()).to_vec(),
        }
    }

    /// Reads the notes that all ranks have sent in applied steps, and applies rank 0's proposals from
    /// the next step on, which has the number `step`. Batches remain multiples of `unit` rows.
    pub fn take(&mut self, told: Vec<Told>, terms: &mut Terms, step: u64, unit: usize) {
        for Told { step: noted, notes } in told {
            let Some(first) = notes.first().filter(|_| !self.policies.is_empty()) else { return };
            // Ranks that have joined have missed the time before; rank 0 knows its own since then.
            let seconds = f64::from(first[3]);
            if seconds > self.elapsed_s() {
                self.set_elapsed(seconds);
            }
            // A sketch of a batch before the present one has other parts, and one that is not finite may be told as
            // zeros.
            let is_sketched =
                |notes: &Vec<f32>| notes.get(NOTES).is_some_and(|square| *square > 0.0);
            if notes.iter().all(is_sketched) && noted >= terms.since {
                let ranks = notes.len() as u32;
                let worlds = (0..ranks).map_while(|rank| World::new(rank, ranks).ok());
                let parts = worlds.zip(&notes).map(|(world, notes)| Part {
                    rows: rows(terms.batch, unit, world).len(),
                    sketch: &notes[NOTES..],
                });
                self.noise.take(parts);
            }
            let proposal = Proposal::of(first);
            terms.adopt(proposal, step);
            if self.proposal == proposal {
                self.proposal = Proposal::default();
            }
        }
    }

    /// Forgets the pending requests of this rank, because another rank asks the policies from now on.
    pub fn forget_proposal(&mut self) {
        (self.proposal, self.ranks) = (Proposal::default(), None);
    }

    /// Returns whether a request has not taken effect yet.
    pub fn is_pending(&self) -> bool {
        self.proposal != Proposal::default()
    }

    /// Returns the noise of gradients, once it is known.
    pub fn noise(&self) -> Option<Noise> {
        self.noise.noise()
    }

    /// Asks the policies on rank 0, after a step. Returns their requests, for people.
    ///
    /// # Errors
    /// If the observer fails.
    pub fn ask(
        &mut self,
        session: &Session<'_>,
        terms: &Terms,
        taken: &Taken,
    ) -> Result<Vec<Adjusted>, Error> {
        let is_due = self.unanswered.is_none_or(|at| at.elapsed() > ASKED_AGAIN);
        if self.bounds.is_none() && is_due && self.policies.iter().any(|policy| policy.resizes()) {
            match session.resizer.map(Resizer::bounds).transpose() {
                Ok(bounds) => self.bounds = bounds,
                Err(error) => {
                    self.unanswered = Some(Instant::now());
                    session.warn(error)?;
                }
            }
        }
        let seen = Observation {
            step: taken.done,
            ranks: taken.ranks,
            ranks_asked: self.ranks.unwrap_or(taken.ranks),
            ranks_allowed: self.bounds.clone(),
            batch: terms.batch,
            first_batch: terms.first_batch,
            rows_left: terms.rows_left(taken.steps, taken.done),
            step_s: taken.time.step_s,
            wait_s: taken.time.wait_s,
            elapsed_s: self.elapsed_s(),
            noise: self.noise(),
            error_budget: taken.error_budget,
            first_error_budget: session.settings.exchange.sync.error_budget,
        };
        let mut all = Vec::new();
        for asked in self.policies.iter_mut().filter_map(|policy| policy.observe(&seen)) {
            let proposal = &mut self.proposal;
            let batch = asked.batch.filter(|_| proposal.batch == 0);
            if let Some(batch) = batch {
                proposal.batch = batch;
                proposal.rate = asked.rate.map_or(0.0, |rate| rate as f32);
            }
            let budget = asked.error_budget.filter(|_| proposal.error_budget == 0.0);
            proposal.error_budget = budget.map_or(proposal.error_budget, |budget| budget as f32);
            // The job may take a while to find a rank; it is not asked again meanwhile.
            let mut ranks = asked.ranks.filter(|_| asked.ranks != self.ranks);
            if let (Some(wanted), Some(resizer)) = (ranks, session.resizer) {
                match resizer.resize(wanted) {
                    Ok(()) => self.ranks = ranks,
                    Err(error) => {
                        ranks = None;
                        session.warn(error)?;
                    }
                }
            }
            if batch.is_some() || budget.is_some() || ranks.is_some() {
                let rate = asked.rate.filter(|_| batch.is_some());
                let (step, reason) = (taken.done, asked.reason);
                all.push(Adjusted { step, batch, rate, ranks, error_budget: budget, reason });
            }
        }
        Ok(all)
    }
}

impl Session<'_> {
    /// Reports a failure that does not end the training.
    fn warn(&self, error: Error) -> Result<(), Error> {
        self.observer.on(Event::Warning(error))
    }

    /// Returns whether this rank asks the policies.
    pub(super) fn decides(&self, world: World) -> bool {
        world.rank() == Rank(0) && !self.settings.policies.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use thinwire_policy::Sketch;

    use super::*;

    #[test]
    fn as_many_rows_are_read_whatever_the_batch() {
        let mut terms = Terms::new(16);
        assert_eq!(
            (terms.total(100), terms.scheduled(40), terms.rows_left(100, 40)),
            (100, 40, 960)
        );
        let proposal = Proposal { batch: 64, rate: 2.0, error_budget: 0.0 };
        assert_eq!(Proposal::of(&proposal.notes(1.0)), proposal);
        terms.adopt(proposal, 40);
        assert_eq!((terms.batch, terms.rate, terms.error_budget), (64, 2.0, None));
        // 960 rows are left: 15 steps.
        assert_eq!((terms.total(100), terms.scheduled(40), terms.scheduled(50)), (55, 40, 80));
        terms.adopt(Proposal { batch: 32, ..Proposal::default() }, 50);
        assert_eq!((terms.total(100), terms.rows_left(100, 50), terms.rate), (60, 320, 2.0));
        terms.adopt(Proposal { error_budget: 0.5, ..Proposal::default() }, 52);
        assert_eq!((terms.total(100), terms.error_budget), (60, Some(0.5)));
        assert_eq!(terms.rows_left(100, 60), 0);
    }

    #[test]
    fn a_step_in_which_a_rank_has_no_sketch_tells_nothing() {
        let policies = ["noise-scale:max=64".parse().unwrap()];
        let noise = |of_rank_1: f32| {
            let (mut adaptation, mut terms) = (Adaptation::new(&policies), Terms::new(8));
            let row = |square: f32| -> Vec<f32> {
                let counters = [square / 64.0; Sketch::ROW - 1];
                [0.0; NOTES].into_iter().chain([square]).chain(counters).collect()
            };
            for step in 1..=20 {
                let notes = vec![row(48.0), row(of_rank_1)];
                adaptation.take(vec![Told { step: step - 1, notes }], &mut terms, step, 1);
            }
            adaptation.noise()
        };
        assert!(noise(24.0).is_some());
        // Rounds tell what is not finite as zeros.
        assert_eq!(noise(0.0), None);
    }

    #[test]
    fn proposals_are_in_force_once() {
        let policies = ["noise-scale:max=64".parse().unwrap()];
        let mut adaptation = Adaptation::new(&policies);
        adaptation.proposal = Proposal { batch: 32, rate: 1.0, error_budget: 0.0 };
        let (mut terms, mut told) = (Terms::new(6), Adaptation::new(&policies));
        // Parts of 2 + 2 + 1 + 1 rows; a square of 48 on each rank, and 32 counters of 1 for the mean.
        let sketch = [48.0].into_iter().chain([1.0; Sketch::ROW - 1]);
        let row: Vec<f32> = adaptation.notes().into_iter().chain(sketch).collect();
        let of = |step: u64| vec![Told { step: step - 1, notes: vec![row.clone(); 4] }];
        told.take(of(1), &mut terms, 1, 1);
        assert_eq!((terms.batch, terms.rate), (32, 1.0));
        assert!(adaptation.is_pending());
        // What another rank asks for from now on counts.
        let mut former = Adaptation { proposal: adaptation.proposal, ..Adaptation::new(&policies) };
        former.forget_proposal();
        assert!(!former.is_pending());
        for step in 2..=20 {
            adaptation.take(of(step), &mut terms, step, 1);
        }
        assert!(!adaptation.is_pending());
        // Of 8 rows per rank: (32 · 32 − 8 · 48) / 24 and (48 − 32) / (1/8 − 1/32).
        let noise = adaptation.noise().unwrap();
        assert!((noise.signal - 80.0 / 3.0).abs() < 1e-3, "{noise:?}");
        assert!((noise.variance - 512.0 / 3.0).abs() < 1e-2, "{noise:?}");
        assert!(Adaptation::new(&[]).notes().is_empty());
        // Time that has passed since it was told counts.
        told.set_elapsed(100.0);
        told.take(of(2), &mut terms, 2, 1);
        assert!(told.elapsed_s() >= 100.0 && adaptation.elapsed_s() < 100.0);
        let before = terms;
        Adaptation::new(&[]).take(of(21), &mut terms, 21, 1);
        assert_eq!(terms, before);
    }
}
