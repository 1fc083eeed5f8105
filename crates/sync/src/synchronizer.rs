//! The trainer's handle: gradients in, averages out.

mod absent;
mod calls;
mod layout;
pub(crate) mod phase;
mod reform;
mod timing;
pub(crate) mod warm_up;

use std::ops::Range;
use std::time::Instant;

use thinwire_collective::{Address, Group, Stop, barrier};
use thinwire_device::Region;
use thinwire_link::Link;
use thinwire_wire::World;

use crate::absence::Absence;
use crate::agreement::{check_combination, check_laws, check_names, check_rules, identity};
use crate::auto::plan::Plan;
use crate::auto::planner::{Limits, Planner};
use crate::bucket::state::BucketState;
use crate::buffer::ExternalBuffer;
use crate::measure::codecs::{Calibration, measure_codecs};
use crate::measure::link::{self, LinkSpeed};
use crate::synchronizer::phase::Phase;
use crate::synchronizer::warm_up::WarmUp;
use crate::worker::{Job, Worker};
use crate::{
    Channel, Error, Gradient, Options, Outcome, Parameter, Planning, Policy, Reduction, StepRecord,
    Target,
};

/// Averages gradients over all ranks.
#[derive(Debug)]
pub struct Synchronizer {
    pub(crate) world: World,
    pub(crate) options: Options,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) places: Vec<(usize, Range<usize>)>,
    pub(crate) buckets: Vec<BucketState>,
    pub(crate) plan: Plan,
    /// Present with `auto` only.
    pub(crate) planner: Option<Planner>,
    pub(crate) worker: Worker,
    absence: Absence,
    /// Why the last step was skipped, if it was.
    fault: Option<String>,
    pub(crate) step: u64,
    pub(crate) phase: Phase,
    /// The part of the global batch that this rank computes, if parts are unequal.
    share: Option<f32>,
    /// The first step since the buckets were laid out.
    pub(crate) first: Option<u64>,
    /// The steps of a loaded state since its buckets were laid out, where they are these.
    pub(crate) aged: u64,
    /// The last step that was begun; `None` right after a state was loaded.
    pub(crate) last: Option<u64>,
    pub(crate) warm_up: WarmUp,
    pub(crate) begun: Instant,
    /// Whether steps of others on the channel are on their way with those of this one.
    overlaps: bool,
    underway: usize,
    pub(crate) cpu_s: f64,
    pub(crate) record: StepRecord,
}

impl Synchronizer {
    /// Forms a group over `link`. `parameters` are in the order in which gradients become ready.
    ///
    /// # Errors
    /// If two parameters have one name, a codec from a file breaks a law, ranks disagree on the
    /// parameters or the options, or a peer is lost.
    pub fn start(
        link: Link,
        parameters: Vec<Parameter>,
        options: Options,
    ) -> Result<Synchronizer, Error> {
        let group = Group::new(link).with_timeout(options.timeout);
        Synchronizer::over(Channel::new(group), parameters, options)
    }

    /// Synchronises gradients among the ranks of a channel that other users may share. No exchange of
    /// another user may be on its way now, or when a step of `auto` is finished.
    ///
    /// # Errors
    /// As [`Synchronizer::start`].
    pub fn over(
        channel: Channel,
        parameters: Vec<Parameter>,
        options: Options,
    ) -> Result<Synchronizer, Error> {
        let world = channel.world();
        check_combination(&options, world)?;
        check_names(&parameters)?;
        // Before any rank ends alone: all of them check the codec, or none does.
        channel.agree(&identity(&parameters, &options))?;
        check_laws(&options, &parameters)?;
        check_rules(&options, &parameters)?;
        let planner = Synchronizer::planner(&channel, &parameters, &options)?;
        let mut sync = Synchronizer {
            world,
            parameters: Vec::new(),
            places: Vec::new(),
            buckets: Vec::new(),
            plan: Plan::default(),
            planner,
            worker: Worker::new(channel),
            absence: Absence::default(),
            fault: None,
            step: 0,
            phase: Phase::Before,
            share: None,
            first: None,
            aged: 0,
            last: None,
            warm_up: WarmUp::new(&options),
            begun: Instant::now(),
            overlaps: false,
            underway: 0,
            cpu_s: 0.0,
            record: StepRecord::default(),
            options,
        };
        sync.lay_out(parameters)?;
        Ok(sync)
    }

