//! Membership of this process in an elastic job, for Python.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pyo3::prelude::*;
use thinwire_job::elastic::{self, CoordinatorMode, JobAddress, Next, Options};
use thinwire_job::{Form, Host, Meeting, Overrides, Place, Settings, local_ranks, process};
use thinwire_sync::Channel;
use thinwire_wire::WORLD_SIZE_MAX;

use crate::arguments::settings;
use crate::background::Background;
use crate::epoch::Epoch;
use crate::error::Failure;
use crate::lifetime::{Context, Lifetime};
use crate::metrics;
use crate::wait;

/// Time between two looks whether there is a reason to tell why no epoch begins.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// One process of an elastic job.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Membership {
    inner: Arc<Mutex<elastic::Membership>>,
    context: Arc<Context>,
    /// The communication thread of the run that is under way.
    run: Mutex<Option<Channel>>,
}

impl Membership {
    fn inner(&self) -> Result<MutexGuard<'_, elastic::Membership>, Failure> {
        self.context.lifetime.check()?;
        Ok(self.inner.lock().expect("no holder panics"))
    }
}

#[pymethods]
impl Membership {
    #[new]
    #[pyo3(signature = (facts, coordinator = None, token = None, encryption = "auto",
        connections = None, link = None, timeout_s = 60.0, heartbeat_timeout_s = None, port = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn new(
        py: Python<'_>,
        facts: Vec<(String, String)>,
        coordinator: Option<String>,
        token: Option<String>,
        encryption: &str,
        connections: Option<i128>,
        link: Option<&str>,
        timeout_s: f64,
        heartbeat_timeout_s: Option<f64>,
        port: Option<i128>,
    ) -> PyResult<Membership> {
        let settings =
            settings(encryption, connections, link, timeout_s, heartbeat_timeout_s, port)?;
        wait::for_work(py, move || {
            let job_address = job_address(coordinator, token)?;
            let options = Options::new(CoordinatorMode::Saved, 1, WORLD_SIZE_MAX);
            let context = context(&job_address, &settings)?;
            let inner = elastic::Membership::join(&job_address, &settings, options, facts)?;
            let inner = Arc::new(Mutex::new(inner));
            Ok(Membership { inner, context, run: Mutex::default() })
        })
    }

    /// The id of this process, as sixteen hexadecimal digits.
    #[getter]
    fn id(&self) -> PyResult<String> {
        Ok(self.inner()?.id().to_string())
    }

