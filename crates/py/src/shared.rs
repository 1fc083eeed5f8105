//! A synchroniser behind its locks: shared by the Python object, the background and the operators of frameworks.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use thinwire_cli::metrics::Exchanged;
use thinwire_collective::Stop;
use thinwire_device::Values;
use thinwire_device::cuda::Cuda;
use thinwire_sync::{Channel, Outcome, Parameter};
use thinwire_wire::{DType, Rank};

use crate::device::{Gradients, Target, gradient, memory, spoil, write};
use crate::error::Failure;
use crate::lifetime::{Context, Member, one_line};
use crate::memory::Memory;
use crate::metrics::Meter;

/// State that the Python object, the background and the operators share.
pub(crate) struct Shared {
    inner: Mutex<Option<Inner>>,
    stop: Mutex<Stop>,
    pub(crate) context: Arc<Context>,
    /// The first failure of an operator.
    pub(crate) failure: Mutex<Option<Failure>>,
}

/// The synchroniser and the step that it is in.
pub(crate) struct Inner {
    pub(crate) sync: thinwire_sync::Synchronizer,
    /// The parameters of each bucket as operators of compiled programs know them. The core's own
    /// buckets change at the end of a warm-up.
    pub(crate) buckets: Vec<Vec<usize>>,
    /// The ranks that exchange other gradients of each step; either all of them keep a step or none
    /// does.
    beside: Arc<[Rank]>,
    /// Whether this is a world of one without momentum correction, where the given gradient is the
    /// average.
    alone: bool,
    pub(crate) step: u64,
    /// Whether a step has begun and is not finished.
    begun: bool,
    /// The end of the last step, which is the beginning of the next one unless the caller gives it.
    ended: Instant,
    pub(crate) skipped: bool,
    /// Whether the averages of this step are there.
    pub(crate) averaged: bool,
    /// Whether somebody has been told what a device does not do.
    told_staged: bool,
    meter: Meter,
}

/// A gradient that is to be exchanged, or a place for its average.
pub(crate) struct Source {
    pub(crate) address: usize,
    /// Number of elements, and the dtype if the core has it; `None` if the framework does not describe
    /// them.
    pub(crate) described: Option<(usize, Option<DType>)>,
    /// The device that has it, as f32; none in host memory.
    pub(crate) device: Option<Cuda>,
}

impl Source {
    /// Refuses memory that cannot be the gradient of this parameter.
    fn check(&self, parameter: &Parameter) -> Result<(), Failure> {
        let Some((elements, dtype)) = self.described else { return Ok(()) };
        let kind = self.device.as_ref().map_or(parameter.dtype, |_| DType::F32);
        if elements == parameter.elements() && dtype == Some(kind) {
            return Ok(());
        }
        let found = dtype.map_or("another dtype", DType::name);
        let (name, expected) = (&parameter.name, parameter.elements());
        Err(Failure::invalid(format!(
            "gradient of {name} is {elements} of {found}, expected {expected} of {kind}"
        )))
    }
}

