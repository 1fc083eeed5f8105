//! Steps of a rank of an elastic job, for Python: the state machine of crate `job`, which the native trainer
//! drives as well.

use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use thinwire_job::elastic::{Due, EpochStart, Residuals, StateFrom, Steps, Wish};

use crate::epoch::Epoch;
use crate::error::Failure;

/// Steps of one rank, through all epochs. Any thread may record a loss.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct ElasticSteps(Mutex<Steps>);

/// Decision at the beginning of an epoch.
#[pyclass(frozen, get_all, module = "thinwire._core")]
pub(crate) struct EpochEntry {
    /// The ranks below this number hand their state over to all others; `None` if every rank has the
    /// state.
    hand_over: Option<u32>,
    /// Whether this rank takes over the state of the others.
    takes_over: bool,
    /// "kept", "of lost step" or "dropped".
    residuals: &'static str,
}

impl ElasticSteps {
    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().expect("no holder panics")
    }
}

#[pymethods]
impl ElasticSteps {
    #[new]
    fn new() -> ElasticSteps {
        ElasticSteps(Mutex::new(Steps::from_rank_0()))
    }

    #[getter]
    fn done(&self) -> u64 {
        self.steps().done()
    }

    #[getter]
    fn is_under_way(&self) -> bool {
        self.steps().is_under_way()
    }

    #[getter]
    fn is_void(&self) -> bool {
        self.steps().is_void()
    }

    /// Returns what follows: "step", "change" or "repeat".
    #[getter]
    fn due(&self) -> &'static str {
        match self.steps().due(None) {
            Due::Step => "step",
            Due::Repeat => "repeat",
            // Without a total and without checkpoints, a job ends when its program says so.
            Due::Change | Due::Stop | Due::Finish => "change",
        }
    }

    /// Decides how this rank begins an epoch; `done` is the number of rank 0's steps.
    fn begin(&self, epoch: &Epoch, done: u64) -> PyResult<EpochEntry> {
        let (world, state_sources) = (epoch.place(), epoch.state_sources());
        let entry = self.steps().begin(EpochStart { world, state_sources, done });
        let entry = entry.map_err(Failure::from)?;
        Ok(EpochEntry {
            hand_over: entry.hand_over,
            takes_over: entry.state == StateFrom::Others,
            residuals: match entry.residuals {
                Residuals::Kept => "kept",
                Residuals::OfLostStep => "of lost step",
                Residuals::Dropped => "dropped",
            },
        })
    }

    fn synced(&self, done: u64) {
        self.steps().synced(done);
    }

    fn begin_step(&self) {
        self.steps().begin_step();
    }

    /// Records whether any rank wants the epoch to end.
    fn agreed(&self, ends: bool) {
        self.steps().agreed(if ends { Wish::Change } else { Wish::Continue });
    }

    fn applied(&self) {
        self.steps().applied();
    }

    fn lost(&self) {
        self.steps().lost();
    }
}