    /// Waits for the next epoch; none if this process has left, or the job is over.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Epoch>> {
        self.context.lifetime.check()?;
        let inner = Arc::clone(&self.inner);
        let context = Arc::clone(&self.context);
        let found = wait::for_work(py, move || {
            let mut inner = inner.lock().expect("no holder panics");
            let Next::Run(run) = next(&mut inner)? else { return Ok(None) };
            let epoch = Epoch::new(context, run.link, run.epoch.number, run.epoch.state_sources);
            let stop = epoch.stop();
            inner.on_abort(move || stop.stop("the members of the job change"));
            Ok(Some(epoch))
        })?;
        let channel = found.as_ref().map(Epoch::channel).transpose()?;
        *self.run.lock().expect("no holder panics") = channel;
        Ok(found)
    }

    /// Returns the ranks that leave when the epoch ends, each with the rank that takes on its residuals.
    fn successors(&self, py: Python<'_>) -> PyResult<Vec<(u32, u32)>> {
        self.context.lifetime.check()?;
        let inner = Arc::clone(&self.inner);
        let pairs =
            wait::for_work(py, move || Ok(inner.lock().expect("no holder panics").successors()))?;
        Ok(pairs.into_iter().map(|(leaver, successor)| (leaver.0, successor.0)).collect())
    }

    /// Whether the epoch is to end after a step that all agree on.
    fn wants_end(&self) -> PyResult<bool> {
        Ok(self.inner()?.finishing().is_some())
    }

    /// Notes that the state was taken over, after this number of steps.
    fn synced(&self, steps: u64) -> PyResult<()> {
        self.inner()?.synced(steps);
        Ok(())
    }

    /// Notes that this number of steps was applied.
    fn applied(&self, steps: u64) -> PyResult<()> {
        self.inner()?.applied(steps);
        Ok(())
    }

    /// Notes that the run has ended and applies no step any more, until `next` returns.
    fn halted(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner()?;
        let run = self.run.lock().expect("no holder panics").take();
        let failure = run.as_ref().and_then(|channel| channel.driver().failure());
        if let Some(rank) = failure.and_then(|error| error.rank()) {
            inner.lost(rank);
        }
        inner.halted();
        // The last user of a channel says goodbye to the other ranks.
        py.detach(|| drop(run));
        Ok(())
    }

    /// Asks to leave after a step that all agree on. Returns false, and does nothing, between epochs, when
    /// nobody depends on this process. A handler of signals may call it at any time.
    fn leave(&self) -> PyResult<bool> {
        // `next` has the other lock as long as it waits.
        let is_running = self.run.lock().expect("no holder panics").is_some();
        if is_running {
            self.inner()?.leave();
        }
        Ok(is_running)
    }

    /// Reports that all steps are done: the job is over for every process.
    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        self.context.lifetime.check()?;
        let inner = Arc::clone(&self.inner);
        wait::for_work(py, move || {
            // The training is complete all the same.
            if let Err(error) = inner.lock().expect("no holder panics").complete() {
                Background::start().log(error.to_string());
            }
            Ok(())
        })
    }

    /// Sends figures for people, a JSON object; anything else is sent as none.
    fn tell(&self, figures: &str) -> PyResult<()> {
        self.inner()?.tell(serde_json::from_str(figures).unwrap_or_default());
        Ok(())
    }
}

impl Drop for Membership {
    /// A fork has none of the threads that a goodbye needs: there everything is left alone.
    fn drop(&mut self) {
        if self.context.lifetime.is_forked() {
            std::mem::forget((Arc::clone(&self.context), Arc::clone(&self.inner)));
            std::mem::forget(self.run.lock().map(|mut run| run.take()));
        }
    }
}

/// Waits for what comes next, and says why nothing comes unless a launcher does.
fn next(membership: &mut elastic::Membership) -> Result<Next, Failure> {
    let is_launched = process(elastic::NUMBER).is_some();
    let thread = Background::start();
    loop {
        if let Some(next) = membership.next_within(LOOK_EVERY)? {
            return Ok(next);
        }
        if let Some(reason) = membership.obstacle().filter(|_| !is_launched) {
            thread.log(format!("waiting: {reason}"));
        }
    }
}

/// The job address that the environment names, or a fresh one at the coordinator that is given.
pub(crate) fn job_address(
    coordinator: Option<String>,
    token: Option<String>,
) -> Result<JobAddress, Failure> {
    let (host, form) = (Host::Launcher, Form::Arguments);
    let given = Overrides { rank: None, world: None, coordinator, host, token, form };
    if let Some(job_address) = elastic::job_address(&given, &process)? {
        return Ok(job_address);
    }
    let Some(coordinator) = given.coordinator.clone() else {
        return Err(Failure::invalid(
            "this process belongs to no elastic job (hint: thinwire run --ranks MIN:MAX -- python \
             train.py, coordinator=\"host:port\", or THINWIRE_MEMBER=new with THINWIRE_COORDINATOR)",
        ));
    };
    let token = thinwire_job::token(&given, &coordinator, &process)?;
    Ok(JobAddress::new(coordinator, token)?)
}

/// The context of all epochs of a process.
fn context(job_address: &JobAddress, settings: &Settings) -> Result<Arc<Context>, Failure> {
    let alone = Place::alone(Form::Arguments);
    let meeting = Arc::new(Meeting::new(&alone, "", settings)?);
    let local_world = local_ranks(&process);
    let place = Place { coordinator: job_address.coordinator.clone(), local_world, ..alone };
    metrics::export(&place)?;
    let timeout = settings.timeout;
    Ok(Arc::new(Context { place, meeting, timeout, lifetime: Lifetime::new() }))
}