impl Inner {
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        self.begin_since(Instant::now())
    }

    fn begin_since(&mut self, begun: Instant) -> Result<(), Failure> {
        self.sync.begin_since(self.step, begun)?;
        (self.step, self.averaged, self.begun) = (self.step.saturating_add(1), false, true);
        Ok(())
    }

    /// Takes gradients of some parameters; the first call of a step begins it.
    fn take(&mut self, parameters: &[usize], sources: &[Source]) -> Result<(), Failure> {
        if sources.len() != parameters.len() {
            let (found, expected) = (sources.len(), parameters.len());
            return Err(Failure::invalid(format!("{found} gradients, expected {expected}")));
        }
        for (&index, source) in parameters.iter().zip(sources) {
            source.check(self.parameter(index)?)?;
        }
        if self.alone {
            return Ok(());
        }
        if !self.begun {
            self.begin_since(self.ended)?;
        }
        for (&index, source) in parameters.iter().zip(sources) {
            self.ready(index, &self.memory(index, source)?)?;
        }
        Ok(())
    }

    /// Waits for all averages, and writes them to these places, in the parameters' order.
    fn give(&mut self, targets: &[Source]) -> Result<bool, Failure> {
        let (found, expected) = (targets.len(), self.sync.parameters().len());
        if found != expected {
            return Err(Failure::invalid(format!("{found} averages, expected {expected}")));
        }
        for (parameter, target) in self.sync.parameters().iter().zip(targets) {
            target.check(parameter)?;
        }
        let averaged = self.finish()?;
        for (index, target) in targets.iter().enumerate() {
            self.write(index, self.memory(index, target)?)?;
        }
        self.ended = Instant::now();
        Ok(averaged)
    }

    pub(crate) fn ready(&mut self, parameter: usize, gradients: &Gradients) -> Result<(), Failure> {
        let dtype = self.parameter(parameter)?.dtype;
        Ok(self.sync.ready(parameter, gradient(gradients, dtype))?)
    }

    pub(crate) fn finish(&mut self) -> Result<bool, Failure> {
        self.begun = false;
        let outcome = match self.beside.is_empty() {
            true => self.sync.finish()?,
            false => self.sync.finish_beside(&self.beside)?,
        };
        self.skipped = outcome == Outcome::Skipped;
        self.averaged = !self.skipped;
        let record = self.sync.record();
        self.meter.step(
            self.step,
            Exchanged {
                wait_s: record.wait_s,
                sent_bytes: record.total(|bucket| bucket.sent_bytes),
                raw_bytes: record.total(|bucket| bucket.raw_bytes),
                skipped: self.skipped,
            },
        );
        Ok(self.averaged)
    }

    /// Says in a line what a device did not do in the last step, if there was something.
    pub(crate) fn staged(&self) -> Option<String> {
        let staged = self.sync.staged()?;
        Some(format!(
            "{staged} is computed on the CPU: gradients are copied from the GPU to host memory in every step \
             (hint: codecs int8, int4, int3, ecsq, topk, powersgd and others are computed on the GPU, under \
             classic feedback)"
        ))
    }

    /// Says the same the first time that there is something, and nothing later.
    pub(crate) fn staged_at_first(&mut self) -> Option<String> {
        let staged = self.staged().filter(|_| !self.told_staged);
        self.told_staged |= staged.is_some();
        staged
    }

    /// Writes an average, or NaN after a step that was skipped.
    pub(crate) fn write(&self, parameter: usize, mut gradients: Gradients) -> Result<(), Failure> {
        let Parameter { dtype, name, .. } = self.parameter(parameter)?;
        match (self.averaged && self.sync.has_averages(), self.skipped) {
            (true, _) => {
                let on_device = self.sync.gradient_on_device(parameter).map(Values::Device);
                let in_host = || Values::Host(self.sync.gradient(parameter));
                write(&mut gradients, *dtype, on_device.unwrap_or_else(in_host))
            }
            (false, true) => spoil(&mut gradients, *dtype),
            (false, false) => Err(Failure::invalid(format!(
                "no average of {name} yet, expected finish before write"
            ))),
        }
    }

    /// Writes an average over this rank's gradient. If no rank had a gradient, the memory stays as it
    /// is; a framework may have the gradient of an earlier step there.
    pub(crate) fn update(&self, parameter: usize, gradients: Gradients) -> Result<(), Failure> {
        match self.sync.has_averages() && self.sync.is_absent(parameter) {
            true => Ok(()),
            false => self.write(parameter, gradients),
        }
    }

    fn parameter(&self, index: usize) -> Result<&Parameter, Failure> {
        let parameters = self.sync.parameters();
        parameters.get(index).ok_or_else(|| {
            let count = parameters.len();
            Failure::invalid(format!("parameter {index}, expected one of {count}"))
        })
    }

    /// Returns the memory of a parameter's gradient or average.
    fn memory(&self, index: usize, source: &Source) -> Result<Gradients, Failure> {
        let parameter = self.parameter(index)?;
        memory(source.address, parameter.elements(), parameter.dtype, source.device.as_ref())
    }

    /// Returns the host memory at an address, as long as a parameter's gradient.
    fn whole(&self, index: usize, address: usize) -> Result<Memory, Failure> {
        let parameter = self.parameter(index)?;
        Memory::of(address, parameter.elements(), parameter.dtype)
    }

    /// Returns the memory of a parameter's gradient.
    pub(crate) fn gradients(&self, target: &Target) -> Result<Gradients, Failure> {
        let parameter = self.parameter(target.number())?;
        let (found, expected) = (target.elements(), parameter.elements());
        if found != expected {
            let name = &parameter.name;
            return Err(Failure::invalid(format!(
                "gradient of {name} has {found} elements, expected {expected}"
            )));
        }
        target.memory(parameter.dtype)
    }

    /// Returns the memory of each parameter of one of the framework's buckets, which is one flat
    /// tensor.
    pub(crate) fn split(&self, target: &Target) -> Result<Vec<(usize, Gradients)>, Failure> {
        let bucket = target.number();
        let all = self.sync.parameters().iter().enumerate();
        let members = all.filter(|(_, parameter)| parameter.bucket as usize == bucket);
        let (mut parts, mut end, mut bytes) = (Vec::new(), 0, 0);
        for (index, parameter) in members {
            parts.push((index, target.part(bytes, parameter.elements(), parameter.dtype)?));
            end += parameter.elements();
            bytes += parameter.elements() * target.width(parameter.dtype);
        }
        let found = target.elements();
        if end != found {
            return Err(Failure::invalid(format!(
                "bucket {bucket} has {found} elements, expected {end}"
            )));
        }
        Ok(parts)
    }
}

