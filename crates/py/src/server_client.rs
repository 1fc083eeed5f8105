//! Client of a job's parameter server for Python: this process as a worker that pushes and pulls.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pyo3::prelude::*;
use thinwire_cli::metrics::Exchanged;
use thinwire_job::elastic::{CoordinatorMode, Epoch, Options, Presence};
use thinwire_job::{Form, Place};
use thinwire_server::{Caching, Client, Definition, Gradient, Origin};
use thinwire_sync::{ExternalBuffer, Live, Time};
use thinwire_wire::{DType, WORLD_SIZE_MAX, World};

use crate::arguments::settings;
use crate::error::Failure;
use crate::lifetime::Lifetime;
use crate::membership;
use crate::memory::Memory;
use crate::metrics::{self, Meter};
use crate::wait;

/// A worker whose tables the servers of its job have.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct ServerClient {
    worker: Arc<Worker>,
    lifetime: Lifetime,
    meter: Mutex<Meter>,
}

struct Worker {
    client: Mutex<Client>,
    presence: Presence,
}

/// Rows of a table, and their gradients.
struct Pushed {
    table: u32,
    rows: Memory,
    values: Memory,
}

impl Pushed {
    fn gradient(&self) -> Gradient<'_> {
        let values = ExternalBuffer::values(&self.values);
        Gradient { table: self.table, rows: self.rows.numbers(), values }
    }
}

impl Worker {
    fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().expect("no holder panics")
    }

    fn epoch(&self) -> Result<(Epoch, World), Failure> {
        let epoch = self.presence.epoch().filter(|_| !self.presence.is_over());
        let found = epoch.and_then(|epoch| {
            let world = epoch.world(self.presence.id())?;
            Some((epoch, world))
        });
        found.ok_or_else(|| {
            Failure::Peer(self.presence.refusal().map_or_else(
                || "this worker has left the job, or the job is over".to_owned(),
                |reason| format!("the coordinator refuses this worker: {reason}"),
            ))
        })
    }
}

impl ServerClient {
    fn worker(&self) -> Result<Arc<Worker>, Failure> {
        self.lifetime.check()?;
        Ok(Arc::clone(&self.worker))
    }
}

#[pymethods]
impl ServerClient {
    #[new]
    #[pyo3(signature = (definition, facts = Vec::new(), coordinator = None, token = None,
        timeout_s = 60.0, restore = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn new(
        py: Python<'_>,
        definition: &str,
        facts: Vec<(String, String)>,
        coordinator: Option<String>,
        token: Option<String>,
        timeout_s: f64,
        restore: Option<PathBuf>,
    ) -> PyResult<ServerClient> {
        let definition: Definition = serde_json::from_str(definition)
            .map_err(|error| Failure::invalid(format!("definition of tables: {error}")))?;
        let settings = settings("auto", None, None, timeout_s, None, None)?;
        wait::for_work(py, move || {
            let definition = match restore {
                Some(path) => Origin::open(&path.into())?.begin(definition)?,
                None => definition,
            };
            let job_address = membership::job_address(coordinator, token)?;
            // Who is refused for its tables was never a worker that others wait for.
            let client = Mutex::new(Client::open(&job_address, &definition, settings.timeout)?);
            let options = Options::new(CoordinatorMode::Saved, 1, WORLD_SIZE_MAX);
            let presence = Presence::join(&job_address, &settings, options, facts)?;
            wait_for_epoch(&presence, settings.timeout)?;
            let worker = Arc::new(Worker { client, presence });
            metrics::export(&Place::alone(Form::Arguments))?;
            let meter = Mutex::new(Meter::start());
            Ok(ServerClient { worker, lifetime: Lifetime::new(), meter })
        })
    }

    /// The id of this process, as sixteen hexadecimal digits.
    #[getter]
    fn id(&self) -> String {
        self.worker.presence.id().to_string()
    }

    /// Number of the epoch of workers.
    #[getter]
    fn epoch(&self) -> PyResult<u32> {
        Ok(self.worker()?.epoch()?.0.number)
    }

    /// This worker's index in the epoch.
    #[getter]
    fn rank(&self) -> PyResult<u32> {
        Ok(self.worker()?.epoch()?.1.rank().0)
    }

    /// Number of workers in the epoch.
    #[getter]
    fn world(&self) -> PyResult<usize> {
        Ok(self.worker()?.epoch()?.1.size())
    }

    /// Number of workers that push, this one included: all of the epoch before the first step of the job.
    #[getter]
    fn pushing(&self) -> PyResult<usize> {
        let pushing = self.worker()?.client().pushing();
        pushing.map_or_else(|| self.world(), |count| Ok(count as usize))
    }

    /// Number of pushes so far.
    #[getter]
    fn pushes(&self) -> PyResult<u64> {
        Ok(self.worker()?.client().pushes())
    }

