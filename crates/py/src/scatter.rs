//! Compressed reduce-scatter and all-gather for Python.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use thinwire_codec::{Choice, Exchange, laws};
use thinwire_device::Values;
use thinwire_sync::{Part, Place};
use thinwire_wire::DType;

use crate::arguments::{self, bytes_codec, parse_dtype};
use crate::device::{Cuda, Target, spoil, write};
use crate::error::{self, Failure};
use crate::group::Group;
use crate::lifetime::{Cell, Held};
use crate::memory::Memory;
use crate::metrics::{self, Sent};
use crate::state;
use crate::wait;

type Done = Option<Py<PyAny>>;
/// A place as Python stores it.
type Saved<'py> = (i128, Bound<'py, PyBytes>);

/// Reduces and gathers shards of parameters.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Scatter {
    held: Held<thinwire_sync::Scatter>,
    size: usize,
    was_skipped: Arc<AtomicBool>,
    sent: Arc<Sent>,
}

impl Scatter {
    /// Does `work` in the background, after all earlier jobs; waits for it unless there is a `done` to
    /// call.
    fn issue(
        &self,
        py: Python<'_>,
        done: Done,
        work: impl FnOnce(&mut thinwire_sync::Scatter) -> Result<(), Failure> + Send + 'static,
    ) -> PyResult<()> {
        self.held.context.lifetime.check()?;
        let cell = Arc::clone(&self.held.cell);
        let sent = Arc::clone(&self.sent);
        let run = move || {
            with(&cell, work)?;
            if metrics::are_exported() {
                sent.note(with(&cell, |scatter| Ok(scatter.sent_bytes()?))?);
            }
            Ok(())
        };
        if let Some(done) = done {
            self.held.background.answer(done, move || run().map(|()| None));
            return Ok(());
        }
        self.held.wait(py, run)
    }
}

#[pymethods]
impl Scatter {
    #[new]
    #[pyo3(signature = (group, codec = "none", seed = 1, unchecked = false))]
    fn new(
        py: Python<'_>,
        group: &Group,
        codec: &str,
        seed: i128,
        unchecked: bool,
    ) -> PyResult<Scatter> {
        let context = Arc::clone(group.context());
        let seed = arguments::number("seed", seed)?;
        context.lifetime.check()?;
        let choice = Choice::parse(codec).map_err(Failure::from)?;
        if !unchecked {
            laws::check_file(&choice).map_err(Failure::invalid)?;
        }
        if context.place.rank == 0 {
            choice.warning().iter().try_for_each(|text| error::warn(py, text))?;
        }
        let connect = group.connect("scatter".to_owned())?;
        wait::for_work(py, move || {
            let scatter = thinwire_sync::Scatter::start(connect()?, choice, seed, context.timeout)?;
            let (stop, size) = (scatter.stop(), scatter.world().size());
            let held = Held::new(context, stop, scatter);
            Ok(Scatter { held, size, was_skipped: Arc::default(), sent: Arc::default() })
        })
    }

    #[pyo3(signature = (parts, source, target, dtype, average = false, done = None, device = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        parts: Vec<(u64, usize)>,
        source: usize,
        target: usize,
        dtype: &str,
        average: bool,
        done: Done,
        device: Option<Py<Cuda>>,
    ) -> PyResult<()> {
        let dtype = parse_dtype(dtype)?;
        let parts: Vec<Part> =
            parts.into_iter().map(|(key, elements)| Part { key, elements }).collect();
        let elements = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.elements));
        let scale = if average { 1.0 / self.size as f32 } else { 1.0 };
        let all = elements.saturating_mul(self.size);
        let on = || device.as_ref().map(|device| device.clone_ref(py));
        let source = Target::new(0, source, all, on()).memory(dtype)?;
        let mut target = Target::new(0, target, elements, on()).memory(dtype)?;
        let was_skipped = Arc::clone(&self.was_skipped);
        self.issue(py, done, move |scatter| {
            let sums = match source {
                Values::Host(memory) => {
                    let mut values = memory.to_f32(dtype);
                    values.iter_mut().for_each(|value| *value *= scale);
                    let sums = scatter.reduce_scatter(&parts, dtype, values)?;
                    was_skipped.store(sums.first().is_some_and(|sum| sum.is_nan()), Relaxed);
                    return write(&mut target, dtype, Values::Host(&sums));
                }
                Values::Device(region) => {
                    scatter.reduce_scatter_on_device(&parts, dtype, &region, scale)?
                }
            };
            was_skipped.store(sums.is_none(), Relaxed);
            match sums {
                Some(sums) => write(&mut target, dtype, Values::Device(sums)),
                None => spoil(&mut target, dtype),
            }
        })
    }

    /// Returns whether the last reduce-scatter had a value that is not finite.
    #[getter]
    fn was_skipped(&self) -> bool {
        self.was_skipped.load(Relaxed)
    }

    #[pyo3(signature = (key, source, target, elements, dtype, codec = "none", done = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn all_gather(
        &self,
        py: Python<'_>,
        key: u64,
        source: usize,
        target: usize,
        elements: usize,
        dtype: &str,
        codec: &str,
        done: Done,
    ) -> PyResult<()> {
        let dtype: DType = parse_dtype(dtype)?;
        let codec = bytes_codec(codec, dtype)?;
        if codec.exchange() == Exchange::Gather {
            return Err(Failure::invalid(format!(
                "codec {codec} drops most elements, and a gathered parameter needs all of them"
            ))
            .into());
        }
        let source = Memory::of(source, elements, dtype)?;
        let mut target = Memory::of(target, elements.saturating_mul(self.size), dtype)?;
        self.issue(py, done, move |scatter| {
            let values = scatter.all_gather(&codec, key, &source.to_f32(dtype))?;
            target.write(dtype, &values);
            Ok(())
        })
    }

    /// Returns, by key, the number of exchanges and the residual, as bytes of f32.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = py.detach(|| with(&self.held.cell, |scatter| Ok(scatter.state())))?;
        let places = PyDict::new(py);
        for (key, Place { count, residual }) in state {
            let residual = PyBytes::new(py, bytemuck::cast_slice(&residual));
            places.set_item(key, (count, residual))?;
        }
        Ok(places)
    }

    fn load(&self, py: Python<'_>, places: BTreeMap<u64, Saved<'_>>) -> PyResult<()> {
        let place = |(key, (count, bytes)): (u64, Saved<'_>)| {
            let residual = state::floats(&format!("residual {key}"), bytes.as_bytes())?;
            Ok((key, Place { count: arguments::number("count", count)?, residual }))
        };
        let places = places.into_iter().map(place).collect::<Result<_, Failure>>()?;
        let load = |scatter: &mut thinwire_sync::Scatter| {
            scatter.load(places);
            Ok(())
        };
        Ok(py.detach(|| with(&self.held.cell, load))?)
    }

    fn abort(&self, reason: &str) -> PyResult<()> {
        Ok(self.held.abort(reason)?)
    }
}

fn with<T>(
    cell: &Cell<thinwire_sync::Scatter>,
    use_it: impl FnOnce(&mut thinwire_sync::Scatter) -> Result<T, Failure>,
) -> Result<T, Failure> {
    cell.with("scatter", use_it)?
}
