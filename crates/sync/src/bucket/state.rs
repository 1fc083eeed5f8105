//! The state of a bucket: what is being filled, what is on its way, what is kept from step to step.
//!
//! Two buffers rotate. With error feedback, `values` leaves with the gradient and comes back with
//! the new residual; when the step is committed, the result is written over the old residual and the
//! two change places. A step that is skipped drops the new residual and keeps the old one, so
//! nothing has changed.

use std::ops::Range;

use thinwire_codec::{Choice, Finite, kernel};
use thinwire_collective::Address;
use thinwire_schedule::Summation;
use thinwire_wire::World;
use thinwire_wire::random::Key;

use crate::bucket::feedback::Memory;
use crate::bucket::layout::Bucket;
use crate::bucket::momentum::Velocity;
use crate::buffer::{ExternalBuffer, Tensor};
use crate::exchange::route::{Ranks, Route};
use crate::exchange::{Departure, Exchange, choose};
use crate::{BucketRecord, Error, Gradient, Outcome, Parameter, parameter};

/// Largest magnitude of gradients with feedback, 2^100; larger ones are as good as infinite. Residuals
/// can be some thousand times as large (topk sends an element only when it is among the largest), and are
/// added up over ranks only when the step can no longer be skipped.
const LARGEST_WITH_FEEDBACK: f32 = 1.267_650_6e30;

/// One bucket and its state.
#[derive(Debug)]
pub(crate) struct BucketState {
    pub(crate) bucket: Bucket,
    pub(crate) record: BucketRecord,
    ranks: Ranks,
    /// The elements whose averages this rank has.
    own: Range<usize>,
    matrices: Vec<(Range<usize>, (usize, usize))>,
    /// The gradient while it is gathered, the average afterwards.
    pub(super) values: Tensor,
    /// The sum of what lossy codecs have lost so far; empty if nothing ever was lost.
    pub(super) residual: Vec<f32>,
    pub(super) memory: Memory,
    pub(super) velocity: Option<Velocity>,
    codec: Choice,
    /// With feedback the exchange leaves a residual; without it an old one is sent along once.
    pub(super) feedback: bool,
    /// None while the bucket is on its way, and before the first plan.
    pub(super) exchange: Option<Box<dyn Exchange>>,
    given: Vec<bool>,
    left: usize,
    /// The members of which this rank has no gradient in this step.
    absent: Vec<bool>,
    /// What was kept of each of them before the step.
    before: Vec<(usize, Kept)>,
    /// The bits of the largest magnitude given on this rank, above those of infinity if there is a NaN.
    largest: u32,
    /// The first member that was given too large or not finite on this rank: its largest magnitude, and the
    /// most that there may be.
    pub(super) excess: Option<(usize, [f64; 2])>,
    /// Whether what has arrived last is not finite on all ranks.
    pub(super) spoilt: bool,
    /// Whether all gradients of all ranks are, once the bucket has arrived.
    arrived: Option<Finite>,
}