    /// Begins a push of gradients, each as table, address and number of rows, and address and number of
    /// values, when the one before will survive.
    fn begin_push(
        &self,
        py: Python<'_>,
        gradients: Vec<(u32, usize, usize, usize, usize)>,
    ) -> PyResult<()> {
        let pushed = |(table, rows, count, values, elements)| {
            let rows = Memory::rows(rows, count)?;
            Ok(Pushed { table, rows, values: Memory::of(values, elements, DType::F32)? })
        };
        let pushed = gradients.into_iter().map(pushed).collect::<Result<Vec<Pushed>, Failure>>()?;
        self.finish_push(py)?;
        let worker = self.worker()?;
        let begin = || {
            let gradients: Vec<Gradient<'_>> = pushed.iter().map(Pushed::gradient).collect();
            worker.client().begin_push(&gradients)
        };
        py.detach(begin).map_err(Failure::from)?;
        let pushes = worker.client().pushes();
        self.meter.lock().expect("no holder panics").step(pushes, Exchanged::default());
        Ok(())
    }

    /// Waits until the push that was begun will survive.
    fn finish_push(&self, py: Python<'_>) -> PyResult<()> {
        let worker = self.worker()?;
        wait::for_work(py, move || Ok(worker.client().finish_push()?))
    }

    /// Reads rows, each group as table, address and number of rows, into `elements` f32 at `address`.
    fn pull(
        &self,
        py: Python<'_>,
        groups: Vec<(u32, usize, usize)>,
        address: usize,
        elements: usize,
    ) -> PyResult<()> {
        let mut out = Memory::of(address, elements, DType::F32)?;
        let rows = |(table, rows, count)| Ok((table, Memory::rows(rows, count)?));
        let groups =
            groups.into_iter().map(rows).collect::<Result<Vec<(u32, Memory)>, Failure>>()?;
        let worker = self.worker()?;
        let begin = || {
            let groups: Vec<(u32, &[u64])> =
                groups.iter().map(|(table, rows)| (*table, rows.numbers())).collect();
            worker.client().begin_pull(&groups)
        };
        let pulling = py.detach(begin).map_err(Failure::from)?;
        let reader = Arc::clone(&worker);
        let values = wait::for_work(py, move || {
            let mut values = vec![0.0; elements];
            reader.client().finish_pull(pulling, &mut values)?;
            Ok(values)
        })?;
        py.detach(|| out.write(DType::F32, &values));
        Ok(())
    }

    /// Keeps rows of a table in at most so many bytes, and gives them until this worker has made more than
    /// `staleness` pushes.
    fn cache(&self, table: u32, bytes_max: u64, staleness: u64) -> PyResult<()> {
        let caching = Caching { bytes_max, staleness };
        Ok(self.worker()?.client().cache(table, caching).map_err(Failure::from)?)
    }

    /// Counts of a table's cache as JSON; none without one.
    fn hits(&self, table: u32) -> PyResult<Option<String>> {
        let hits = self.worker()?.client().hits(table);
        Ok(hits.map(|hits| serde_json::to_string(&hits).expect("numbers are JSON")))
    }

    /// Takes a snapshot of the job, with all pushes of this worker, and returns the name of its folder.
    fn snapshot(&self, py: Python<'_>) -> PyResult<String> {
        let worker = self.worker()?;
        wait::for_work(py, move || Ok(worker.client().snapshot()?))
    }

    /// Reports the figures that `thinwire top` shows for this worker after this number of steps of `step_s` seconds
    /// each.
    fn tell(&self, steps: u64, step_s: f64) -> PyResult<()> {
        let worker = self.worker()?;
        let cache_hits = worker.client().all_hits().map(|hits| hits.rate());
        let time = Time { step_s, compute_s: step_s, ..Time::default() };
        let live = Live { step: Some(steps), cache_hits, time: Some(time), ..Live::default() };
        worker.presence.tell(live.object());
        Ok(())
    }

    /// Leaves: returns when the others continue without this worker.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let worker = self.worker()?;
        wait::for_work(py, move || {
            worker.presence.leave();
            Ok(())
        })
    }
}

impl Drop for ServerClient {
    /// A fork has none of the threads that an end needs: there everything is left alone.
    fn drop(&mut self) {
        if self.lifetime.is_forked() {
            std::mem::forget(Arc::clone(&self.worker));
        }
    }
}

/// Waits for the first epoch with this process.
fn wait_for_epoch(presence: &Presence, timeout: Duration) -> Result<(), Failure> {
    if presence.wait(0, timeout).is_some() {
        return Ok(());
    }
    if let Some(reason) = presence.refusal() {
        return Err(Failure::invalid(format!("the coordinator refuses this worker: {reason}")));
    }
    Err(Failure::Peer(match presence.is_over() {
        true => "the job is over".to_owned(),
        false => {
            let seconds = timeout.as_secs_f64();
            format!("no epoch of the job began within {seconds:.0} s")
        }
    }))
}
