//! A bucket with its buffers: what is being filled, what is on its way, what has come back.
//!
//! Two buffers rotate. With error feedback, `values` leaves with the gradient and comes back with
//! the new residual; when the step is settled, the result is written over the old residual and the
//! two change places. A step that is skipped drops the new residual and keeps the old one, so
//! nothing has changed.

mod kept;

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::Choice;
use thinwire_collective::operations::carries;
use thinwire_schedule::Algorithm;
use thinwire_wire::World;
use thinwire_wire::random::Key;

use crate::bucket::Bucket;
use crate::exchange::{Arrival, Body};
use crate::feedback::Memory;
use crate::method::{Method, Route};
use crate::momentum::Velocity;
use crate::plan::Assignment;
use crate::tensor::{Lent, Tensor};
use crate::{BucketRecord, Error, Gradient, Options, Parameter, parameter};

/// More parts of a bucket than any plan has.
const PARTITIONS_MAX: usize = 1 << 16;

/// One bucket and its state.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) bucket: Bucket,
    pub(crate) record: BucketRecord,
    matrices: Vec<(Range<usize>, (usize, usize))>,
    /// The gradient while it is gathered, the average afterwards.
    values: Tensor,
    /// What lossy codecs have lost so far; empty if nothing ever was.
    residual: Vec<f32>,
    memory: Memory,
    velocity: Option<Velocity>,
    /// The method leaves a residual; else an old one is sent along and then gone.
    feedback: bool,
    method: Option<Method>,
    given: Vec<bool>,
    left: usize,
    /// Whether all that was given is.
    finite: bool,
    arrival: Option<Arrival>,
}

impl Lane {
    pub(crate) fn new(
        matrices: Vec<(Range<usize>, (usize, usize))>,
        bucket: Bucket,
        memory: Memory,
        velocity: Option<Velocity>,
    ) -> Lane {
        Lane {
            memory,
            velocity,
            record: BucketRecord::default(),
            values: Tensor::default(),
            residual: Vec::new(),
            feedback: false,
            method: None,
            given: vec![false; bucket.members.len()],
            left: bucket.members.len(),
            finite: true,
            arrival: None,
            matrices,
            bucket,
        }
    }