impl Shared {
    /// Returns a synchroniser before its first step, as a member of its context's lifetime; `corrects`
    /// tells whether it has momentum correction.
    pub(crate) fn new(
        context: Arc<Context>,
        sync: thinwire_sync::Synchronizer,
        corrects: bool,
        beside: Arc<[Rank]>,
    ) -> Arc<Shared> {
        let (stop, alone) = (sync.stop(), sync.world().size() == 1 && !corrects);
        let ended = Instant::now();
        let (skipped, averaged) = (false, false);
        let buckets = sync.buckets().collect();
        let (step, begun, told_staged, meter) = (0, false, false, Meter::start());
        let inner = Mutex::new(Some(Inner {
            sync,
            buckets,
            beside,
            alone,
            step,
            begun,
            ended,
            skipped,
            averaged,
            told_staged,
            meter,
        }));
        let stop = Mutex::new(stop);
        let shared = Arc::new(Shared { inner, stop, context, failure: Mutex::default() });
        shared.context.lifetime.add(&shared);
        shared
    }

    pub(crate) fn with<T>(
        &self,
        use_it: impl FnOnce(&mut Inner) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.context.lifetime.check()?;
        let mut inner = self.inner.lock().expect("no holder panics");
        use_it(inner.as_mut().ok_or_else(|| Failure::invalid("the synchroniser is closed"))?)
    }

    /// Returns the handle that ends the group with which it exchanges now.
    pub(crate) fn stop(&self) -> Stop {
        self.stop.lock().expect("no holder panics").clone()
    }

    /// Continues among the ranks of another channel. `applied` tells whether one of them has applied
    /// the last step, whose end this rank has not seen.
    pub(crate) fn reform(&self, channel: Channel, applied: bool) -> Result<(), Failure> {
        let stop = channel.stop();
        self.with(|inner| {
            (inner.begun, inner.averaged, inner.skipped) = (false, false, false);
            if applied {
                inner.sync.keep_lost()?;
            }
            *self.stop.lock().expect("no holder panics") = stop;
            *self.failure.lock().expect("no holder panics") = None;
            Ok(inner.sync.reform_over(channel)?)
        })
    }

    /// Takes the gradients of a bucket, and returns at once.
    pub(crate) fn ready(&self, bucket: usize, sources: &[Source]) -> Result<(), Failure> {
        self.with(|inner| {
            let parameters = inner.buckets.get(bucket).cloned().ok_or_else(|| {
                let count = inner.buckets.len();
                Failure::invalid(format!("bucket {bucket}, expected one of {count}"))
            })?;
            inner.take(&parameters, sources)
        })
    }

    /// Waits for the averages of a step whose gradients were all taken, in the parameters' order.
    pub(crate) fn finish(&self, targets: &[Source]) -> Result<bool, Failure> {
        self.with(|inner| inner.give(targets))
    }

    /// Makes a whole step on tensors in the parameters' order.
    pub(crate) fn exchange(&self, sources: &[Source], targets: &[Source]) -> Result<bool, Failure> {
        self.with(|inner| {
            let all: Vec<usize> = (0..inner.sync.parameters().len()).collect();
            inner.take(&all, sources)?;
            if !inner.alone {
                return inner.give(targets);
            }
            for (index, (source, target)) in sources.iter().zip(targets).enumerate() {
                let source = inner.whole(index, source.address)?;
                inner.whole(index, target.address)?.copy_from(source);
            }
            Ok(true)
        })
    }
}

impl Member for Shared {
    fn abort(&self, reason: &str) {
        self.stop().stop(&one_line(reason));
    }

    fn close(&self) {
        drop(self.inner.lock().expect("no holder panics").take());
    }
}
