//! Policies that adapt a training while it runs, for Python.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use thinwire_policy::{InvalidPolicy, NoiseScale, Observation, Part, Policy, Spec};
use thinwire_wire::DType;

use crate::error::Failure;
use crate::memory::Memory;

/// Norms of one rank's gradients in one step, in few numbers.
#[pyclass(module = "thinwire._core")]
pub(crate) struct Sketch(thinwire_policy::Sketch);

#[pymethods]
impl Sketch {
    #[new]
    fn new(step: u64) -> Sketch {
        Sketch(thinwire_policy::Sketch::new(step))
    }

    /// Whether gradients are sketched in a step.
    #[staticmethod]
    fn is_due(step: u64) -> bool {
        thinwire_policy::Sketch::is_due(step)
    }

    /// Adds the gradient of a parameter: f32 at an address of host memory.
    fn add(
        &mut self,
        py: Python<'_>,
        parameter: usize,
        address: usize,
        elements: usize,
    ) -> PyResult<()> {
        let memory = Memory::of(address, elements, DType::F32)?;
        py.detach(|| self.0.add(parameter, memory.f32s()));
        Ok(())
    }

    /// Returns the numbers that ranks tell each other.
    fn row(&self) -> Vec<f32> {
        self.0.row().to_vec()
    }
}

/// Policies, and the noise of gradients that they see.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Policies(Mutex<State>);

#[derive(Default)]
struct State {
    policies: Vec<Spec>,
    noise: NoiseScale,
}

impl Policies {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().expect("no holder panics"))
    }
}

#[pymethods]
impl Policies {
    #[new]
    fn new(policies: Vec<String>) -> PyResult<Policies> {
        let read = |text: &String| text.parse::<Spec>();
        let policies = policies.iter().map(read).collect::<Result<Vec<_>, InvalidPolicy>>();
        let policies = policies.map_err(|error| Failure::invalid(error.to_string()))?;
        Ok(Policies(Mutex::new(State { policies, noise: NoiseScale::default() })))
    }

    /// Whether a policy does nothing without ranks that come and go.
    fn needs_ranks(&self) -> bool {
        self.with(|state| state.policies.iter().any(Spec::is_for_elastic))
    }

    /// Records a step: the sketch of each rank, and its rows of the batch.
    fn take(&self, sketches: Vec<Vec<f32>>, rows: Vec<usize>) -> PyResult<()> {
        if sketches.len() != rows.len() {
            let (found, expected) = (rows.len(), sketches.len());
            return Err(Failure::invalid(format!(
                "rows of {found} ranks, expected {expected}: one number for each sketch"
            ))
            .into());
        }
        let parts = rows.iter().zip(&sketches).map(|(rows, sketch)| Part { rows: *rows, sketch });
        self.with(|state| state.noise.take(parts));
        Ok(())
    }

    /// Returns the squared norm of the gradient and the variance of one row's, once they are known.
    fn noise(&self) -> Option<(f64, f64)> {
        self.with(|state| state.noise.noise()).map(|noise| (noise.signal, noise.variance))
    }

    /// Asks the policies after a step; returns what they ask for, one after the other.
    #[pyo3(signature = (step, ranks, ranks_asked, ranks_allowed, batch, first_batch, rows_left, step_s, wait_s, elapsed_s))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn ask<'py>(
        &self,
        py: Python<'py>,
        step: u64,
        ranks: u32,
        ranks_asked: u32,
        ranks_allowed: Option<[u32; 2]>,
        batch: usize,
        first_batch: usize,
        rows_left: u64,
        step_s: f64,
        wait_s: f64,
        elapsed_s: f64,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let asked = self.with(|State { policies, noise }| {
            let seen = Observation {
                step,
                ranks,
                ranks_asked,
                ranks_allowed: ranks_allowed.map(|[min, max]| min..=max),
                batch,
                first_batch,
                rows_left,
                step_s,
                wait_s,
                elapsed_s,
                noise: noise.noise(),
                error_budget: None,
                first_error_budget: 0.0,
            };
            policies.iter_mut().filter_map(|policy| policy.observe(&seen)).collect::<Vec<_>>()
        });
        let dict = |asked: thinwire_policy::Adjustment| {
            let dict = PyDict::new(py);
            asked.batch.map_or(Ok(()), |batch| dict.set_item("batch", batch))?;
            asked.rate.map_or(Ok(()), |rate| dict.set_item("rate", rate))?;
            asked.ranks.map_or(Ok(()), |ranks| dict.set_item("ranks", ranks))?;
            dict.set_item("reason", asked.reason)?;
            Ok(dict)
        };
        asked.into_iter().map(dict).collect()
    }
}
