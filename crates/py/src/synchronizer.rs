//! A synchroniser of gradients for Python.

use std::ops::Range;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use thinwire_device::Values;
use thinwire_sync::{Live, Options, Parameter, Plan, StepRecord, Synchronizer as Core, Time};
use thinwire_wire::{DType, Rank};

use crate::arguments;
use crate::background::Background;
use crate::device::{Cuda, Gradients, Target};
use crate::epoch::Epoch;
use crate::error::{self, Failure};
use crate::group::Group;
use crate::lifetime::{Context, Member};
use crate::memory::Memory;
use crate::options::{Described, Told, described};
use crate::registry;
use crate::shared::{Inner, Shared, Source};
use crate::state::{self, Tensors};
use crate::wait;

/// Averages gradients over all ranks.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Synchronizer {
    shared: Arc<Shared>,
    background: Background,
    key: i32,
    /// The ranks that exchange gradients with this one; empty for all.
    peers: Arc<[Rank]>,
}

/// The ranks that average: those of a group, over connections of their own, or those of an epoch.
#[derive(FromPyObject)]
enum Ranks<'py> {
    Group(PyRef<'py, Group>),
    Epoch(PyRef<'py, Epoch>),
}

impl Ranks<'_> {
    fn context(&self) -> Arc<Context> {
        match self {
            Ranks::Group(group) => Arc::clone(group.context()),
            Ranks::Epoch(epoch) => Arc::clone(epoch.context()),
        }
    }

    /// Makes the synchroniser, for `wait::for_work`.
    fn start(
        &self,
        parameters: Vec<Parameter>,
        options: Options,
    ) -> Result<Box<dyn FnOnce() -> Result<Core, Failure> + Send>, Failure> {
        Ok(match self {
            Ranks::Group(group) => {
                let connect = group.connect("synchronizer".to_owned())?;
                Box::new(move || Ok(Core::start(connect()?, parameters, options)?))
            }
            Ranks::Epoch(epoch) => {
                let channel = epoch.channel()?;
                Box::new(move || Ok(Core::over(channel, parameters, options)?))
            }
        })
    }
}

impl Synchronizer {
    /// Does `work` in the background, after all earlier jobs, and waits for its result.
    fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Shared) -> Result<T, Failure> + Send + 'static,
    ) -> PyResult<T> {
        self.shared.context.lifetime.check()?;
        let shared = Arc::clone(&self.shared);
        self.background.wait(py, &self.shared.stop(), move || work(&shared))
    }

    /// Does `work` in the background, then calls `done`.
    fn later(
        &self,
        done: Py<PyAny>,
        work: impl FnOnce(&Shared) -> Result<bool, Failure> + Send + 'static,
    ) -> PyResult<()> {
        self.shared.context.lifetime.check()?;
        let shared = Arc::clone(&self.shared);
        self.background.answer(done, move || work(&shared).map(Some));
        Ok(())
    }
}