    /// Measures the channel and the codecs for `auto`, and returns its planner; `None` for a fixed
    /// codec.
    fn planner(
        channel: &Channel,
        parameters: &[Parameter],
        options: &Options,
    ) -> Result<Option<Planner>, Error> {
        let Policy::Auto(among) = &options.policy else { return Ok(None) };
        let limits = Limits {
            overrides: options.overrides(),
            error_budget: options.budget(),
            shares_cores: shares_cores(options),
        };
        let largest = parameters.iter().map(Parameter::elements).max().unwrap_or(0);
        let (among, device) = (among.clone(), options.device.clone());
        let measure = move |group: &mut Group| {
            Calibration::measure(group, &among, largest, device.as_deref())
        };
        let peers = channel.peers(parameters);
        if peers.world().size() < channel.world().size() {
            // Groups share the network, so all of them measure it at one time.
            measure_codecs(&options.policy, largest, options.device.as_deref());
            channel.call(barrier)?;
        }
        let mut calibration = peers.call(measure)?;
        calibration.link = link::of_rank_0(channel, &peers, calibration.link)?;
        Ok(Some(Planner::new(calibration, peers.world(), limits)))
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the plan in force.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the record of the last planning of `auto`, on rank 0.
    pub fn planning(&self) -> Option<&Planning> {
        self.planner.as_ref().and_then(Planner::planning)
    }

    /// Returns the speed of the slowest link, as `auto` measured it last.
    pub fn link(&self) -> Option<LinkSpeed> {
        self.planner.as_ref().map(Planner::link)
    }

    /// Begins a step. All ranks give the same number, which must be higher than the last one. The first
    /// step after a state was loaded may have any number.
    ///
    /// # Errors
    /// If the number is not higher than the last one; nothing has changed then.
    pub fn begin(&mut self, step: u64) -> Result<(), Error> {
        self.begin_since(step, Instant::now())
    }

    /// Begins a step whose computation started at `begun`: for frameworks that only hand over
    /// gradients. Plans then include the time before the first gradient.
    ///
    /// # Errors
    /// As [`Synchronizer::begin`].
    pub fn begin_since(&mut self, step: u64, begun: Instant) -> Result<(), Error> {
        if let Some(last) = self.last.filter(|last| step <= *last) {
            return Err(Error::Invalid(format!(
                "step {step} begins after step {last}, expected {} or more",
                last.saturating_add(1)
            )));
        }
        self.abandon()?;
        (self.step, self.last) = (step, Some(step));
        self.end_warm_up()?;
        self.phase = Phase::Begun;
        self.first.get_or_insert(step);
        self.begun = begun;
        let planning = self.planner.as_mut().and_then(Planner::news).map(Box::new);
        self.record = StepRecord { step, planning, ..StepRecord::default() };
        self.buckets.iter_mut().for_each(BucketState::clear);
        self.absence.clear();
        self.fault = None;
        Ok(())
    }

    /// Takes the gradient of a parameter; returns at once. The bucket leaves when it is full.
    ///
    /// # Errors
    /// If no step has begun, the parameter does not exist, the gradient has another length or was given
    /// before, or the exchange has failed.
    pub fn ready<'a>(
        &mut self,
        parameter: usize,
        gradient: impl Into<Gradient<'a>>,
    ) -> Result<(), Error> {
        let gradient = gradient.into();
        let (bucket, range) = self.place(parameter)?;
        self.check_begun(format_args!("gradient of {}", self.parameters[parameter].name))?;
        if gradient.len() != range.len() {
            let (name, found, expected) =
                (&self.parameters[parameter].name, gradient.len(), range.len());
            return Err(Error::Invalid(format!(
                "gradient of {name} has {found} elements, expected {expected}"
            )));
        }
        let scale = self.scale(bucket);
        if !self.buckets[bucket].pack(range, gradient, scale) {
            let name = &self.parameters[parameter].name;
            return Err(Error::Invalid(format!(
                "gradient of {name} was given twice in step {}",
                self.step
            )));
        }
        if self.buckets[bucket].is_full() {
            self.dispatch(bucket)?;
        }
        Ok(())
    }

