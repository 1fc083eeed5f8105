//! Bytes of a step: every exchange of every stage, by tensor and by kind.
//!
//! All ranks of a stage have the same instructions, so one program per stage is enough. Each exchange is the
//! schedule that the executor runs, and its bytes are those of the schedule's messages, without headers.
//!
//! Law: bytes and headers of all exchanges equal the sum of [`Program::sent_bytes`] over all ranks. The
//! exception are groups with very long schedules, for which one unit of ranks is counted and represents
//! all units.
//!
//! [`Program::sent_bytes`]: crate::Program::sent_bytes

mod count;
mod volume;

use std::sync::Arc;

use thinwire_model::{NodeId, Origin, TensorId, Training};
use thinwire_wire::{HEADER_BYTES, Rank};

use crate::{Assignment, Error, Plan, derive};
use count::Counter;

pub use volume::{Sent, Volume};

/// The kind of tensor that an exchange moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// An activation or its gradient, within a stage.
    Activation,
    /// A parameter or its gradient.
    Parameter,
    /// An activation or its gradient, between stages.
    Message,
}

/// The ranks between which an exchange takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    /// The ranks that differ only in this dimension of the mesh.
    Along(usize),
    /// A rank of the sending stage, and the rank with the same coordinates on the stage with this
    /// number.
    To(usize),
}

/// The number of times that an exchange takes place in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Times {
    /// Once.
    Once,
    /// Once in every micro-batch of a rank.
    EachMicroBatch,
}

/// An exchange of all ranks of a stage, in groups that exchange at the same time.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The stage of the senders.
    pub stage: usize,
    /// The kind of tensor.
    pub kind: Kind,
    /// The tensor of the training graph.
    pub tensor: TensorId,
    /// The tensor of the model that is moved, or whose gradient is moved.
    pub subject: TensorId,
    /// The ranks that take part.
    pub route: Route,
    /// The number of times that the exchange takes place in a step.
    pub times: Times,
    /// The bytes of one group in one exchange.
    pub volume: Arc<Volume>,
}

/// All exchanges of a step.
#[derive(Clone, Debug)]
pub struct StepBytes {
    /// The lengths of every stage's mesh.
    pub sizes: Vec<usize>,
    /// The number of stages.
    pub stages: usize,
    /// The exchanges that send anything, stage by stage.
    pub exchanges: Vec<Exchange>,
    /// Micro-batches of a step, mean over the parts of the batch.
    pub micro_batches: usize,
    /// Micro-batches of every part along the first dimension of the mesh, if they differ.
    pub shares: Vec<usize>,
}

impl StepBytes {
    /// Counts the bytes of a plan's step; an element that is not encoded has `element_bytes` bytes.
    ///
    /// # Errors
    /// If the plan is not for this graph, or contradicts itself.
    pub fn of(training: &Training, plan: &Plan, element_bytes: usize) -> Result<StepBytes, Error> {
        plan.check(training)?;
        StepBytes::of_assignment(&Assignment::new(training, plan), element_bytes)
    }

    /// Counts the bytes of an assignment's step. The plan must have been checked.
    ///
    /// # Errors
    /// If the plan contradicts itself.
    pub fn of_assignment(
        assignment: &Assignment<'_>,
        element_bytes: usize,
    ) -> Result<StepBytes, Error> {
        let plan = assignment.plan;
        let mut counter = Counter::new(assignment, element_bytes);
        for stage in 0..plan.stages {
            let first = Rank((stage * plan.stage_ranks()) as u32);
            counter.program(&derive(assignment, first)?);
        }
        Ok(StepBytes {
            sizes: assignment.sizes.clone(),
            stages: plan.stages,
            exchanges: counter.exchanges,
            micro_batches: plan.micro_batches,
            shares: plan.shares.iter().map(|share| share.micro_batches).collect(),
        })
    }

