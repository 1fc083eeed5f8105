//! The buckets and the plan that they follow.
//!
//! Both are made when a synchroniser starts, when a warm-up ends and when the framework changes its own
//! buckets. Between steps the plan alone may change: residuals stay with their parameters.

use thinwire_codec::Choice;
use thinwire_schedule::{Summation, UnknownAlgorithm};
use thinwire_wire::World;

use crate::agreement::{check_same, identity};
use crate::auto::plan::{Assignment, Plan};
use crate::bucket::feedback::Memory;
use crate::bucket::layout::{Apart, Bucket, layout};
use crate::bucket::momentum::Velocity;
use crate::bucket::state::{BucketState, Travel};
use crate::exchange::choose::check_world;
use crate::synchronizer::phase::Phase;
use crate::{Error, Options, Parameter, Policy, Synchronizer};

/// More parts of a bucket than any plan has.
const PARTITIONS_MAX: usize = 1 << 16;

impl Synchronizer {
    /// Takes the same parameters in another order or in other buckets of the framework, between steps
    /// and on all ranks together. Residuals and factors move with their parameters.
    ///
    /// # Errors
    /// If they are not the same parameters, or ranks disagree, or a peer is lost.
    pub fn relayout(&mut self, parameters: Vec<Parameter>) -> Result<(), Error> {
        self.agree(&identity(&parameters, &self.options))?;
        check_same(&parameters, &self.parameters)?;
        self.lay_out_again(parameters)
    }

    /// Returns whether the next step belongs to the warm-up.
    pub fn is_in_warm_up(&self) -> bool {
        self.warm_up.is_on()
    }

    /// Ends the warm-up before its steps are over; all ranks call this after the same step.
    pub fn finish_warm_up(&mut self) {
        self.warm_up.finish();
    }

    /// Makes the buckets of the codec after the last step of the warm-up, and lets the step that begins send as little
    /// as momentum's own warm-up has come to.
    pub(crate) fn end_warm_up(&mut self) -> Result<(), Error> {
        if self.warm_up.is_in_force() != self.warm_up.is_on() {
            self.lay_out_again(self.parameters.clone())?;
        }
        if !self.has_named_codecs() || self.options.momentum.is_none() {
            return Ok(());
        }
        let plan = self.fixed_plan();
        if plan == self.plan { Ok(()) } else { self.adopt(plan) }
    }

    /// Takes up the count of a state, and makes the buckets that belong to it. Residuals from
    /// before the state are dropped.
    pub(crate) fn resume_warm_up(&mut self, saved: Option<&[f32]>) -> Result<(), Error> {
        self.warm_up.load(saved)?;
        match self.warm_up.is_in_force() == self.warm_up.is_on() {
            true => Ok(()),
            false => self.lay_out(self.parameters.clone()),
        }
    }

    /// Makes new buckets; residuals, factors and momenta move with their parameters.
    pub(crate) fn lay_out_again(&mut self, parameters: Vec<Parameter>) -> Result<(), Error> {
        let tensors = self.tensors();
        self.lay_out(parameters)?;
        self.buckets.iter_mut().try_for_each(|bucket| bucket.load(&self.parameters, &tensors))
    }

    /// Makes the buckets and a first plan for them.
    pub(crate) fn lay_out(&mut self, parameters: Vec<Parameter>) -> Result<(), Error> {
        self.warm_up.lay_out();
        let Options { policy, bucket_bytes, .. } = &self.options;
        let apart = if self.is_raw() { Apart::No } else { Apart::Vectors };
        let (buckets, places) = layout(&parameters, *bucket_bytes, apart, policy);
        self.buckets = self.states(&parameters, buckets)?;
        (self.parameters, self.places) = (parameters, places);
        (self.plan, self.first, self.aged) = (Plan::default(), None, 0);
        self.phase = Phase::Before;
        self.prepare_absence();
        let plan = match self.has_named_codecs() {
            true => self.fixed_plan(),
            false => self.first_plan()?,
        };
        self.adopt(plan)
    }

    /// Returns whether the codec of every bucket was named, so that nothing is planned.
    fn has_named_codecs(&self) -> bool {
        !matches!(self.options.policy, Policy::Auto(_))
    }

