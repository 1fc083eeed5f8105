//! Plans from strategies in given stages: fits memory, chooses codecs, and finds the best schedule.

use std::ops::Range;

use super::chain::Chosen;
use super::codec_choice::{Terms, choose_codecs};
use super::evaluation::Evaluation;
use super::load_balance::Assigned;
use super::memory_fitting::{Limits, fit_stage, priced, scratch_bytes};
use super::{Candidate, Choice, Outcome, Savings, StageOutcome, estimate_s};
use crate::cost::{Cost, Group, Message};
use crate::pipeline::Schedule;

impl Evaluation<'_> {
    /// Returns the plan with the best schedule for strategies in given stages, after fitting memory and
    /// choosing codecs.
    pub fn staged(
        &self,
        choice: &Choice,
        cuts: &[Range<usize>],
        family: &[Schedule],
    ) -> Option<Outcome> {
        let all = family.iter().map(|schedule| self.scheduled(choice, cuts, *schedule));
        all.reduce(|best, next| self.fitter(best, next))
    }

    fn scheduled(&self, choice: &Choice, cuts: &[Range<usize>], schedule: Schedule) -> Outcome {
        let Assigned { blocks: whole, shares, rounds } = self.assign(choice, cuts, schedule);
        let mut savings = self.savings(choice, cuts, schedule, &whole);
        let mut blocks = priced(&whole, &savings);
        let all = |blocks: &[Cost], savings: &Savings| -> Vec<StageOutcome> {
            let stage = |(rank, range): (usize, &Range<usize>)| {
                let recomputed = &savings.recomputed[range.clone()];
                let block_activation_bytes = scratch_bytes(&whole[range.clone()], recomputed);
                let stage = self.stage(choice, blocks, range, schedule, rank);
                StageOutcome { block_activation_bytes, ..stage }
            };
            cuts.iter().enumerate().map(stage).collect()
        };
        let mut stages = all(&blocks, &savings);
        if !self.settings.codings.is_empty() {
            let terms = self.terms(&stages, schedule);
            let chosen = Chosen { chain: self.chain, choice };
            choose_codecs(chosen, cuts, &terms, &mut savings.overrides, &mut blocks);
            stages = all(&blocks, &savings);
        }
        self.price_shared_parameters(choice, &savings, &mut stages);
        // In the order of the model, whichever was bought first.
        savings.overrides.sort_by_key(|one| (one.block, one.tensor));
        Outcome {
            candidate: self.candidate.clone(),
            schedule,
            other_schedules: Vec::new(),
            choice: choice.clone(),
            savings,
            shares,
            rounds,
            seconds: estimate_s(&stages, schedule, rounds, self.settings.overlap),
            stages,
            // Bounds hold for all cuts and schedules, and are set by whoever compares these.
            bound_s: 0.0,
            infeasible_bound_s: f64::INFINITY,
            seconds_per_byte: 0.0,
            activation_budget: self.settings.activation_budget,
        }
    }

    /// Returns the savings with which the stages fit their memory.
    fn savings(
        &self,
        choice: &Choice,
        cuts: &[Range<usize>],
        schedule: Schedule,
        whole: &[Cost],
    ) -> Savings {
        let Candidate { stages, micro_batches, .. } = *self.candidate;
        let mut savings = Savings { recomputed: vec![false; whole.len()], overrides: Vec::new() };
        for (rank, blocks) in cuts.iter().enumerate() {
            let limits = Limits {
                rounds: micro_batches as f64,
                in_flight: schedule.in_flight(rank, stages, micro_batches),
                bytes: self.costs.device.capacity(self.memory_bytes(rank), self.settings.reserve),
                recompute: self.recompute,
            };
            fit_stage(Chosen { chain: self.chain, choice }, blocks, limits, whole, &mut savings);
        }
        savings
    }

    /// Returns the costs of blocks on the part that takes longest, and the number of micro-batches of each
    /// part.
    fn assign(&self, choice: &Choice, cuts: &[Range<usize>], schedule: Schedule) -> Assigned {
        let rounds = self.candidate.micro_batches;
        match self.load_balance {
            Some(load_balance) => load_balance.assign(choice, cuts, schedule, self.recompute),
            None => Assigned { blocks: self.chain.costs(choice), shares: Vec::new(), rounds },
        }
    }

    fn terms(&self, stages: &[StageOutcome], schedule: Schedule) -> Terms {
        let free_bytes = |stage: &StageOutcome| {
            ((1.0 - self.settings.reserve) * stage.memory_bytes - stage.bytes())
                / (1.0 + stage.slack)
        };
        Terms {
            rounds: self.candidate.micro_batches as f64,
            overlap: self.settings.overlap.under(schedule),
            budget: self.budget(),
            free_bytes: stages.iter().map(free_bytes).collect(),
        }
    }

    /// Returns the memory of every device of a stage, in bytes.
    pub(super) fn memory_bytes(&self, rank: usize) -> f64 {
        self.load_balance
            .map_or(self.costs.device.memory_bytes, |load_balance| load_balance.memory_bytes(rank))
    }

    /// Returns the stage of these blocks, without the activations of a recomputed block and the time of shared
    /// parameters, which the caller adds.
    fn stage(
        &self,
        choice: &Choice,
        blocks: &[Cost],
        range: &Range<usize>,
        schedule: Schedule,
        rank: usize,
    ) -> StageOutcome {
        let Candidate { stages, micro_batches, ref mesh, .. } = *self.candidate;
        let message = |end: usize, rank: usize| match self.chain.exit(choice, end - 1) {
            Some((shape, sides)) if rank + 1 < stages => {
                let hop = Group::next_stage(self.costs.cluster, mesh.iter().product(), rank);
                self.costs.message(shape, sides, &hop)
            }
            _ => Message::default(),
        };
        let sent = message(range.end, rank);
        let received_s = if rank > 0 { message(range.start, rank - 1).handling_s } else { 0.0 };
        StageOutcome {
            blocks: range.clone(),
            memory_bytes: self.memory_bytes(rank),
            cost: blocks[range.clone()].iter().copied().sum(),
            fixed_bytes: self.costs.device.fixed_bytes,
            slack: self.costs.device.slack,
            in_flight: schedule.in_flight(rank, stages, micro_batches),
            block_activation_bytes: 0.0,
            message_s: sent.seconds,
            message_bytes: sent.bytes,
            handling_s: sent.handling_s + received_s,
            shared_parameter_s: 0.0,
        }
    }
}
