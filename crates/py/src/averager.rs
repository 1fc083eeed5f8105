//! Rounds of ranks that train copies of a model on their own, for Python.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use thinwire_cli::metrics::Exchanged;
use thinwire_collective::Group as Ranks;
use thinwire_sync::{
    Averager as Core, AveragerState, Channel, Mode, Options, Parameter, Replica, RoundRecord,
};
use thinwire_wire::{DType, World};

use crate::arguments;
use crate::error::{self, Failure};
use crate::group::Group;
use crate::lifetime::Held;
use crate::memory::Memory;
use crate::metrics::Meter;
use crate::options::{Described, Told, described};
use crate::state::{self, Tensors};
use crate::wait;

/// Exchanges parameters now and then, as a mode says.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Averager {
    held: Held<Core>,
    /// Elements of each parameter.
    lengths: Vec<usize>,
    meter: Mutex<Meter>,
}

/// Parameters of a rank at addresses that Python has given.
struct Copy(Vec<Memory>);

impl Replica for Copy {
    fn read(&self, parameter: usize, start: usize, values: &mut [f32]) {
        let all = self.0[parameter].f32s();
        values.copy_from_slice(&all[start..start + values.len()]);
    }

    fn write(&mut self, parameter: usize, start: usize, values: &[f32]) {
        self.0[parameter].f32s_mut()[start..start + values.len()].copy_from_slice(values);
    }
}

impl Copy {
    fn at(addresses: &[usize], lengths: &[usize]) -> Result<Copy, Failure> {
        if addresses.len() != lengths.len() {
            let (found, expected) = (addresses.len(), lengths.len());
            return Err(Failure::invalid(format!(
                "{found} addresses, expected {expected}: one of each parameter"
            )));
        }
        let one = |(address, length): (&usize, &usize)| Memory::of(*address, *length, DType::F32);
        Ok(Copy(addresses.iter().zip(lengths).map(one).collect::<Result<_, _>>()?))
    }
}

impl Averager {
    /// Does `work` on parameters in the background, and waits for it.
    fn work<T: Send + 'static>(
        &self,
        py: Python<'_>,
        addresses: &[usize],
        work: impl FnOnce(&mut Core, &mut Copy) -> Result<T, thinwire_sync::Error> + Send + 'static,
    ) -> PyResult<T> {
        self.held.context.lifetime.check()?;
        let mut copy = Copy::at(addresses, &self.lengths)?;
        let cell = Arc::clone(&self.held.cell);
        self.held.wait(py, move || Ok(cell.with("averager", |core| work(core, &mut copy))??))
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&mut Core) -> T + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| self.held.cell.with("averager", look))?)
    }
}

#[pymethods]
impl Averager {
    #[new]
    #[pyo3(signature = (group, parameters, addresses, mode, codec = "none", bucket_bytes = 1 << 20, seed = 1, algorithm = None, feedback = "classic", unchecked = false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn new(
        py: Python<'_>,
        group: &Group,
        parameters: Vec<Described>,
        addresses: Vec<usize>,
        mode: &str,
        codec: &str,
        bucket_bytes: i128,
        seed: i128,
        algorithm: Option<&str>,
        feedback: &str,
        unchecked: bool,
    ) -> PyResult<Averager> {
        let context = Arc::clone(group.context());
        context.lifetime.check()?;
        let parameters = described(parameters, &Arc::default())?;
        let mode = Mode::of_rounds(mode).map_err(|error| Failure::invalid(error.to_string()))?;
        let told = Told {
            codec,
            algorithm,
            bucket_bytes,
            seed,
            error_budget: None,
            feedback,
            momentum_correction: None,
            warmup_steps: Some(0),
            unchecked,
        };
        let options = Options {
            timeout: context.timeout,
            local_ranks: Some(context.place.local_world as usize),
            ..told.options()?
        };
        if context.place.rank == 0 {
            let names: Vec<&str> = parameters.iter().map(|it| it.name.as_str()).collect();
            let warnings = options.policy.warnings(&names);
            warnings.iter().try_for_each(|text| error::warn(py, text))?;
        }
        let lengths: Vec<usize> = parameters.iter().map(Parameter::elements).collect();
        let copy = Copy::at(&addresses, &lengths)?;
        let connect = group.connect("averager".to_owned())?;
        wait::for_work(py, move || {
            let channel = Channel::new(Ranks::new(connect()?).with_timeout(context.timeout));
            let stop = channel.stop();
            let core = Core::start(channel, &parameters, mode, &options, &copy)?;
            let meter = Mutex::new(Meter::start());
            Ok(Averager { held: Held::new(context, stop, core), lengths, meter })
        })
    }

    /// Whether the end of the next step reads or changes parameters.
    fn is_due(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |core| core.is_due())
    }

    /// Steps so far.
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |core| core.steps())
    }

    /// Ends a step of this rank.
    fn step<'py>(&self, py: Python<'py>, addresses: Vec<usize>) -> PyResult<Bound<'py, PyDict>> {
        let (record, steps) =
            self.work(py, &addresses, |core, copy| Ok((core.step(copy)?, core.steps())))?;
        let RoundRecord { wait_s, sent_bytes, skipped, .. } = record;
        let exchanged = Exchanged { wait_s, sent_bytes, raw_bytes: 0, skipped: skipped > 0 };
        self.meter.lock().expect("no holder panics").step(steps, exchanged);
        given(py, record)
    }

    /// Ends all rounds that are on their way.
    fn settle<'py>(&self, py: Python<'py>, addresses: Vec<usize>) -> PyResult<Bound<'py, PyDict>> {
        given(py, self.work(py, &addresses, Core::settle)?)
    }

    /// Gives all ranks the same parameters.
    fn finish<'py>(&self, py: Python<'py>, addresses: Vec<usize>) -> PyResult<Bound<'py, PyDict>> {
        given(py, self.work(py, &addresses, Core::finish)?)
    }

    /// Returns the progress and the tensors of this rank, beside its parameters; after `settle`.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyDict>)> {
        let state = self.with(py, |core| core.state())?;
        Ok((state.progress, state::given(py, state.tensors)?))
    }

    fn load(
        &self,
        py: Python<'_>,
        progress: String,
        tensors: Tensors<'_>,
        addresses: Vec<usize>,
    ) -> PyResult<()> {
        let tensors = state::read(String::new(), tensors)?.tensors;
        let state = AveragerState { tensors, progress };
        self.work(py, &addresses, move |core, copy| core.load(&state, copy))
    }

    fn abort(&self, reason: &str) -> PyResult<()> {
        Ok(self.held.abort(reason)?)
    }
}

/// Returns a record as Python has it.
fn given(py: Python<'_>, record: RoundRecord) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("begun", record.begun)?;
    dict.set_item("ended", record.ended)?;
    dict.set_item("skipped", record.skipped)?;
    dict.set_item("wait_s", record.wait_s)?;
    dict.set_item("sent_bytes", record.sent_bytes)?;
    Ok(dict)
}

/// Returns the rank with which a rank averages in a round of pairs; none for the one that sits out.
#[pyfunction]
pub(crate) fn partner(rank: i128, world: i128, seed: i128, round: i128) -> PyResult<Option<u32>> {
    let (rank, size) = (arguments::number("rank", rank)?, arguments::number("world", world)?);
    let world = World::new(rank, size).map_err(|error| Failure::invalid(error.to_string()))?;
    let (seed, round) = (arguments::number("seed", seed)?, arguments::number("round", round)?);
    Ok(thinwire_sync::partner(world, seed, round).map(|rank| rank.0))
}
