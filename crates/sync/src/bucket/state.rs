//! The state of a bucket: what is being filled, what is on its way, what is kept from step to step.
//!
//! Two buffers rotate. With error feedback, `values` leaves with the gradient and comes back with
//! the new residual; when the step is committed, the result is written over the old residual and the
//! two change places. A step that is skipped drops the new residual and keeps the old one, so
//! nothing has changed.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use thinwire_codec::{Choice, Finite, kernel};
use thinwire_collective::{Address, Buffer, Check};
use thinwire_device::{Change, Done, Region, Source, Work, submit};
use thinwire_schedule::Summation;
use thinwire_wire::World;
use thinwire_wire::random::Key;

use crate::bucket::feedback::Memory;
use crate::bucket::layout::Bucket;
use crate::bucket::momentum::Velocity;
use crate::buffer::{ExternalBuffer, Tensor};
use crate::exchange::route::{Ranks, Route};
use crate::exchange::{Departure, Exchange, choose};
use crate::{BucketRecord, Error, Feedback, Gradient, Outcome, Parameter, parameter};

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
    /// The residual: the accumulated codec error; empty if there never was any.
    pub(super) residual: Tensor,
    /// Memory of the device that has the gradients, from a departure in host memory to the end of the step.
    device: Option<Region>,
    /// Whether the gradients of this step were copied from a device to host memory.
    is_staged: bool,
    /// Questions to the device about the given gradients.
    checks: Vec<Check>,
    waker: Waker,
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
    /// The kept state of each of them before the step.
    before: Vec<(usize, Kept)>,
    /// The bits of the largest magnitude given on this rank, above those of infinity if there is a NaN.
    largest: u32,
    /// The first member that was found too large or not finite on this rank.
    pub(super) excess: Arc<OnceLock<Excess>>,
    /// Whether the values that have arrived last are not finite; the same on all ranks.
    pub(super) spoilt: bool,
    /// Whether all gradients of all ranks are finite, once the bucket has arrived.
    arrived: Option<Finite>,
}