impl Drop for Synchronizer {
    /// Does nothing in a fork, which has none of the threads that a goodbye needs.
    fn drop(&mut self) {
        registry::forget(self.key);
        if self.shared.context.lifetime.is_forked() {
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}

#[pymethods]
impl Synchronizer {
    #[new]
    #[pyo3(signature = (group, parameters, codec = "none", bucket_bytes = 1 << 20, seed = 1, algorithm = None, error_budget = None, feedback = "classic", momentum_correction = None, warmup_steps = Some(0), unchecked = false, device = None, peers = Vec::new(), beside = Vec::new(), named = Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn new(
        py: Python<'_>,
        group: Ranks<'_>,
        parameters: Vec<Described>,
        codec: &str,
        bucket_bytes: i128,
        seed: i128,
        algorithm: Option<&str>,
        error_budget: Option<f64>,
        feedback: &str,
        momentum_correction: Option<f32>,
        warmup_steps: Option<i128>,
        unchecked: bool,
        device: Option<Py<Cuda>>,
        peers: Vec<i128>,
        beside: Vec<i128>,
        named: Vec<String>,
    ) -> PyResult<Synchronizer> {
        let context = group.context();
        context.lifetime.check()?;
        let ranks = |ranks: Vec<i128>| {
            let rank = |rank| arguments::number("rank", rank).map(Rank);
            ranks.into_iter().map(rank).collect::<Result<Arc<[Rank]>, _>>()
        };
        let (peers, beside) = (ranks(peers)?, ranks(beside)?);
        let parameters = described(parameters, &peers)?;
        let told = Told {
            codec,
            algorithm,
            bucket_bytes,
            seed,
            error_budget,
            feedback,
            momentum_correction,
            warmup_steps,
            unchecked,
        };
        let cuda = device.as_ref().map(|device| device.get().cuda().clone());
        let options = Options {
            timeout: context.timeout,
            // Backward on a device takes no cores.
            local_ranks: Some(device.as_ref().map_or(context.place.local_world as usize, |_| 0)),
            device: device.map(|device| device.get().core()),
            ..told.options()?
        };
        if context.place.rank == 0 {
            let mine: Vec<&str> = parameters.iter().map(|it| it.name.as_str()).collect();
            let all: Vec<&str> = named.iter().map(String::as_str).collect();
            let warnings = options.policy.warnings(if all.is_empty() { &mine } else { &all });
            warnings.iter().try_for_each(|text| error::warn(py, text))?;
        }
        let corrects = options.momentum.is_some();
        let start = group.start(parameters, options)?;
        let shared =
            wait::for_work(py, move || Ok(Shared::new(context, start()?, corrects, beside)))?;
        let background = Background::start();
        let key = registry::remember(&shared, &background, cuda);
        Ok(Synchronizer { shared, background, key, peers })
    }

    /// Returns the number by which operators of frameworks find this synchroniser.
    #[getter]
    fn key(&self) -> i32 {
        self.key
    }

    /// Returns the parameters of each bucket.
    fn buckets(&self, py: Python<'_>) -> PyResult<Vec<Vec<usize>>> {
        Ok(py.detach(|| self.shared.with(|inner| Ok(inner.buckets.clone())))?)
    }

    fn relayout(&self, py: Python<'_>, parameters: Vec<Described>) -> PyResult<()> {
        let parameters = described(parameters, &self.peers)?;
        let relayout = |inner: &mut Inner| {
            (inner.averaged, inner.skipped) = (false, false);
            inner.sync.relayout(parameters)?;
            inner.buckets = inner.sync.buckets().collect();
            Ok(())
        };
        self.wait(py, |shared| shared.with(relayout))
    }

    #[pyo3(signature = (step = None))]
    fn begin(&self, py: Python<'_>, step: Option<i128>) -> PyResult<()> {
        let step = step.map(|step| arguments::number("step", step)).transpose()?;
        let begin = |inner: &mut Inner| {
            inner.step = step.unwrap_or(inner.step);
            inner.begin()
        };
        Ok(py.detach(|| self.shared.with(begin))?)
    }

    /// Sets the part of the global batch that this rank computes.
    fn set_share(&self, py: Python<'_>, share: f32) -> PyResult<()> {
        Ok(py.detach(|| self.shared.with(|inner| Ok(inner.sync.set_share(share)?)))?)
    }

    /// Continues among the ranks of an epoch, after a step that was lost, or between steps.
    #[pyo3(signature = (epoch, applied = false))]
    fn reform(&self, py: Python<'_>, epoch: &Epoch, applied: bool) -> PyResult<()> {
        let channel = epoch.channel()?;
        self.wait(py, move |shared| shared.reform(channel, applied))
    }

    #[pyo3(signature = (parameter, address, elements, device = None))]
    fn ready(
        &self,
        py: Python<'_>,
        parameter: usize,
        address: usize,
        elements: usize,
        device: Option<Py<Cuda>>,
    ) -> PyResult<()> {
        let target = Target::new(parameter, address, elements, device);
        let ready = |inner: &mut Inner| {
            let gradients = inner.gradients(&target)?;
            inner.ready(parameter, &gradients)
        };
        Ok(py.detach(|| self.shared.with(ready))?)
    }

    #[pyo3(signature = (bucket, address, elements, device = None))]
    fn ready_bucket(
        &self,
        py: Python<'_>,
        bucket: u32,
        address: usize,
        elements: usize,
        device: Option<Py<Cuda>>,
    ) -> PyResult<()> {
        let target = Target::new(bucket as usize, address, elements, device);
        let ready = |inner: &mut Inner| {
            let parts = inner.split(&target)?;
            let whole = |(parameter, gradients): &(usize, Gradients)| {
                let is_f32 = inner.sync.parameters()[*parameter].dtype == DType::F32;
                is_f32 && matches!(gradients, Values::Host(_))
            };
            if parts.iter().all(whole) {
                let memory = Memory::of(address, elements, DType::F32)?;
                let part = |range: Range<usize>| memory.part(range.start * 4, range.len() * 4);
                return Ok(inner.sync.ready_bucket(bucket, part)?);
            }
            for (parameter, gradients) in parts {
                inner.ready(parameter, &gradients)?;
            }
            Ok(())
        };
        Ok(py.detach(|| self.shared.with(ready))?)
    }

    /// Declares that this rank has no gradients of these parameters in this step. Call it before any is
    /// given for them.
    fn absent(&self, py: Python<'_>, parameters: Vec<usize>) -> PyResult<()> {
        let absent = |inner: &mut Inner| {
            Ok(parameters.iter().try_for_each(|parameter| inner.sync.absent(*parameter))?)
        };
        Ok(py.detach(|| self.shared.with(absent))?)
    }

    /// Returns whether anything is kept of parameters from step to step.
    fn keeps(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(py.detach(|| self.shared.with(|inner| Ok(inner.sync.keeps())))?)
    }

    /// Describes the gradient because of which the last step was skipped, if it was.
    fn fault(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(py.detach(|| self.shared.with(|inner| Ok(inner.sync.fault().map(str::to_owned))))?)
    }

    /// Describes the codec or option that a device did not support in the last step, if there was one.
    fn staged(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(py.detach(|| self.shared.with(|inner| Ok(inner.staged())))?)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<bool> {
        self.wait(py, |shared| shared.with(Inner::finish))
    }

    #[pyo3(signature = (parameter, address, elements, device = None))]
    fn write(
        &self,
        py: Python<'_>,
        parameter: usize,
        address: usize,
        elements: usize,
        device: Option<Py<Cuda>>,
    ) -> PyResult<()> {
        let target = Target::new(parameter, address, elements, device);
        let write = |inner: &mut Inner| inner.write(parameter, inner.gradients(&target)?);
        Ok(py.detach(|| self.shared.with(write))?)
    }

    fn finish_into(&self, targets: Vec<Target>, done: Py<PyAny>) -> PyResult<()> {
        self.later(done, move |shared| {
            shared.with(|inner| {
                let averaged = inner.finish()?;
                for target in targets {
                    inner.update(target.number(), inner.gradients(&target)?)?;
                }
                Ok(averaged)
            })
        })
    }

    fn finish_buckets(&self, targets: Vec<Target>, done: Py<PyAny>) -> PyResult<()> {
        self.later(done, move |shared| {
            shared.with(|inner| {
                let averaged = inner.finish()?;
                for target in targets {
                    for (parameter, gradients) in inner.split(&target)? {
                        inner.update(parameter, gradients)?;
                    }
                }
                Ok(averaged)
            })
        })
    }

    fn exchange(&self, py: Python<'_>, sources: Vec<usize>, targets: Vec<usize>) -> PyResult<bool> {
        let [sources, targets] = [sources, targets].map(|addresses| {
            let source = |address| Source { address, described: None, device: None };
            addresses.into_iter().map(source).collect::<Vec<_>>()
        });
        self.wait(py, move |shared| shared.exchange(&sources, &targets))
    }

    fn rescale(&self, py: Python<'_>, previous_rate: f32, rate: f32) -> PyResult<()> {
        let rescale = |inner: &mut Inner| Ok(inner.sync.rescale(previous_rate, rate)?);
        Ok(py.detach(|| self.shared.with(rescale))?)
    }

    /// Returns the first failure of an operator, if there was one.
    fn failure(&self) -> Option<PyErr> {
        self.shared.failure.lock().expect("no holder panics").clone().map(PyErr::from)
    }

    fn plan(&self, py: Python<'_>) -> PyResult<String> {
        let plan = |inner: &mut Inner| {
            let line = inner.sync.planning().map(|planning| planning.line.as_str());
            Ok(json(&ToldPlan { plan: inner.sync.plan(), line }))
        };
        Ok(py.detach(|| self.shared.with(plan))?)
    }

    fn record(&self, py: Python<'_>) -> PyResult<String> {
        let record = |inner: &mut Inner| {
            // Plans outlast the steps that made them, and so do their reasons.
            let planning = inner.sync.planning().cloned().map(Box::new);
            Ok(json(&StepRecord { planning, ..inner.sync.record().clone() }))
        };
        Ok(py.detach(|| self.shared.with(record))?)
    }

    /// Returns the figures that `thinwire top` shows of this rank after this number of steps, as JSON.
    fn live(
        &self,
        py: Python<'_>,
        steps: u64,
        step_s: f64,
        samples_per_s: f64,
    ) -> PyResult<String> {
        let live = move |inner: &mut Inner| {
            let record = inner.sync.record();
            let live = Live {
                step: Some(steps),
                samples_per_s: Some(samples_per_s),
                time: Some(Time::of(step_s, record)),
                ..Live::default()
            };
            Ok(json(&match inner.sync.world().rank().0 {
                0 => live.with_exchange(inner.sync.link(), Some(record)),
                _ => live,
            }))
        };
        Ok(py.detach(|| self.shared.with(live))?)
    }

    fn state<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyDict>)> {
        let state = py.detach(|| {
            self.shared.with(|inner| {
                let mut state = inner.sync.state();
                state::put_step(&mut state, inner.step);
                Ok(state)
            })
        })?;
        Ok((state.plan, state::given(py, state.tensors)?))
    }

    /// Returns the part of the state that is equal on all ranks.
    fn shared_state<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyDict>)> {
        let shared = |inner: &mut Inner| Ok(inner.sync.state().shared());
        let state = py.detach(|| self.shared.with(shared))?;
        Ok((state.plan, state::given(py, state.tensors)?))
    }