    /// Returns the ranks of one stage.
    pub fn width(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Returns the bytes that all ranks of the exchange's stage send for it in a step, without headers.
    pub fn bytes(&self, exchange: &Exchange) -> u64 {
        self.all_groups(exchange) * exchange.volume.bytes()
    }

    /// Returns the bytes of all ranks in a step, including the headers of messages.
    pub fn total_with_headers(&self) -> u64 {
        let header = HEADER_BYTES as u64;
        let all = self.exchanges.iter().map(|one| {
            self.all_groups(one) * (one.volume.bytes() + header * one.volume.messages())
        });
        all.sum()
    }

    /// Calls `visit` with sender, receiver and bytes per step, for all pairs of ranks in an exchange.
    pub fn pairs(&self, exchange: &Exchange, mut visit: impl FnMut(Rank, Rank, u64)) {
        let (width, volume) = (self.width(), &exchange.volume);
        for within in 0..width {
            let from = exchange.stage * width + within;
            // The place in the group, its first rank, and from one of its ranks to the next one.
            let (at, first, next) = match exchange.route {
                Route::Along(dim) => {
                    let next: usize = self.sizes[dim + 1..].iter().product();
                    let at = within / next % self.sizes[dim];
                    (at, from - at * next, next)
                }
                Route::To(stage) => (0, stage * width + within, 0),
            };
            let times = self.times(exchange.times, within);
            for sent in volume.of(at) {
                let to = first + sent.to * next;
                visit(Rank(from as u32), Rank(to as u32), times * sent.bytes);
            }
        }
    }

    /// Returns the number of times that the rank at an index within its stage takes part in an exchange
    /// in a step.
    fn times(&self, times: Times, within: usize) -> u64 {
        let parts = self.sizes.first().copied().unwrap_or(1);
        let part = within / (self.width() / parts);
        match times {
            Times::Once => 1,
            Times::EachMicroBatch => {
                self.shares.get(part).copied().unwrap_or(self.micro_batches) as u64
            }
        }
    }

    /// Returns the number of groups of an exchange, each counted as often as it exchanges in a step.
    /// Parts of the batch with unequal work have the same total number of micro-batches as parts with
    /// equal work, and exchange nothing of single micro-batches with each other.
    fn all_groups(&self, exchange: &Exchange) -> u64 {
        let times = match exchange.times {
            Times::Once => 1,
            Times::EachMicroBatch => self.micro_batches,
        };
        (self.width() / exchange.volume.members * times) as u64
    }
}

/// Returns, for every tensor of a training graph, the tensor of the model that it is, or of which it is a
/// gradient. Any other tensor that a gradient node computes counts for the first output of the model's
/// node to which the gradient belongs.
pub fn subjects(assignment: &Assignment<'_>) -> Vec<TensorId> {
    let Training { graph, origins, gradients } = assignment.training;
    let mut all: Vec<Option<TensorId>> = vec![None; graph.tensors.len()];
    (0..gradients.len()).for_each(|tensor| all[tensor] = Some(tensor));
    // A sum's gradient is that of its terms, too: it counts for the sum.
    for (tensor, gradient) in gradients.iter().enumerate().rev() {
        let mut open: Vec<TensorId> = gradient.iter().copied().collect();
        while let Some(part) = open.pop() {
            if all[part].is_some() {
                continue;
            }
            all[part] = Some(tensor);
            let Some((node, _)) = assignment.producers[part] else { continue };
            if origins[node] == Origin::Accumulate(tensor) {
                open.extend(&graph.nodes[node].inputs);
            }
        }
    }
    let of_node = |node: NodeId| match origins[node] {
        Origin::Gradient(of) => graph.nodes[of].outputs[0],
        Origin::Accumulate(tensor) => tensor,
        Origin::Forward | Origin::Seed => graph.loss.unwrap_or(0),
    };
    let known = |(tensor, subject): (TensorId, Option<TensorId>)| {
        let producer = || assignment.producers[tensor].map_or(tensor, |(node, _)| of_node(node));
        subject.unwrap_or_else(producer)
    };
    all.into_iter().enumerate().map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_the_ranks_of_the_mesh() {
        let volume = Volume { members: 3, sent: vec![vec![Sent { to: 1, bytes: 5, messages: 1 }]] };
        let (stage, kind, times) = (1, Kind::Activation, Times::EachMicroBatch);
        let (tensor, subject, volume) = (0, 0, Arc::new(volume));
        let along =
            Exchange { stage, kind, tensor, subject, route: Route::Along(1), times, volume };
        let bytes = StepBytes {
            sizes: vec![2, 3, 2],
            stages: 2,
            exchanges: Vec::new(),
            micro_batches: 2,
            shares: vec![1, 3],
        };
        let mut found = Vec::new();
        bytes.pairs(&along, |from, to, sent| found.push((from.0, to.0, sent)));
        // Ranks of the second stage begin at 12; parts of the batch do one micro-batch and three.
        assert_eq!(found[..3], [(12, 14, 5), (13, 15, 5), (14, 16, 5)]);
        assert_eq!(found[4..7], [(16, 12, 5), (17, 13, 5), (18, 20, 15)]);
        assert_eq!(found.iter().map(|(.., sent)| sent).sum::<u64>(), bytes.bytes(&along));
    }
}