/// Member of a bucket whose gradient is too large or not finite on this rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Excess {
    pub(super) member: usize,
    /// Its largest magnitude.
    pub(super) found: f64,
    /// The largest permitted magnitude.
    pub(super) most: f64,
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
            residual: Tensor::default(),
            device: None,
            is_staged: false,
            checks: Vec::new(),
            waker: Waker::noop().clone(),
            codec: Choice::Bytes(thinwire_codec::raw()),
            feedback: false,
            exchange: None,
            given: vec![false; bucket.members.len()],
            left: bucket.members.len(),
            absent: vec![false; bucket.members.len()],
            before: Vec::new(),
            largest: 0,
            excess: Arc::default(),
            spoilt: false,
            arrived: None,
            bucket,
        }
    }

    /// Wakes the communication thread by `waker` when a device has an answer.
    #[must_use]
    pub(crate) fn waking(self, waker: Waker) -> BucketState {
        BucketState { waker, ..self }
    }

    /// Changes how the bucket travels. The residual stays.
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
        if self.feedback && self.residual.len() == 0 {
            self.residual = Tensor::Owned(vec![0.0; self.bucket.elements]);
        }
    }

    /// Forgets what was given in the last step.
    pub(crate) fn clear(&mut self) {
        if let Some(region) = self.device.take() {
            // A step that was not kept has left its gradients in host memory.
            self.values = Tensor::Device(region);
        } else if matches!(self.values, Tensor::External(_)) {
            self.values = Tensor::default();
        }
        self.given.fill(false);
        self.left = self.given.len();
        self.absent.fill(false);
        self.before.clear();
        (self.largest, self.excess, self.spoilt) = (0, Arc::default(), false);
        self.checks.clear();
        self.is_staged = false;
    }

    /// Declares that this rank has no gradient of the member with these elements, whatever is packed
    /// for it.
    pub(crate) fn mark_absent(&mut self, range: &Range<usize>) {
        let member = self.bucket.members.iter().position(|(_, place)| place == range);
        member.into_iter().for_each(|member| self.absent[member] = true);
    }

    /// Returns the parameters of which this rank has no gradient.
    pub(crate) fn absent(&self) -> impl Iterator<Item = usize> {
        let members = self.bucket.members.iter().zip(&self.absent);
        members.filter(|(_, absent)| **absent).map(|((parameter, _), _)| *parameter)
    }

    /// Packs `gradient * scale`. Returns false if it has been given before.
    pub(crate) fn pack(&mut self, range: Range<usize>, gradient: Gradient<'_>, scale: f32) -> bool {
        let member = self.bucket.members.partition_point(|(_, place)| place.start < range.start);
        let member = (member..self.given.len())
            .find(|&index| self.bucket.members[index].1 == range && !self.given[index]);
        let Some(member) = member else { return false };
        self.given[member] = true;
        self.left -= 1;
        let is_first = self.left + 1 == self.given.len();
        match (gradient, &self.values) {
            (Gradient::Device(region), _) if is_first => {
                self.use_device(region);
                self.pack_on_device(member, range, region, scale);
            }
            // The first gradient decides where those of the bucket are; others are copied there.
            (Gradient::Device(region), Tensor::Device(values))
                if region.device().id() == values.device().id() =>
            {
                self.pack_on_device(member, range, region, scale);
            }
            (gradient, Tensor::Device(values)) if !is_first => {
                let mut host = vec![0.0; range.len()];
                gradient.scale_into(&mut host, 1.0);
                let region = values.device().upload(&host);
                self.pack_on_device(member, range, &region, scale);
            }
            (gradient, _) => {
                let largest = gradient.scale_into(&mut self.own_values()[range], scale);
                self.absent[member] |= largest == 0;
                self.largest = self.largest.max(largest);
                let _ = look_at(&self.excess, Seen { member, largest, scale, most: self.most() });
            }
        }
        true
    }

    /// Makes memory for the bucket on the device of a gradient, unless it is there.
    fn use_device(&mut self, gradient: &Region) {
        let is_there = matches!(&self.values, Tensor::Device(values)
            if values.device().id() == gradient.device().id());
        if !is_there {
            self.values = Tensor::Device(gradient.device().allocate(self.bucket.elements));
        }
    }

    /// Packs a gradient in the memory of the bucket's device, which does it later and then reports
    /// whether it is finite.
    fn pack_on_device(
        &mut self,
        member: usize,
        range: Range<usize>,
        gradient: &Region,
        scale: f32,
    ) {
        let change = Change::Pack(Source::Device(gradient.clone()), scale);
        let packed = submit(Work::Change(self.values.operand(range), change), &self.waker);
        let (mut pending, excess, most) =
            (packed.into_pending(), Arc::clone(&self.excess), self.most());
        self.checks.push(Check::new(move || {
            let Done { largest, failure, .. } = pending.poll()?;
            let seen = Seen { member, largest, scale, most };
            Some(failure.map_or_else(|| Ok(look_at(&excess, seen)), Err))
        }));
    }

    /// Copies gradients from a device to host memory, for an exchange or a state that the device does
    /// not support.
    fn leave_device(&mut self) {
        let values = Tensor::Owned(self.values.to_host().into_owned());
        let Tensor::Device(region) = std::mem::replace(&mut self.values, values) else { return };
        (self.device, self.is_staged) = (Some(region), true);
        // The work has been done, but its end may still be on its way here.
        let mut failed = None;
        while !self.checks.is_empty() {
            match Check::answered(&mut self.checks) {
                Ok(Finite::Yes) => {}
                Ok(Finite::No) => self.largest = u32::MAX,
                Err(failure) => failed = Some(failure),
            }
            std::thread::yield_now();
        }
        // What a device that has failed had is worthless: the group ends with its failure.
        if let Some(failure) = failed {
            let mut answer = Some(Err(failure));
            self.checks.push(Check::new(move || answer.take()));
        }
    }

    /// Returns the codec or option that the device does not support, if gradients of this step were
    /// copied to host memory for it.
    pub(crate) fn staged(&self) -> Option<String> {
        self.is_staged.then(|| match (&self.velocity, self.memory.kind()) {
            (Some(_), _) => "momentum correction".to_owned(),
            (None, Feedback::Classic) => format!("codec {}", self.codec),
            (None, kind) => format!("feedback {kind}"),
        })
    }

    /// Returns whether the device that has the gradients supports everything that the bucket needs.
    fn stays_on(&self, device: &Region) -> bool {
        let exchange = self.exchange.as_ref().expect("a bucket is not on its way twice");
        let is_plain = self.velocity.is_none() && self.memory.kind() == Feedback::Classic;
        is_plain && exchange.runs_on(device.device())
    }

    /// Returns the bucket's own host memory, which is allocated when it is first needed.
    fn own_values(&mut self) -> &mut [f32] {
        let is_owned =
            matches!(&self.values, Tensor::Owned(values) if values.len() == self.bucket.elements);
        if !is_owned {
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

    /// Returns whether the bucket may be averaged in the framework's memory: it travels raw, has no
    /// residual, and no gradient was given yet.
    pub(crate) fn takes_external(&self) -> bool {
        let raw = matches!(&self.codec, Choice::Bytes(codec) if codec.is_raw());
        let plain = raw && self.residual.len() == 0 && self.velocity.is_none();
        plain && self.left == self.given.len()
    }

    /// Takes all gradients of the bucket in the framework's memory.
    pub(crate) fn fill_external(&mut self, mut buffer: Box<dyn ExternalBuffer>, scale: f32) {
        assert_eq!(buffer.values().len(), self.bucket.elements, "memory of another length");
        self.largest = parameter::scale(buffer.values_mut(), scale);
        if self.given_finite() == Finite::No {
            for member in 0..self.bucket.members.len() {
                let range = self.bucket.members[member].1.clone();
                let largest = kernel::max_magnitude(&buffer.values()[range]);
                let _ = look_at(&self.excess, Seen { member, largest, scale, most: self.most() });
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

    /// Lets the bucket depart with all given gradients.
    pub(crate) fn depart(&mut self, address: Address) -> (Box<dyn Exchange>, Departure) {
        if let Tensor::Device(region) = &self.values
            && !self.stays_on(region)
        {
            self.leave_device();
        }
        self.residual.move_beside(&self.values);
        if let Some(velocity) = &mut self.velocity {
            velocity.depart(self.values.as_mut());
        }
        if self.feedback {
            self.memory.depart(&mut self.values, &self.residual);
        } else if self.residual.len() > 0 {
            let elements = 0..self.bucket.elements;
            let change = Change::Add(self.residual.source(elements.clone()));
            self.values.change(elements, change);
        }
        let absent = (0..self.absent.len()).filter(|member| self.absent[*member]);
        self.before = absent.map(|member| (member, self.kept(member))).collect();
        let exchange = self.exchange.take().expect("a bucket is not on its way twice");
        let residual = self.feedback.then(|| std::mem::take(&mut self.residual));
        let values = std::mem::take(&mut self.values);
        let (finite, waker) = (self.given_finite(), self.waker.clone());
        let checks = std::mem::take(&mut self.checks);
        (exchange, Departure { values, residual, finite, checks, waker, address })
    }

    /// Returns whether all gradients given on this rank are finite and, with feedback, not so large
    /// that sums with residuals might overflow.
    fn given_finite(&self) -> Finite {
        Finite::from(self.largest <= self.most().to_bits())
    }

    /// Returns the largest magnitude that a scaled gradient may have.
    fn most(&self) -> f32 {
        if self.feedback { LARGEST_WITH_FEEDBACK } else { f32::MAX }
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

    /// Returns whether the bucket has arrived with finite values, and its step has not ended.
    pub(crate) fn has_arrived(&self) -> bool {
        self.arrived == Some(Finite::Yes)
    }

    /// Returns whether what has arrived is finite; the same on all ranks.
    pub(crate) fn is_finite(&self) -> bool {
        self.arrived != Some(Finite::No)
    }

    /// Ends the step of a bucket that has arrived: keeps the result and the new residual, or neither.
    /// For parameters that are `absent` on all ranks, by their numbers, it restores the state before
    /// the step.
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
            self.return_to_device();
        }
        Ok(())
    }

    /// Copies averages to the device from which the gradients were copied.
    fn return_to_device(&mut self) {
        if let Some(region) = self.device.take() {
            region.device().write(self.values.as_ref(), &region);
            self.values = Tensor::Device(region);
        }
    }

    /// Takes the step back for parameters that no rank has a gradient of.
    fn undo(&mut self, absent: &[bool]) {
        for (member, before) in std::mem::take(&mut self.before) {
            let (parameter, range) = self.bucket.members[member].clone();
            if absent.get(parameter) == Some(&true) {
                // The framework's own memory has what it had.
                if !matches!(self.values, Tensor::External(_)) {
                    self.values.change(range, Change::Fill(0.0));
                }
                self.restore(member, &before);
            }
        }
    }

    /// Brings feedback and momentum to where they are after a step that was kept.
    fn remember(&mut self) {
        if let Some(velocity) = &mut self.velocity {
            velocity.settle(self.feedback.then_some(self.residual.as_ref()));
        }
        if self.feedback {
            self.memory.settle(&mut self.values, &mut self.residual);
        } else {
            // What was owed was sent along.
            self.residual = Tensor::default();
            self.memory.forget();
        }
    }

    /// Resets means of gradients, in which ranks that have left may have a part.
    pub(crate) fn forget_means(&mut self) {
        self.memory.forget();
    }

    /// Multiplies the residual by `factor`.
    pub(crate) fn rescale(&mut self, factor: f32) {
        self.residual.change(0..self.residual.len(), Change::Scale(factor));
    }

    /// Returns the averages after a step that was kept, in host memory; of a sharded bucket, those of this
    /// rank's chunk.
    ///
    /// # Panics
    /// If a device has them.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values.as_ref()[self.own.clone()]
    }

    /// Returns the averages after a step that was kept, if a device has them.
    pub(crate) fn region(&self) -> Option<Region> {
        match &self.values {
            Tensor::Device(region) => Some(region.slice(self.own.clone())),
            _ => None,
        }
    }

    /// Returns this rank among those that exchange the bucket.
    pub(crate) fn world(&self) -> World {
        self.ranks.world
    }

    /// Returns all gradients that were given, before the bucket sets out.
    pub(crate) fn given(&self) -> Cow<'_, [f32]> {
        self.values.to_host()
    }

    /// Returns the residual; empty if there never was a codec error.
    pub(crate) fn residual(&self) -> Cow<'_, [f32]> {
        self.residual.to_host()
    }

    /// Continues from a residual.
    pub(crate) fn set_residual(&mut self, residual: Vec<f32>) {
        self.residual = Tensor::Owned(residual);
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

/// Largest magnitude of a member that was seen.
struct Seen {
    member: usize,
    /// Its bits.
    largest: u32,
    /// Factor of the gradient.
    scale: f32,
    /// The largest that the scaled gradient may have.
    most: f32,
}

/// Returns whether a member's magnitude may travel; the first one that may not is remembered.
fn look_at(excess: &OnceLock<Excess>, seen: Seen) -> Finite {
    let Seen { member, largest, scale, most } = seen;
    if largest <= most.to_bits() {
        return Finite::Yes;
    }
    let of_gradient = |value: f32| f64::from(value) / f64::from(scale);
    excess.get_or_init(|| {
        let (found, most) = (of_gradient(f32::from_bits(largest)), of_gradient(most));
        Excess { member, found, most }
    });
    Finite::No
}

#[cfg(test)]
mod tests;