    /// Changes how the bucket travels. The residual stays: what was lost is still owed.
    pub(crate) fn assign(
        &mut self,
        assignment: &Assignment,
        world: World,
        options: &Options,
        parameters: &[Parameter],
    ) -> Result<(), Error> {
        let invalid = |detail: String| {
            Error::Invalid(format!("the plan for {}: {detail}", self.bucket.name(parameters)))
        };
        let choice =
            options.policy.choice(&assignment.codec).map_err(|error| invalid(error.to_string()))?;
        let algorithm: Algorithm = assignment
            .algorithm
            .parse()
            .map_err(|error: thinwire_schedule::UnknownAlgorithm| invalid(error.to_string()))?;
        check_world(&choice, world).map_err(invalid)?;
        // A plan may be of a file.
        if !carries(algorithm, choice.exchange()) {
            return Err(invalid(format!("algorithm {algorithm} does not carry codec {choice}")));
        }
        let partitions = assignment.partitions;
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            let expected = format!("expected 1 to {PARTITIONS_MAX}");
            return Err(invalid(format!("{partitions} partitions, {expected}")));
        }
        let first = self.bucket.members.first().map_or(0, |(parameter, _)| *parameter);
        let method = Method::new(
            choice,
            &Route {
                matrices: &self.matrices,
                elements: self.bucket.elements,
                algorithm,
                partitions,
                world,
                key: Key { seed: options.seed, step: 0, tensor: first as u32 },
            },
        );
        self.feedback = method.feedback();
        if self.feedback && self.residual.is_empty() {
            self.residual = vec![0.0; self.bucket.elements];
        }
        self.method = Some(method);
        Ok(())
    }

    /// Forgets what was given in the last step.
    pub(crate) fn clear(&mut self) {
        if matches!(self.values, Tensor::Lent(_)) {
            self.values = Tensor::default();
        }
        self.given.fill(false);
        self.left = self.given.len();
        self.finite = true;
    }

    /// Packs `gradient * scale`. False if it has been given before.
    pub(crate) fn pack(&mut self, range: Range<usize>, gradient: Gradient<'_>, scale: f32) -> bool {
        let member = self.bucket.members.partition_point(|(_, place)| place.start < range.start);
        let member = (member..self.given.len())
            .find(|&index| self.bucket.members[index].1 == range && !self.given[index]);
        let Some(member) = member else { return false };
        self.given[member] = true;
        self.left -= 1;
        self.finite &= gradient.scale_into(&mut self.own_values()[range], scale);
        true
    }

    /// The lane's own memory, which is made when it is first needed.
    fn own_values(&mut self) -> &mut [f32] {
        if self.values.as_ref().len() != self.bucket.elements
            || matches!(self.values, Tensor::Lent(_))
        {
            self.values = Tensor::Owned(vec![0.0; self.bucket.elements]);
        }
        self.values.as_mut()
    }

    /// Whether the bucket may be averaged where it is: it travels raw, nothing is owed, and nothing
    /// was given yet.
    pub(crate) fn takes_loans(&self) -> bool {
        let raw = matches!(&self.method, Some(Method::Bytes(program)) if program.codec().is_raw());
        let plain = raw && self.residual.is_empty() && self.velocity.is_none();
        plain && self.left == self.given.len()
    }

    /// Takes all gradients of the bucket where they are.
    pub(crate) fn borrow(&mut self, mut memory: Box<dyn Lent>, scale: f32) {
        assert_eq!(memory.values().len(), self.bucket.elements, "memory of another length");
        self.finite &= parameter::scale(memory.values_mut(), scale);
        self.values = Tensor::Lent(memory);
        self.given.fill(true);
        self.left = 0;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Whether all that was given on this rank is finite.
    pub(crate) fn gave_finite(&self) -> bool {
        self.finite
    }

    /// The first parameter whose gradient was not given.
    pub(crate) fn missing<'a>(&self, parameters: &'a [Parameter]) -> &'a str {
        let index = self.given.iter().position(|given| !given).unwrap_or(0);
        &parameters[self.bucket.members[index].0].name
    }

    /// What goes on its way.
    pub(crate) fn depart(&mut self) -> (Tensor, Option<Vec<f32>>, Method) {
        let method = match self.method.take().expect("a lane has a method between steps") {
            Method::Bytes(program) => {
                self.method = Some(Method::Bytes(Arc::clone(&program)));
                Method::Bytes(program)
            }
            stateful => stateful,
        };
        let values = self.values.as_mut();
        if let Some(velocity) = &mut self.velocity {
            velocity.depart(values);
        }
        if self.feedback {
            self.memory.depart(values, &self.residual);
        } else if !self.residual.is_empty() {
            thinwire_codec::kernel::add(values, &self.residual);
        }
        let residual = self.feedback.then(|| std::mem::take(&mut self.residual));
        (std::mem::take(&mut self.values), residual, method)
    }

    pub(crate) fn arrive(&mut self, arrival: Arrival) {
        self.arrival = Some(arrival);
    }

    /// Whether what has arrived is finite; the same on all ranks.
    pub(crate) fn is_finite(&self) -> bool {
        self.arrival.as_ref().is_none_or(|arrival| arrival.body.is_finite())
    }

    /// Ends the step: keeps the result and the new residual, or neither.
    pub(crate) fn settle(&mut self, keep: bool) -> Result<(), Error> {
        let Some(arrival) = self.arrival.take() else { return Ok(()) };
        match arrival.body {
            Body::Bytes(run) if self.feedback && keep => {
                let (values, residual) = run.commit()?;
                (self.values, self.residual) = (values, residual.into_owned());
            }
            Body::Bytes(run) => {
                let (values, residual) = run.into_parts();
                self.values = values;
                match residual {
                    Some(residual) => self.residual = residual.into_owned(),
                    None if keep => self.residual = Vec::new(),
                    None => {}
                }
            }
            Body::LowRank { mut low_rank, mut values, mut residual, factors } => {
                if keep {
                    low_rank.commit(&factors, &mut values, &mut residual);
                    std::mem::swap(&mut values, &mut residual);
                }
                (self.values, self.residual) = (Tensor::Owned(values), residual);
                self.method = Some(Method::LowRank(low_rank));
            }
            Body::Turns { mut turns, mut values, mut residual, sum } => {
                if keep {
                    turns.commit(&sum, &mut residual);
                    std::mem::swap(&mut values, &mut residual);
                }
                (self.values, self.residual) = (Tensor::Owned(values), residual);
                self.method = Some(Method::Turns(turns));
            }
            Body::Integers { mut integers, run } => {
                self.values = run.into_parts().0;
                if keep {
                    integers.commit(self.values.as_mut());
                    self.residual = Vec::new();
                }
                self.method = Some(Method::Integers(integers));
            }
        }
        if keep {
            self.remember();
        }
        Ok(())
    }

    /// What feedback and momentum make of a step that was kept.
    fn remember(&mut self) {
        if let Some(velocity) = &mut self.velocity {
            velocity.settle(self.feedback.then_some(self.residual.as_slice()));
        }
        match self.feedback {
            true => self.memory.settle(self.values.as_mut(), &mut self.residual),
            false => self.memory.forget(),
        }
    }

    /// What is owed counts `factor` times from now on.
    pub(crate) fn rescale(&mut self, factor: f32) {
        self.residual.iter_mut().for_each(|owed| *owed *= factor);
    }

    /// The averages, after a step that was kept.
    pub(crate) fn values(&self) -> &[f32] {
        self.values.as_ref()
    }

    /// Bytes beyond the gradients.
    pub(crate) fn state_bytes(&self) -> usize {
        let momentum = self.velocity.as_ref().map_or(0, Velocity::bytes);
        self.residual.len() * 4 + self.memory.bytes() + momentum
    }
}

/// Refuses integers of so many ranks that their sum might overflow.
fn check_world(choice: &Choice, world: World) -> Result<(), String> {
    match choice {
        Choice::Integers(codec) if codec.limit(world.size()).is_none() => {
            let (found, most) = (world.size(), codec.ranks_max());
            Err(format!("{codec} adds up integers of at most {most} ranks, found {found}"))
        }
        _ => Ok(()),
    }
}
