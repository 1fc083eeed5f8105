//! Buckets and the plan that they follow.
//!
//! Both are made when a synchroniser starts and when the framework changes its own buckets. Between
//! steps the plan alone may change: what is owed stays with its parameters.

use std::ops::Range;

use thinwire_codec::Choice;
use thinwire_wire::World;

use crate::agreement::{check_same, identity};
use crate::bucket::{self, Apart, Bucket};
use crate::feedback::Memory;
use crate::lane::Lane;
use crate::momentum::Velocity;
use crate::plan::Plan;
use crate::{Error, Options, Parameter, Policy, Synchronizer};

impl Synchronizer {
    /// Takes the same parameters in another order or in other buckets of the framework, between
    /// steps and on all ranks together. Residuals and factors go with their parameters.
    ///
    /// # Errors
    /// If they are not the same parameters, or ranks disagree, or a peer is lost.
    pub fn relayout(&mut self, parameters: Vec<Parameter>) -> Result<(), Error> {
        self.agree(&identity(&parameters, &self.options))?;
        check_same(&parameters, &self.parameters)?;
        self.lay_out_again(parameters)
    }

    /// Makes the buckets and a first plan for them.
    pub(crate) fn lay_out(&mut self, parameters: Vec<Parameter>) -> Result<(), Error> {
        self.warm_up.lay_out();
        let fixed = self.fixed_choice();
        let raw = matches!(&fixed, Some(Choice::Bytes(codec)) if codec.is_raw());
        let apart = if raw { Apart::No } else { Apart::Vectors };
        let (buckets, places) = bucket::layout(&parameters, self.options.bucket_bytes, apart);
        self.lanes = lanes(&parameters, buckets, &self.options, self.world);
        (self.parameters, self.places) = (parameters, places);
        (self.plan, self.first) = (Plan::default(), None);
        let plan = match fixed {
            Some(choice) => self.fixed_plan(&choice, self.step),
            None => self.first_plan()?,
        };
        self.adopt(plan)
    }

    /// The one codec for all buckets: during a warm-up the one that loses nothing; none with `auto`.
    fn fixed_choice(&self) -> Option<Choice> {
        match &self.options.policy {
            Policy::Auto(_) => None,
            Policy::Fixed(_) if self.warm_up.is_in_force() => {
                Some(Choice::Bytes(thinwire_codec::raw()))
            }
            Policy::Fixed(choice) => Some(choice.clone()),
        }
    }

    /// The plan for one codec after a number of steps: momentum's own warm-up may send more.
    fn fixed_plan(&self, choice: &Choice, steps: u64) -> Plan {
        let buckets: Vec<&Bucket> = self.lanes.iter().map(|lane| &lane.bucket).collect();
        let momentum = self.options.momentum.as_ref();
        let warm = momentum.and_then(|momentum| momentum.warmed_up(choice, steps));
        Plan::fixed(warm.as_ref().unwrap_or(choice), self.options.asked(), &buckets, self.world)
    }

    /// Lets the next step send as little as momentum's own warm-up has come to.
    pub(crate) fn thin_out(&mut self) -> Result<(), Error> {
        let (Some(choice), Some(_)) = (self.fixed_choice(), self.options.momentum) else {
            return Ok(());
        };
        let plan = self.fixed_plan(&choice, self.step.saturating_add(1));
        if plan == self.plan { Ok(()) } else { self.adopt(plan) }
    }

    /// Switches to a plan, between steps.
    pub(crate) fn adopt(&mut self, plan: Plan) -> Result<(), Error> {
        for (lane, (assignment, old)) in self.lanes.iter_mut().zip(
            plan.assignments
                .iter()
                .zip(self.plan.assignments.iter().map(Some).chain(std::iter::repeat(None))),
        ) {
            if old != Some(assignment) {
                lane.assign(assignment, self.world, &self.options, &self.parameters)?;
            }
        }
        self.plan = plan;
        Ok(())
    }
}

fn lanes(
    parameters: &[Parameter],
    buckets: Vec<Bucket>,
    options: &Options,
    world: World,
) -> Vec<Lane> {
    let all: usize = parameters.iter().map(Parameter::elements).sum();
    let lane = |bucket: Bucket| {
        let of_member = |(parameter, range): &(usize, Range<usize>)| {
            (range.clone(), parameters[*parameter].as_matrix())
        };
        let share = bucket.elements as f64 / all.max(1) as f64;
        let velocity = options.momentum.map(|it| Velocity::new(it, share, world.size()));
        let matrices = bucket.members.iter().map(of_member).collect();
        Lane::new(matrices, bucket, Memory::new(options.feedback), velocity)
    };
    buckets.into_iter().map(lane).collect()
}