/// Everything that is kept of a member of a bucket from step to step: values by prefix of their name.
pub(super) type Kept = Vec<(&'static str, Vec<f32>)>;

/// The codec and the schedule by which a bucket travels.
#[derive(Clone, Debug)]
pub(crate) struct Travel {
    pub(crate) codec: Choice,
    pub(crate) summation: Summation,
    pub(crate) partitions: usize,
    /// The seed of the job.
    pub(crate) seed: u64,
}

impl BucketState {
    pub(crate) fn new(
        bucket: Bucket,
        parameters: &[Parameter],
        ranks: Ranks,
        memory: Memory,
        velocity: Option<Velocity>,
    ) -> BucketState {
        let matrix = |(parameter, range): &(usize, Range<usize>)| {
            (range.clone(), parameters[*parameter].as_matrix())
        };
        BucketState {
            matrices: bucket.members.iter().map(matrix).collect(),
            memory,
            velocity,
            ranks,
            own: 0..bucket.elements,
            record: BucketRecord::default(),
            values: Tensor::default(),
            residual: Vec::new(),
            codec: Choice::Bytes(thinwire_codec::raw()),
            feedback: false,
            exchange: None,
            given: vec![false; bucket.members.len()],
            left: bucket.members.len(),
            absent: vec![false; bucket.members.len()],
            before: Vec::new(),
            largest: 0,
            excess: None,
            spoilt: false,
            arrived: None,
            bucket,
        }
    }

    /// Changes how the bucket travels. The residual stays: what was lost is still owed.
    pub(crate) fn travel(&mut self, travel: Travel) {
        let first = self.bucket.members.first().map_or(0, |(parameter, _)| *parameter);
        let Travel { summation, .. } = travel;
        let route = Route {
            matrices: &self.matrices,
            elements: self.bucket.elements,
            summation,
            partitions: travel.partitions,
            target: self.bucket.target,
            ranks: &self.ranks,
            key: Key { seed: travel.seed, step: 0, tensor: first as u32 },
        };
        self.own = self.bucket.target.own(self.bucket.elements, self.ranks.world, summation);
        self.exchange = Some(choose::exchange(&travel.codec, &route));
        self.feedback = choose::leaves_residual(&travel.codec);
        self.codec = travel.codec;
        if self.feedback && self.residual.is_empty() {
            self.residual = vec![0.0; self.bucket.elements];
        }
    }

    /// Forgets what was given in the last step.
    pub(crate) fn clear(&mut self) {
        if matches!(self.values, Tensor::External(_)) {
            self.values = Tensor::default();
        }
        self.given.fill(false);
        self.left = self.given.len();
        self.absent.fill(false);
        self.before.clear();
        (self.largest, self.excess, self.spoilt) = (0, None, false);
    }

    /// Says that this rank has no gradient of the member with these elements, whatever is packed for it.
    pub(crate) fn mark_absent(&mut self, range: &Range<usize>) {
        let member = self.bucket.members.iter().position(|(_, place)| place == range);
        member.into_iter().for_each(|member| self.absent[member] = true);
    }

    /// Returns the parameters of which this rank has no gradient.
    pub(crate) fn absent(&self) -> impl Iterator<Item = usize> {
        let members = self.bucket.members.iter().zip(&self.absent);
        members.filter(|(_, absent)| **absent).map(|((parameter, _), _)| *parameter)
    }

    /// Packs `gradient * scale`. False if it has been given before.
    pub(crate) fn pack(&mut self, range: Range<usize>, gradient: Gradient<'_>, scale: f32) -> bool {
        let member = self.bucket.members.partition_point(|(_, place)| place.start < range.start);
        let member = (member..self.given.len())
            .find(|&index| self.bucket.members[index].1 == range && !self.given[index]);
        let Some(member) = member else { return false };
        self.given[member] = true;
        self.left -= 1;
        let largest = gradient.scale_into(&mut self.own_values()[range], scale);
        self.absent[member] |= largest == 0;
        self.largest = self.largest.max(largest);
        self.look_at(member, largest, scale);
        true
    }

    /// Returns memory of the bucket's own, which is made when it is first needed.
    fn own_values(&mut self) -> &mut [f32] {
        if self.values.as_ref().len() != self.bucket.elements
            || matches!(self.values, Tensor::External(_))
        {
            self.values = Tensor::Owned(vec![0.0; self.bucket.elements]);
        }
        self.values.as_mut()
    }

    /// Takes all gradients of the bucket at once, scaled.
    pub(crate) fn fill(&mut self, values: Vec<f32>) {
        assert_eq!(values.len(), self.bucket.elements, "gradients of another length");
        self.largest = kernel::max_magnitude(&values);
        self.values = Tensor::Owned(values);
        self.given.fill(true);
        self.left = 0;
    }

    /// Whether the bucket may be averaged where the framework has it: it travels raw, nothing is owed,
    /// and nothing was given yet.
    pub(crate) fn takes_external(&self) -> bool {
        let raw = matches!(&self.codec, Choice::Bytes(codec) if codec.is_raw());
        let plain = raw && self.residual.is_empty() && self.velocity.is_none();
        plain && self.left == self.given.len()
    }

    /// Takes all gradients of the bucket where they are.
    pub(crate) fn fill_external(&mut self, mut buffer: Box<dyn ExternalBuffer>, scale: f32) {
        assert_eq!(buffer.values().len(), self.bucket.elements, "memory of another length");
        self.largest = parameter::scale(buffer.values_mut(), scale);
        if self.given_finite() == Finite::No {
            for member in 0..self.bucket.members.len() {
                let range = self.bucket.members[member].1.clone();
                self.look_at(member, kernel::max_magnitude(&buffer.values()[range]), scale);
            }
        }
        self.values = Tensor::External(buffer);
        self.given.fill(true);
        self.left = 0;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Returns the first parameter whose gradient was not given.
    pub(crate) fn missing<'a>(&self, parameters: &'a [Parameter]) -> &'a str {
        let index = self.given.iter().position(|given| !given).unwrap_or(0);
        &parameters[self.bucket.members[index].0].name
    }

    /// Lets the bucket set out with all that was given.
    pub(crate) fn depart(&mut self, address: Address) -> (Box<dyn Exchange>, Departure) {
        let values = self.values.as_mut();
        if let Some(velocity) = &mut self.velocity {
            velocity.depart(values);
        }
        if self.feedback {
            self.memory.depart(values, &self.residual);
        } else if !self.residual.is_empty() {
            kernel::add(values, &self.residual);
        }
        let absent = (0..self.absent.len()).filter(|member| self.absent[*member]);
        self.before = absent.map(|member| (member, self.kept(member))).collect();
        let exchange = self.exchange.take().expect("a bucket is not on its way twice");
        let residual = self.feedback.then(|| std::mem::take(&mut self.residual));
        let values = std::mem::take(&mut self.values);
        (exchange, Departure { values, residual, finite: self.given_finite(), address })
    }

    /// Returns whether all gradients given on this rank are finite and, with feedback, not so large that sums
    /// of what was owed might overflow.
    fn given_finite(&self) -> Finite {
        Finite::from(self.largest <= self.most().to_bits())
    }

    /// Returns the largest magnitude that a scaled gradient may have.
    fn most(&self) -> f32 {
        if self.feedback { LARGEST_WITH_FEEDBACK } else { f32::MAX }
    }

    /// Remembers the first member whose largest magnitude, given by its bits, is too large.
    fn look_at(&mut self, member: usize, largest: u32, scale: f32) {
        let most = self.most();
        if largest > most.to_bits() && self.excess.is_none() {
            let values =
                [f32::from_bits(largest), most].map(|value| f64::from(value) / f64::from(scale));
            self.excess = Some((member, values));
        }
    }

    /// Takes back the exchange of a bucket that has arrived.
    pub(crate) fn arrive(&mut self, exchange: Box<dyn Exchange>, finite: Finite) {
        (self.exchange, self.arrived) = (Some(exchange), Some(finite));
        self.spoilt = finite == Finite::No;
    }

    /// Takes back the exchange of a bucket that was lost on its way, to be committed as skipped.
    pub(crate) fn lose(&mut self, exchange: Box<dyn Exchange>, departure: Option<Departure>) {
        match departure {
            Some(Departure { residual, .. }) => {
                self.exchange = Some(exchange);
                // Without feedback the residual has not left.
                if let Some(residual) = residual {
                    self.residual = residual;
                }
            }
            None => self.arrive(exchange, Finite::No),
        }
    }

    /// Whether the bucket has arrived with finite values, and its step has not ended.
    pub(crate) fn has_arrived(&self) -> bool {
        self.arrived == Some(Finite::Yes)
    }

    /// Whether what has arrived is finite; the same on all ranks.
    pub(crate) fn is_finite(&self) -> bool {
        self.arrived != Some(Finite::No)
    }

    /// Ends the step of a bucket that has arrived: keeps the result and the new residual, or neither. Of the
    /// parameters that are `absent` on all ranks, by their numbers, it keeps what was.
    pub(crate) fn commit(&mut self, outcome: Outcome, absent: &[bool]) -> Result<(), Error> {
        if self.arrived.take().is_none() {
            return Ok(());
        }
        let exchange = self.exchange.as_mut().expect("it has arrived");
        let (values, residual) = exchange.commit(outcome)?;
        self.values = values;
        if self.feedback {
            self.residual = residual;
        }
        if outcome == Outcome::Averaged {
            self.remember();
            self.undo(absent);
        }
        Ok(())
    }

    /// Takes the step back for parameters that no rank has a gradient of.
    fn undo(&mut self, absent: &[bool]) {
        for (member, before) in std::mem::take(&mut self.before) {
            let (parameter, range) = self.bucket.members[member].clone();
            if absent.get(parameter) == Some(&true) {
                // The framework's own memory has what it had.
                if let Tensor::Owned(values) = &mut self.values {
                    values[range].fill(0.0);
                }
                self.restore(member, &before);
            }
        }
    }

    /// Brings feedback and momentum to where they are after a step that was kept.
    fn remember(&mut self) {
        if let Some(velocity) = &mut self.velocity {
            velocity.settle(self.feedback.then_some(self.residual.as_slice()));
        }
        if self.feedback {
            self.memory.settle(self.values.as_mut(), &mut self.residual);
        } else {
            // What was owed was sent along.
            self.residual = Vec::new();
            self.memory.forget();
        }
    }

    /// Begins means of gradients anew, of which ranks that left may have a part.
    pub(crate) fn forget_means(&mut self) {
        self.memory.forget();
    }

    /// Lets what is owed count `factor` times from now on.
    pub(crate) fn rescale(&mut self, factor: f32) {
        self.residual.iter_mut().for_each(|owed| *owed *= factor);
    }

    /// Returns the averages after a step that was kept; of a sharded bucket, those of this rank's chunk.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values.as_ref()[self.own.clone()]
    }

    /// Returns this rank among those that exchange the bucket.
    pub(crate) fn world(&self) -> World {
        self.ranks.world
    }

    /// Returns all gradients that were given, before the bucket sets out.
    pub(crate) fn given(&self) -> &[f32] {
        self.values.as_ref()
    }

    /// Returns what is owed; empty if nothing ever was lost.
    pub(crate) fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// Continues from what was owed.
    pub(crate) fn set_residual(&mut self, residual: Vec<f32>) {
        self.residual = residual;
    }

    /// Returns the bytes that this rank will send of the bucket in the next step.
    pub(crate) fn step_bytes(&mut self) -> u64 {
        self.exchange.as_mut().map_or(0, |exchange| exchange.sent_bytes())
    }

    /// Returns the bytes that are kept beyond the gradients.
    pub(crate) fn state_bytes(&self) -> usize {
        let momentum = self.velocity.as_ref().map_or(0, Velocity::bytes);
        self.residual.len() * 4 + self.memory.bytes() + momentum
    }
}

#[cfg(test)]
mod tests;
