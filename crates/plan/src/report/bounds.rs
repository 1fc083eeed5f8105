//! The fewest bytes that devices must send of each tensor, given the cut of every operator.

use std::collections::HashMap;

use thinwire_model::{Layout, Placement, TensorId};
use thinwire_program::bytes::subjects;
use thinwire_program::{Assignment, End};

use super::least::relayout;

/// Bounds on the tensors of an assignment, in bytes of all devices in a step.
pub(super) struct Bounds<'a> {
    assignment: &'a Assignment<'a>,
    element_bytes: f64,
    devices: f64,
    /// For every tensor of the model: the tensor itself, its gradient, and the terms of its gradient.
    parts: HashMap<TensorId, Vec<TensorId>>,
    /// Fewest elements that a device must send from one layout to another, mean over the devices.
    known: HashMap<(Vec<usize>, Layout, Layout), f64>,
}

impl<'a> Bounds<'a> {
    pub fn new(assignment: &'a Assignment<'a>, element_bytes: usize) -> Bounds<'a> {
        let mut parts: HashMap<TensorId, Vec<TensorId>> = HashMap::new();
        for (part, subject) in subjects(assignment).into_iter().enumerate() {
            parts.entry(subject).or_default().push(part);
        }
        let devices = assignment.sizes.iter().product::<usize>() as f64;
        let known = HashMap::new();
        Bounds { assignment, element_bytes: element_bytes as f64, devices, parts, known }
    }

    /// Returns the fewest bytes that an activation and its gradient need, from the layout in which each
    /// is made to the layout of the most expensive reader.
    pub fn activation(&mut self, tensor: TensorId) -> f64 {
        let rounds = self.assignment.plan.micro_batches as f64;
        let parts = self.parts.get(&tensor).cloned().unwrap_or_default();
        let elements: f64 = parts.into_iter().map(|part| self.one(part)).sum();
        rounds * self.devices * self.element_bytes * elements
    }

    /// Returns the fewest elements of one tensor of the training graph, mean over a stage's devices.
    fn one(&mut self, tensor: TensorId) -> f64 {
        let assignment = self.assignment;
        let Some(end) = assignment.producers[tensor] else { return 0.0 };
        let home = assignment.stage_of(end.0);
        let produced = assignment.produced(end);
        let mut most: HashMap<usize, f64> = HashMap::new();
        for reader in &assignment.consumers[tensor] {
            if assignment.is_left_out(reader.0) {
                continue;
            }
            let stage = assignment.stage_of(reader.0);
            let mut from = produced.clone();
            if stage != home {
                from = assignment.boundary(tensor, stage);
                self.reach(most.entry(home).or_default(), tensor, [&produced, &from]);
            }
            let to = assignment.required(*reader);
            self.reach(most.entry(stage).or_default(), tensor, [&from, &to]);
        }
        most.values().sum()
    }

    /// Raises the minimum that a stage sends to that of a conversion from one layout to another.
    fn reach(&mut self, most: &mut f64, tensor: TensorId, [from, to]: [&Layout; 2]) {
        let shape = &self.assignment.training.graph.tensors[tensor].shape;
        let key = (shape.clone(), from.clone(), to.clone());
        let least = || relayout(shape, &self.assignment.sizes, from, to);
        *most = most.max(*self.known.entry(key).or_insert_with(least));
    }

    /// Returns the fewest bytes that a parameter needs. If r ranks of one stage sum their shares and all
    /// of them get the sum, they send 2 (r−1)/r of their elements. Every further stage sends its sum to
    /// the first stage and gets the new values back.
    pub fn parameter(&self, tensor: TensorId) -> f64 {
        let assignment = self.assignment;
        if assignment.training.gradients[tensor].is_none() {
            return 0.0;
        }
        let users = assignment.users(tensor);
        let shares = assignment.shares(tensor);
        let of_stage = |stage: &usize| {
            let mine = shares.iter().filter(|end| assignment.stage_of(end.0) == *stage);
            mine.map(|share| self.share(tensor, *stage, *share)).fold(0.0, f64::max)
        };
        let alone: f64 = users.iter().map(of_stage).sum();
        let whole = assignment.training.graph.tensors[tensor].elements() as f64;
        let others = (users.len().max(1) - 1) as f64;
        self.element_bytes * (self.devices * alone + 2.0 * others * whole)
    }

    /// Returns the fewest elements that a device must send so that the shares of a gradient are summed and
    /// all ranks that have one get the sum.
    fn share(&self, tensor: TensorId, stage: usize, share: End) -> f64 {
        let sizes = &self.assignment.sizes;
        let whole = self.assignment.whole_resident_layout(tensor, stage);
        let gradient = self.assignment.produced(share);
        let summed = gradient.0.iter().zip(&whole.0).zip(sizes).filter(|((from, to), _)| {
            matches!(from, Placement::Partial(_)) && **to == Placement::Replicated
        });
        let ranks = summed.map(|(_, size)| *size as f64).product::<f64>();
        let shape = &self.assignment.training.graph.tensors[tensor].shape;
        2.0 * (ranks - 1.0) / ranks * whole.local_elements(shape, sizes) as f64
    }
}
