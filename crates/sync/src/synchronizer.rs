//! The trainer's handle: gradients in, averages out.

use std::ops::Range;
use std::time::Instant;

use thinwire_codec::Choice;
use thinwire_collective::{Group, Stop, all_gather, all_gather_bytes, barrier, broadcast};
use thinwire_link::Link;
use thinwire_wire::{Rank, World};

use crate::agreement::{agree, check_combination, check_same, compare, encode_facts, identity};
use crate::bucket::{self, Apart, Bucket};
use crate::calibrate::Calibration;
use crate::exchange::{Arrival, Job};
use crate::feedback::Memory;
use crate::lane::Lane;
use crate::momentum::Velocity;
use crate::plan::Plan;
use crate::planner::{Limits, Planner};
use crate::probe::LinkSpeed;
use crate::tensor::Lent;
use crate::worker::Worker;
use crate::{Error, Gradient, Options, Parameter, Policy, State, StepRecord};

/// What became of a step.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The averages are there.
    Averaged,
    /// Some rank had a gradient that is not finite. No rank has changed anything: the optimiser
    /// must not step.
    Skipped,
}

/// Averages gradients over all ranks.
#[derive(Debug)]
pub struct Synchronizer {
    pub(crate) world: World,
    pub(crate) options: Options,
    pub(crate) parameters: Vec<Parameter>,
    places: Vec<(usize, Range<usize>)>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) plan: Plan,
    /// There with `auto`.
    pub(crate) planner: Option<Planner>,
    pub(crate) worker: Worker,
    pub(crate) step: u64,
    /// The first step since the buckets were laid out.
    pub(crate) first: Option<u64>,
    begun: Instant,
    underway: usize,
    cpu_s: f64,
    pub(crate) record: StepRecord,
}

impl Synchronizer {
    /// Forms a group over `link`. `parameters` are in the order in which gradients become ready.
    ///
    /// # Errors
    /// If ranks disagree on the parameters or the options, or a peer is lost.
    pub fn start(
        link: Box<dyn Link>,
        parameters: Vec<Parameter>,
        options: Options,
    ) -> Result<Synchronizer, Error> {
        let mut group = Group::new(link).with_timeout(options.timeout);
        let world = group.world();
        check_combination(&options, world)?;
        agree(&mut group, &identity(&parameters, &options))?;
        let limits = Limits {
            asked: options.asked(),
            error_budget: options.budget(),
            crowded: crowded(&options),
        };
        let planner = match &options.policy {
            Policy::Fixed(_) => None,
            Policy::Auto(among) => {
                Some(Planner::new(Calibration::measure(&mut group, among)?, world, limits))
            }
        };
        let mut sync = Synchronizer {
            world,
            parameters: Vec::new(),
            places: Vec::new(),
            lanes: Vec::new(),
            plan: Plan::default(),
            planner,
            worker: Worker::start(group),
            step: 0,
            first: None,
            begun: Instant::now(),
            underway: 0,
            cpu_s: 0.0,
            record: StepRecord::default(),
            options,
        };
        sync.lay_out(parameters)?;
        Ok(sync)
    }

    /// Takes the same parameters in another order or in other buckets of the framework, between
    /// steps and on all ranks together. Residuals and factors go with their parameters.
    ///
    /// # Errors
    /// If they are not the same parameters, or ranks disagree, or a peer is lost.
    pub fn relayout(&mut self, parameters: Vec<Parameter>) -> Result<(), Error> {
        self.agree(&identity(&parameters, &self.options))?;
        check_same(&parameters, &self.parameters)?;
        let tensors = self.state().tensors;
        self.lay_out(parameters)?;
        self.lanes.iter_mut().try_for_each(|lane| lane.load(&self.parameters, &tensors))
    }

    /// Makes the buckets and a first plan for them.
    fn lay_out(&mut self, parameters: Vec<Parameter>) -> Result<(), Error> {
        let raw =
            matches!(&self.options.policy, Policy::Fixed(Choice::Bytes(codec)) if codec.is_raw());
        let apart = if raw { Apart::No } else { Apart::Vectors };
        let (buckets, places) = bucket::layout(&parameters, self.options.bucket_bytes, apart);
        self.lanes = lanes(&parameters, buckets, &self.options, self.world);
        (self.parameters, self.places) = (parameters, places);
        (self.plan, self.first) = (Plan::default(), None);
        let plan = match &self.options.policy {
            Policy::Fixed(choice) => self.fixed_plan(&choice.clone(), self.step),
            Policy::Auto(_) => self.first_plan()?,
        };
        self.adopt(plan)
    }