    /// Continues from the shared part of another rank's state, and keeps this rank's residuals.
    fn load_shared(&self, py: Python<'_>, plan: String, tensors: Tensors<'_>) -> PyResult<()> {
        let shared = state::read(plan, tensors)?;
        let load = move |inner: &mut Inner| {
            let state = inner.sync.state().with_shared(shared);
            Ok(inner.sync.load_tensors(&state)?)
        };
        Ok(py.detach(|| self.shared.with(load))?)
    }

    /// Returns the residuals and momenta of this rank, for `take_on` of another rank.
    fn owed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let owed = py.detach(|| self.shared.with(|inner| Ok(inner.sync.owed()?)))?;
        Ok(PyBytes::new(py, &owed))
    }

    /// Takes on the residuals and momenta of a rank that leaves.
    fn take_on(&self, py: Python<'_>, owed: Vec<u8>) -> PyResult<()> {
        Ok(py.detach(|| self.shared.with(|inner| Ok(inner.sync.take_on(&owed)?)))?)
    }

    /// Disconnects from the other ranks between steps, until `reform`.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let release = |inner: &mut Inner| {
            inner.sync.release();
            Ok(())
        };
        Ok(py.detach(|| self.shared.with(release))?)
    }

    fn load(&self, py: Python<'_>, plan: String, tensors: Tensors<'_>) -> PyResult<()> {
        let state = state::read(plan, tensors);
        let load = move |inner: &mut Inner| {
            let found = state.and_then(|state| state::loadable(state, &inner.sync));
            let (found, facts) = match found {
                Ok((state, step)) => (Ok((state, step)), state::facts(step)),
                Err(failure) => {
                    (Err(thinwire_sync::Error::Invalid(failure.to_string())), Vec::new())
                }
            };
            let (state, step) = inner.sync.agree_on_states(found, &facts)?;
            inner.sync.load(&state)?;
            inner.step = step.unwrap_or(inner.step);
            Ok(())
        };
        self.wait(py, |shared| shared.with(load))
    }

    fn state_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(py.detach(|| self.shared.with(|inner| Ok(inner.sync.state_bytes())))?)
    }

    fn abort(&self, reason: &str) -> PyResult<()> {
        self.shared.context.lifetime.check()?;
        self.shared.abort(reason);
        Ok(())
    }
}

/// The plan in force and, on rank 0, the line in which `auto` explains it.
#[derive(serde::Serialize)]
struct ToldPlan<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<&'a str>,
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("numbers and strings can be written as JSON")
}