    /// Takes all gradients of one of the framework's buckets; they lie one after the other in f32. `part`
    /// returns the memory of a range of the bucket's elements, where raw gradients are averaged in place.
    ///
    /// # Errors
    /// As [`Synchronizer::ready`].
    pub fn ready_bucket<M: ExternalBuffer + 'static>(
        &mut self,
        bucket: u32,
        part: impl Fn(Range<usize>) -> M,
    ) -> Result<(), Error> {
        self.check_begun(format_args!("gradients of bucket {bucket}"))?;
        let mut starts = Vec::new();
        let mut end = 0;
        for (index, parameter) in self.parameters.iter().enumerate() {
            if parameter.bucket == bucket {
                starts.push((index, end..end + parameter.elements()));
                end += parameter.elements();
            }
        }
        let mut rest = starts.as_slice();
        while let Some((first, range)) = rest.first() {
            let index = self.places[*first].0;
            let scale = self.scale(index);
            let state = &mut self.buckets[index];
            let (count, elements) = (state.bucket.members.len(), state.bucket.elements);
            let members = state.bucket.members.iter().map(|(parameter, _)| parameter);
            let together = members.eq(rest.iter().take(count).map(|(index, _)| index));
            if together && state.takes_external() {
                let buffer = part(range.start..range.start + elements);
                state.fill_external(Box::new(buffer), scale);
                rest = &rest[count..];
                self.dispatch(index)?;
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
    /// If no step has begun, a gradient was not given, or the exchange has failed.
    pub fn finish(&mut self) -> Result<Outcome, Error> {
        let outcome = self.wait()?;
        self.commit(outcome)?;
        Ok(outcome)
    }

    /// Waits until all gradients have been exchanged. Returns whether all ranks that exchange gradients
    /// with this one have given finite numbers. [`Synchronizer::commit`] then ends the step.
    ///
    /// # Errors
    /// If no step has begun, a gradient was not given, or the exchange has failed.
    pub fn wait(&mut self) -> Result<Outcome, Error> {
        self.check_begun("finish")?;
        self.record.backward_s = self.begun.elapsed().as_secs_f64();
        if let Some(bucket) = self.buckets.iter().find(|bucket| !bucket.is_full()) {
            let missing = bucket.missing(&self.parameters);
            return Err(Error::Invalid(format!("no gradient of {missing} in step {}", self.step)));
        }
        while self.underway > 0 {
            self.receive()?;
        }
        self.absence.wait()?;
        self.record.wait_s = self.begun.elapsed().as_secs_f64() - self.record.backward_s;
        let finite = self.buckets.iter().all(BucketState::is_finite);
        Ok(if finite { Outcome::Averaged } else { Outcome::Skipped })
    }

    /// Ends a step after [`Synchronizer::wait`]: keeps it, or leaves everything as it was before. All
    /// ranks give the same outcome, which must be [`Outcome::Skipped`] if `wait` returned that on any
    /// rank.
    ///
    /// # Errors
    /// If no step has begun, peers sent invalid encodings, or ranks disagree on the next plan.
    pub fn commit(&mut self, outcome: Outcome) -> Result<(), Error> {
        self.check_begun("commit")?;
        self.commit_buckets(outcome)?;
        self.phase = Phase::Ended(outcome);
        self.fault = if outcome == Outcome::Skipped { self.find_fault() } else { None };
        self.close_record();
        if outcome == Outcome::Averaged {
            self.warm_up.count();
            self.plan_again().map_err(|error| error.in_step(self.step))?;
        } else {
            self.planner.iter_mut().for_each(Planner::forget_samples);
        }
        Ok(())
    }

    /// Returns the synchronised gradient of a parameter, after a step that was not skipped; for a
    /// sharded parameter, this rank's chunk.
    ///
    /// # Panics
    /// Before [`Synchronizer::finish`] of a step, after a skipped step, if there is no such parameter, or if a
    /// device has it.
    pub fn gradient(&self, parameter: usize) -> &[f32] {
        self.check_averaged(parameter);
        let (bucket, range) = &self.places[parameter];
        let state = &self.buckets[*bucket];
        match state.bucket.target {
            Target::Whole => &state.values()[range.clone()],
            Target::Shard => state.values(),
        }
    }

    /// Returns the synchronised gradient of a parameter in the memory of a device, after a step that
    /// was not skipped; `None` if it is in host memory. The first gradient of a bucket decides where
    /// all averages of the bucket are. The device has them once it has done the work that was submitted
    /// before.
    ///
    /// # Panics
    /// As [`Synchronizer::gradient`].
    pub fn gradient_on_device(&self, parameter: usize) -> Option<Region> {
        self.check_averaged(parameter);
        let (bucket, range) = &self.places[parameter];
        let state = &self.buckets[*bucket];
        let region = state.region()?;
        Some(match state.bucket.target {
            Target::Whole => region.slice(range.clone()),
            Target::Shard => region,
        })
    }

    /// Describes the gradient because of which the last step was skipped, as far as this rank knows;
    /// `None` if all ranks of its buckets have given finite numbers that their codecs can encode.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Describes the codec or option that a device did not support in the last step, so that gradients
    /// were copied to host memory and averages back; `None` if there was none.
    pub fn staged(&self) -> Option<String> {
        self.buckets.iter().find_map(BucketState::staged)
    }

    /// Finds the gradient because of which a step was skipped, while the buckets have the sums.
    fn find_fault(&self) -> Option<String> {
        let faults = self.buckets.iter().filter_map(|bucket| bucket.fault(&self.parameters));
        let faults: Vec<(bool, String)> = faults.collect();
        let own = faults.iter().find(|(is_own, _)| *is_own);
        own.or(faults.first()).map(|(_, fault)| fault.clone())
    }

    /// Returns the times and bytes of the last step.
    pub fn record(&self) -> &StepRecord {
        &self.record
    }

    /// Lets steps of other synchronisers on the channel be on their way with those of this one. Steps of all of them
    /// have different numbers.
    pub(crate) fn overlapping(self) -> Synchronizer {
        Synchronizer { overlaps: true, ..self }
    }

    /// Returns the address of a tensor in this step.
    pub(crate) fn address(&self, tensor: u32) -> Address {
        let (step, seed, operation) = (self.step, self.options.seed, "all_reduce");
        match self.overlaps {
            // Ranks with different steps under way would be taken for ranks that have lost each other.
            true => Address { seed, ..Address::counted(step, tensor, operation) },
            false => Address { step, tensor, seed, operation },
        }
    }

    /// Returns the bytes that this rank will send in the next step, headers included, by the codecs and
    /// schedules that are in force.
    pub fn step_bytes(&mut self) -> u64 {
        self.buckets.iter_mut().map(BucketState::step_bytes).sum()
    }

    /// Returns the bytes of memory that the exchange holds in addition to one copy of the gradients.
    /// Encoded messages do not count.
    pub fn state_bytes(&self) -> usize {
        self.buckets.iter().map(BucketState::state_bytes).sum()
    }

    /// Returns a handle by which any thread can end the group: everything that waits here then
    /// fails, and so does every peer.
    pub fn stop(&self) -> Stop {
        self.worker.channel.stop()
    }

    /// Returns the parameters of each bucket, in the order in which buckets become ready.
    pub fn buckets(&self) -> impl Iterator<Item = Vec<usize>> {
        let members =
            |state: &BucketState| state.bucket.members.iter().map(|(index, _)| *index).collect();
        self.buckets.iter().map(members)
    }

    /// Returns the parameters, in the order of their buckets.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns the factor of this rank's share of a bucket.
    fn scale(&self, bucket: usize) -> f32 {
        match self.options.reduction {
            Reduction::Mean => {
                self.share.unwrap_or_else(|| 1.0 / self.buckets[bucket].world().size() as f32)
            }
            Reduction::Sum => 1.0,
        }
    }

    /// Waits for a bucket that is on its way.
    fn receive(&mut self) -> Result<(), Error> {
        let arrival = self.worker.arrival();
        self.underway -= 1;
        match arrival {
            Ok(arrival) => {
                self.record_arrival(&arrival);
                self.buckets[arrival.bucket].arrive(arrival.exchange, arrival.finite);
                Ok(())
            }
            Err(loss) => {
                self.buckets[loss.bucket].lose(loss.exchange, loss.departure);
                Err(loss.error)
            }
        }
    }

    /// Drops a step that was begun and not finished, as if it had been skipped.
    fn abandon(&mut self) -> Result<(), Error> {
        while self.underway > 0 {
            self.receive()?;
        }
        self.absence.wait()?;
        self.commit_buckets(Outcome::Skipped)
    }

    /// Ends the step of all buckets that have arrived.
    fn commit_buckets(&mut self, outcome: Outcome) -> Result<(), Error> {
        let absent = self.absence.everywhere();
        self.buckets.iter_mut().try_for_each(|bucket| bucket.commit(outcome, absent))
    }

    /// Returns the bucket of a parameter and its elements there.
    fn place(&self, parameter: usize) -> Result<(usize, Range<usize>), Error> {
        self.places.get(parameter).cloned().ok_or_else(|| {
            let count = self.parameters.len();
            Error::Invalid(format!("gradient of parameter {parameter}, expected one of {count}"))
        })
    }

    /// Sends a full bucket on its way.
    fn dispatch(&mut self, bucket: usize) -> Result<(), Error> {
        while self.options.underway_max.is_some_and(|most| self.underway >= most.get()) {
            self.receive()?;
        }
        self.open_record(bucket);
        self.sample(bucket);
        // A bucket may have two messages, each with an address of its own.
        let address = self.address(bucket as u32 * 2);
        let (exchange, departure) = self.buckets[bucket].depart(address);
        self.underway += 1;
        self.worker.exchange(Job { bucket, exchange, departure });
        if self.buckets.iter().all(BucketState::is_full) {
            self.agree_on_absence();
        }
        Ok(())
    }
}

/// Returns whether there are fewer than two cores per rank, so that the exchange computes on backward's
/// core.
fn shares_cores(options: &Options) -> bool {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let launched = || thinwire_job::local_ranks(&thinwire_job::process) as usize;
    cores < 2 * options.local_ranks.unwrap_or_else(launched)
}