    /// The plan for one codec, after so many steps: a warm-up may send more.
    fn fixed_plan(&self, choice: &Choice, steps: u64) -> Plan {
        let buckets: Vec<&Bucket> = self.lanes.iter().map(|lane| &lane.bucket).collect();
        let momentum = self.options.momentum.as_ref();
        let warm = momentum.and_then(|momentum| momentum.warmed_up(choice, steps));
        Plan::fixed(warm.as_ref().unwrap_or(choice), self.options.asked(), &buckets, self.world)
    }

    /// My place among the ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// The plan in force.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The slowest link, as `auto` measured it last.
    pub fn link(&self) -> Option<LinkSpeed> {
        self.planner.as_ref().map(Planner::link)
    }

    /// Begins a step. All ranks give the same number, higher than the last.
    pub fn begin(&mut self, step: u64) {
        self.step = step;
        self.first.get_or_insert(step);
        self.begun = Instant::now();
        let planning = self.planner.as_mut().and_then(Planner::take_planning).map(Box::new);
        self.record = StepRecord { step, planning, ..StepRecord::default() };
        self.lanes.iter_mut().for_each(Lane::clear);
    }

    /// Takes the gradient of a parameter; returns at once. Its bucket leaves when it is full.
    ///
    /// # Errors
    /// If the parameter has no such gradient to give, or the exchange has failed.
    pub fn ready<'a>(
        &mut self,
        parameter: usize,
        gradient: impl Into<Gradient<'a>>,
    ) -> Result<(), Error> {
        let gradient = gradient.into();
        let Some((lane, range)) = self.places.get(parameter).cloned() else {
            let count = self.parameters.len();
            return Err(Error::Invalid(format!(
                "gradient of parameter {parameter}, expected one of {count}"
            )));
        };
        if gradient.len() != range.len() {
            let (name, found, expected) =
                (&self.parameters[parameter].name, gradient.len(), range.len());
            return Err(Error::Invalid(format!(
                "gradient of {name} has {found} elements, expected {expected}"
            )));
        }
        let scale = 1.0 / self.world.size() as f32;
        if !self.lanes[lane].pack(range, gradient, scale) {
            let name = &self.parameters[parameter].name;
            return Err(Error::Invalid(format!(
                "gradient of {name} was given twice in step {}",
                self.step
            )));
        }
        if self.lanes[lane].is_full() {
            self.dispatch(lane)?;
        }
        Ok(())
    }

    /// Takes all gradients of one of the framework's buckets, whose parameters lie one after the other
    /// in f32: `part` gives the memory of some of its elements. What travels raw is averaged there.
    ///
    /// # Errors
    /// As [`Synchronizer::ready`].
    pub fn lend<M: Lent + 'static>(
        &mut self,
        bucket: u32,
        part: impl Fn(Range<usize>) -> M,
    ) -> Result<(), Error> {
        let mut starts = Vec::new();
        let mut end = 0;
        for (index, parameter) in self.parameters.iter().enumerate() {
            if parameter.bucket == bucket {
                starts.push((index, end..end + parameter.elements()));
                end += parameter.elements();
            }
        }
        let scale = 1.0 / self.world.size() as f32;
        let mut rest = starts.as_slice();
        while let Some((first, range)) = rest.first() {
            let lane = self.places[*first].0;
            let bucket = &self.lanes[lane].bucket;
            let (count, elements) = (bucket.members.len(), bucket.elements);
            let members = bucket.members.iter().map(|(parameter, _)| parameter);
            let together = members.eq(rest.iter().take(count).map(|(index, _)| index));
            if together && self.lanes[lane].takes_loans() {
                let memory = part(range.start..range.start + elements);
                self.lanes[lane].borrow(Box::new(memory), scale);
                rest = &rest[count..];
                self.dispatch(lane)?;
            } else {
                self.ready(*first, part(range.clone()).values())?;
                rest = &rest[1..];
            }
        }
        Ok(())
    }

    /// Waits for the averages of all gradients.
    ///
    /// # Errors
    /// If a gradient was not given, or the exchange has failed.
    pub fn finish(&mut self) -> Result<Outcome, Error> {
        self.record.backward_s = self.begun.elapsed().as_secs_f64();
        if let Some(lane) = self.lanes.iter().find(|lane| !lane.is_full()) {
            let missing = lane.missing(&self.parameters);
            return Err(Error::Invalid(format!("no gradient of {missing} in step {}", self.step)));
        }
        while self.underway > 0 {
            let arrival = self.worker.arrival()?;
            self.underway -= 1;
            self.note(&arrival);
            self.lanes[arrival.bucket].arrive(arrival);
        }
        let all_in_s = self.begun.elapsed().as_secs_f64();
        let finite = self.lanes.iter().all(Lane::is_finite);
        for lane in &mut self.lanes {
            lane.settle(finite)?;
        }
        self.close_record(all_in_s);
        if finite {
            self.plan_again().map_err(|error| error.in_step(self.step))?;
        }
        self.warm_up()?;
        Ok(if finite { Outcome::Averaged } else { Outcome::Skipped })
    }

    /// The averaged gradient of a parameter, after a step that was not skipped.
    pub fn gradient(&self, parameter: usize) -> &[f32] {
        let (lane, range) = &self.places[parameter];
        &self.lanes[*lane].values()[range.clone()]
    }

    /// Where the time of the last step went.
    pub fn record(&self) -> &StepRecord {
        &self.record
    }

    /// Bytes that the exchange holds beyond one copy of the gradients, encoded messages excepted.
    pub fn state_bytes(&self) -> usize {
        self.lanes.iter().map(Lane::state_bytes).sum()
    }

    /// Makes sure that all ranks say the same of everything in `facts`, pairs of name and value.
    ///
    /// # Errors
    /// If they do not: what it is about, both values and the rank.
    pub fn agree(&self, facts: &[(String, String)]) -> Result<(), Error> {
        let facts = facts.to_vec();
        let mine = encode_facts(&facts);
        let all = self.worker.call(move |group| all_gather_bytes(group, &mine))?;
        compare(&facts, &all, self.world)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn barrier(&self) -> Result<(), Error> {
        self.worker.call(barrier)
    }

    /// Replaces `values` of all ranks by those of rank 0.
    ///
    /// # Errors
    /// If a peer is lost or has another length.
    pub fn broadcast(&self, values: &mut [f32]) -> Result<(), Error> {
        let mut copy = values.to_vec();
        let call = move |group: &mut Group| broadcast(group, &mut copy, Rank(0)).map(|()| copy);
        values.copy_from_slice(&self.worker.call(call)?);
        Ok(())
    }

    /// The values of all ranks, in rank order.
    ///
    /// # Errors
    /// If a peer is lost or has another length.
    pub fn gather(&self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        let mine = mine.to_vec();
        self.worker.call(move |group| all_gather(group, &mine))
    }

    /// Everything that a restart must know.
    pub fn state(&self) -> State {
        let plan = serde_json::to_string(&self.plan).expect("a plan has only numbers and strings");
        let mut state = State { plan, ..State::default() };
        self.lanes.iter().for_each(|lane| lane.save(&self.parameters, &mut state.tensors));
        state
    }

    /// Goes on from `state`, between steps.
    ///
    /// # Errors
    /// If the state is that of another model or its plan is none.
    pub fn load(&mut self, state: &State) -> Result<(), Error> {
        let plan: Plan = serde_json::from_str(&state.plan).map_err(|error| {
            Error::Invalid(format!("the plan in the checkpoint is no plan: {error}"))
        })?;
        if plan.assignments.len() != self.lanes.len() {
            let (found, expected) = (plan.assignments.len(), self.lanes.len());
            return Err(Error::Invalid(format!(
                "the checkpoint has {found} buckets of gradients, these --bucket-bytes make {expected}"
            )));
        }
        if matches!(self.options.policy, Policy::Auto(_)) {
            self.follow(plan)?;
        }
        self.load_tensors(state)
    }

    /// Takes up residuals and factors alone, whatever plan and buckets they come from.
    ///
    /// # Errors
    /// If they are those of another model.
    pub fn load_tensors(&mut self, state: &State) -> Result<(), Error> {
        self.lanes.iter_mut().try_for_each(|lane| lane.load(&self.parameters, &state.tensors))
    }

    /// The learning rate has changed: what is owed was given at the previous one. Where parameters step
    /// by rate times average, all steps together are then those of the gradients, whatever the rate.
    ///
    /// # Errors
    /// If a rate is not a number of 0 or more; nothing changes while one of them is 0.
    pub fn rescale(&mut self, previous_rate: f32, rate: f32) -> Result<(), Error> {
        if ![previous_rate, rate].iter().all(|rate| rate.is_finite() && *rate >= 0.0) {
            return Err(Error::Invalid(format!(
                "learning rates {previous_rate} and {rate}, expected 0 or more"
            )));
        }
        if previous_rate > 0.0 && rate > 0.0 {
            self.lanes.iter_mut().for_each(|lane| lane.rescale(previous_rate / rate));
        }
        Ok(())
    }

    /// Ends the group from any thread: everything that waits here fails, and so does every peer.
    pub fn stop(&self) -> Stop {
        self.worker.stop()
    }

    /// The parameters, in the order of their buckets.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Lets the next step of a warm-up have its codec.
    fn warm_up(&mut self) -> Result<(), Error> {
        let (Policy::Fixed(choice), Some(_)) = (&self.options.policy, self.options.momentum) else {
            return Ok(());
        };
        let plan = self.fixed_plan(&choice.clone(), self.step + 1);
        if plan == self.plan { Ok(()) } else { self.adopt(plan) }
    }

    fn dispatch(&mut self, lane: usize) -> Result<(), Error> {
        let ready_s = self.begun.elapsed().as_secs_f64();
        self.sample(lane);
        let bucket = &self.lanes[lane].bucket;
        let (name, elements) = (bucket.name(&self.parameters), bucket.elements);
        let (values, residual, method) = self.lanes[lane].depart();
        let (step, seed) = (self.step, self.options.seed);
        let assignment = &self.plan.assignments[lane];
        let others = (self.world.size() - 1) as f64 / self.world.size() as f64;
        self.lanes[lane].record = crate::BucketRecord {
            name,
            elements,
            codec: assignment.codec.clone(),
            algorithm: assignment.algorithm.clone(),
            partitions: assignment.partitions,
            raw_bytes: (elements as f64 * 8.0 * others) as u64,
            ready_s,
            predicted_s: self.plan.predicted_s[lane],
            ..crate::BucketRecord::default()
        };
        self.underway += 1;
        let finite = self.lanes[lane].gave_finite();
        self.worker.exchange(Job { bucket: lane, step, seed, values, residual, method, finite });
        Ok(())
    }

    fn note(&mut self, arrival: &Arrival) {
        let record = &mut self.lanes[arrival.bucket].record;
        let times = arrival.times;
        record.done_s = arrival.done.duration_since(self.begun).as_secs_f64();
        record.sent_bytes = times.sent_bytes;
        record.received_bytes = times.received_bytes;
        record.encode_s = times.encode.as_secs_f64();
        record.decode_s = times.decode.as_secs_f64();
        let busy = record.encode_s + record.decode_s;
        record.wire_s = (record.done_s - record.ready_s - busy).max(0.0);
        let cpu_s = arrival.cpu.as_secs_f64();
        self.record.cpu_s += cpu_s - self.cpu_s;
        self.cpu_s = cpu_s;
    }

    fn close_record(&mut self, all_in_s: f64) {
        let backward_s = self.record.backward_s;
        self.record.buckets = self.lanes.iter().map(|lane| lane.record.clone()).collect();
        self.record.wait_s = all_in_s - backward_s;
        self.record.commit_s = self.begun.elapsed().as_secs_f64() - all_in_s;
        let exchange_s = self.record.total(|bucket| bucket.done_s - bucket.ready_s);
        let exposed_s =
            self.record.total(|bucket| (bucket.done_s - bucket.ready_s.max(backward_s)).max(0.0));
        self.record.overlap = if exchange_s > 0.0 { 1.0 - exposed_s / exchange_s } else { 1.0 };
    }

    /// Switches to a plan, between steps.
    pub(crate) fn adopt(&mut self, plan: Plan) -> Result<(), Error> {
        let (world, seed) = (self.world, self.options.seed);
        for (lane, (assignment, old)) in self.lanes.iter_mut().zip(
            plan.assignments
                .iter()
                .zip(self.plan.assignments.iter().map(Some).chain(std::iter::repeat(None))),
        ) {
            if old != Some(assignment) {
                lane.assign(assignment, world, seed, &self.parameters)?;
            }
        }
        self.plan = plan;
        Ok(())
    }
}

/// With fewer than two cores per rank, the exchange computes on backward's core.
fn crowded(options: &Options) -> bool {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    cores < 2 * options.local_ranks
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