    /// Returns whether nothing is compressed, because of the named codecs or during a warm-up.
    fn is_raw(&self) -> bool {
        let is_raw = |choice: &Choice| matches!(choice, Choice::Bytes(codec) if codec.is_raw());
        let all = self.warm_up.is_in_force() || self.options.policy.choices().all(is_raw);
        all && self.has_named_codecs()
    }

    /// Returns the plan for named codecs in this step; the warm-up of momentum correction may send more.
    fn fixed_plan(&self) -> Plan {
        let buckets = self.buckets.iter().map(|state| (&state.bucket, state.world()));
        let buckets: Vec<(&Bucket, World)> = buckets.collect();
        let named = |bucket: &Bucket| {
            let choice = self.options.policy.of_rule(bucket.rule).filter(|_| !self.is_raw());
            // Exempt buckets have no rule.
            let choice = choice.cloned().unwrap_or(Choice::Bytes(thinwire_codec::raw()));
            let momentum = self.options.momentum.as_ref();
            momentum.and_then(|momentum| momentum.warmed_up(&choice, self.step)).unwrap_or(choice)
        };
        Plan::fixed(named, self.options.overrides(), &buckets)
    }

    /// Switches to a plan, between steps.
    pub(crate) fn adopt(&mut self, plan: Plan) -> Result<(), Error> {
        for (index, assignment) in plan.assignments.iter().enumerate().take(self.buckets.len()) {
            // What stays as it is keeps its factors.
            if self.plan.assignments.get(index) != Some(assignment) {
                let travel = self.travel(index, assignment).map_err(Error::Invalid)?;
                self.buckets[index].travel(travel);
            }
        }
        self.plan = plan;
        Ok(())
    }

    /// Returns why a plan, which may come from a file, cannot be followed.
    pub(crate) fn check_plan(&self, plan: &Plan) -> Result<(), String> {
        let (found, expected) = (plan.predicted_s.len(), plan.assignments.len());
        if found != expected {
            return Err(format!("the plan predicts {found} times, expected {expected}"));
        }
        let mut all = plan.assignments.iter().enumerate();
        all.try_for_each(|(index, assignment)| self.travel(index, assignment).map(drop))
    }

    /// Reads an assignment, which may come from a file.
    fn travel(&self, bucket: usize, assignment: &Assignment) -> Result<Travel, String> {
        let name = self.buckets[bucket].bucket.name(&self.parameters);
        self.read(bucket, assignment).map_err(|detail| format!("the plan for {name}: {detail}"))
    }

    fn read(&self, bucket: usize, assignment: &Assignment) -> Result<Travel, String> {
        let Assignment { codec, algorithm, partitions } = assignment;
        let codec = match &self.buckets[bucket].bucket.transport {
            Some(transport) => transport.codec.clone(),
            None => self.options.policy.choice(codec).map_err(|error| error.to_string())?,
        };
        let summation: Summation =
            algorithm.parse().map_err(|error: UnknownAlgorithm| error.to_string())?;
        let world = self.buckets[bucket].world();
        check_world(&codec, world)?;
        summation.check(world.size())?;
        if !summation.carries(codec.exchange()) {
            return Err(format!("algorithm {summation} cannot send codec {codec}"));
        }
        if !(1..=PARTITIONS_MAX).contains(partitions) {
            return Err(format!("{partitions} partitions, expected 1 to {PARTITIONS_MAX}"));
        }
        Ok(Travel { codec, summation, partitions: *partitions, seed: self.options.seed })
    }

    /// Returns fresh states for buckets of these parameters.
    fn states(
        &self,
        parameters: &[Parameter],
        buckets: Vec<Bucket>,
    ) -> Result<Vec<BucketState>, Error> {
        let all: usize = parameters.iter().map(Parameter::elements).sum();
        let state = |bucket: Bucket| {
            let share = bucket.elements as f64 / all.max(1) as f64;
            let Some(ranks) = self.worker.channel.ranks(&bucket.ranks) else {
                let (name, ranks) = (bucket.name(parameters), &bucket.ranks);
                return Err(Error::Invalid(format!(
                    "{name} is exchanged by {ranks:?}, not by this rank"
                )));
            };
            let velocity =
                self.options.momentum.map(|it| Velocity::new(it, share, ranks.world.size()));
            let memory = Memory::new(self.options.feedback);
            let state = BucketState::new(bucket, parameters, ranks, memory, velocity);
            Ok(state.waking(self.worker.channel.driver().waker()))
        };
        buckets.into_iter().map(state).collect()
    }
}
