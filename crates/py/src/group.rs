//! A group of ranks for Python: collectives on addresses.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Weak};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use thinwire_collective::Driver;
use thinwire_job::{Form, Host, Meeting, Overrides, Place, find, process, token};
use thinwire_link::Link;
use thinwire_wire::World;

use crate::arguments;
use crate::arguments::settings;
use crate::background::{self, Background};
use crate::calls::{self, Call, Sum};
use crate::error::Failure;
use crate::lifetime::{Context, Held, Lifetime};
use crate::memory::Buffer;
use crate::metrics::{self, Sent};
use crate::wait;

type Done = Option<Py<PyAny>>;

/// Ranks that work together.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Group {
    held: Held<Driver<Buffer>>,
    world: World,
    sent: Arc<Sent>,
}

impl Group {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.held.context
    }

    fn new(context: Arc<Context>, link: Link) -> Group {
        let group = thinwire_collective::Group::new(link).with_timeout(context.timeout);
        let driver = Driver::start(group);
        let (world, stop) = (driver.world(), driver.stop());
        Group { held: Held::new(context, stop, driver), world, sent: Arc::default() }
    }

    /// Makes further connections between the ranks of this group, for `wait::for_work`. The wait for
    /// the other ranks ends when this group ends, with its reason, or when one of them has left the
    /// group. Ranks make a call first, so that a rank which makes another call is reported at once.
    pub(crate) fn connect(
        &self,
        name: String,
    ) -> Result<impl FnOnce() -> Result<Link, Failure> + Send + use<>, Failure> {
        self.held.context.lifetime.check()?;
        let (meeting, watch) = (Arc::clone(&self.held.context.meeting), self.with(Driver::watch)?);
        let (reply, answer) = channel();
        let reply = Box::new(move |result| drop(reply.send(result)));
        self.with(|driver| calls::connecting(self.world, &name).make(driver, reply))?;
        Ok(move || {
            answer.recv().map_err(|_| wait::gone())??;
            Ok(meeting.link_watched(&name, watch)?)
        })
    }

    /// Makes a call, and waits for it unless there is a `done` to call.
    fn issue(&self, py: Python<'_>, done: Done, call: Call) -> PyResult<()> {
        self.held.context.lifetime.check()?;
        let call = call.counted(&self.sent);
        if let Some(done) = done {
            let background = self.held.background.clone();
            let reply = Box::new(move |result: Result<(), Failure>| {
                background.answer(done, move || result.map(|()| None));
            });
            return Ok(self.with(|driver| call.make(driver, reply))?);
        }
        let (reply, answer) = channel();
        // Nobody listens any more after a signal.
        let reply = Box::new(move |result| drop(reply.send(result)));
        self.with(|driver| call.make(driver, reply))?;
        wait::for_answer(py, answer, &self.held.cell.stop)
    }

    fn with<T>(&self, use_it: impl FnOnce(&Driver<Buffer>) -> T) -> Result<T, Failure> {
        self.held.cell.with("group", |driver| use_it(driver))
    }
}

/// Says goodbye for several groups at once, and for everything made from them.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>, groups: Vec<PyRef<'_, Group>>) {
    let all = Lifetime::new();
    let contexts = groups.iter().map(|group| Arc::clone(group.context()));
    let contexts: Vec<_> = contexts.filter(|context| !context.lifetime.is_forked()).collect();
    contexts.iter().for_each(|context| all.add(context));
    py.detach(|| all.close());
}

#[pymethods]
impl Group {
    #[staticmethod]
    #[pyo3(signature = (rank = None, world = None, coordinator = None, token = None,
        encryption = "auto", connections = None, link = None, timeout_s = 60.0, launched = false,
        heartbeat_timeout_s = None, watch = None, port = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn join(
        py: Python<'_>,
        rank: Option<i128>,
        world: Option<i128>,
        coordinator: Option<String>,
        token: Option<String>,
        encryption: &str,
        connections: Option<i128>,
        link: Option<&str>,
        timeout_s: f64,
        launched: bool,
        heartbeat_timeout_s: Option<f64>,
        watch: Option<Py<PyAny>>,
        port: Option<i128>,
    ) -> PyResult<Group> {
        let rank = rank.map(|rank| arguments::number("rank", rank)).transpose()?;
        let world = world.map(|world| arguments::number("world", world)).transpose()?;
        let host = if launched { Host::Launcher } else { Host::RankZero };
        let given = Overrides { rank, world, coordinator, host, token, form: Form::Arguments };
        let settings =
            settings(encryption, connections, link, timeout_s, heartbeat_timeout_s, port)?;
        background::log_warnings();
        let watch = || watch.as_ref().map_or(Ok(()), |watch| watch.call0(py).map(drop));
        wait::for_work_beside(py, watch, move || {
            let place = find(&given, &process)?.unwrap_or_else(|| Place::alone(Form::Arguments));
            let secret = match place.world {
                1 => String::new(),
                _ => self::token(&given, &place.coordinator, &process)?,
            };
            if let Some(warning) = thinwire_job::warning(&place, &secret) {
                Background::start().log(warning);
            }
            Joined::check(&place)?;
            let meeting = Arc::new(Meeting::new(&place, &secret, &settings)?);
            Joined::add(&place, &meeting);
            let link = meeting.link()?;
            metrics::export(&place)?;
            let timeout = settings.timeout;
            let context = Context { place, meeting, timeout, lifetime: Lifetime::new() };
            Ok(Group::new(Arc::new(context), link))
        })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.held.context.place.rank
    }

    #[getter]
    fn world(&self) -> u32 {
        self.held.context.place.world
    }

    #[getter]
    fn local_rank(&self) -> u32 {
        self.held.context.place.local_rank
    }

    #[getter]
    fn local_world(&self) -> u32 {
        self.held.context.place.local_world
    }

    /// Returns the store in which the ranks have met.
    fn store(&self) -> &str {
        &self.held.context.place.coordinator
    }

    fn split(&self, py: Python<'_>, name: &str) -> PyResult<Group> {
        let context = Arc::clone(&self.held.context);
        let connect = self.connect(format!("split-{name}"))?;
        wait::for_work(py, move || {
            let link = connect()?;
            Ok(Group::new(context.child(), link))
        })
    }

    #[pyo3(signature = (address, elements, dtype, codec = "none", average = false, done = None, call = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn all_reduce(
        &self,
        py: Python<'_>,
        address: usize,
        elements: usize,
        dtype: &str,
        codec: &str,
        average: bool,
        done: Done,
        call: Option<String>,
    ) -> PyResult<()> {
        let sum = Sum { dtype, codec, average, call };
        let call = calls::all_reduce(self.world, address, elements, sum)?;
        self.issue(py, done, call)
    }

    #[pyo3(signature = (source, target, elements, dtype, codec = "none", average = false, done = None, call = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        source: usize,
        target: usize,
        elements: usize,
        dtype: &str,
        codec: &str,
        average: bool,
        done: Done,
        call: Option<String>,
    ) -> PyResult<()> {
        let sum = Sum { dtype, codec, average, call };
        let call = calls::reduce_scatter(self.world, (source, target), elements, sum)?;
        self.issue(py, done, call)
    }

    #[pyo3(signature = (source, target, bytes, done = None, call = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn all_gather(
        &self,
        py: Python<'_>,
        source: usize,
        target: usize,
        bytes: usize,
        done: Done,
        call: Option<String>,
    ) -> PyResult<()> {
        let call = calls::all_gather(self.world, (source, target), bytes, call)?;
        self.issue(py, done, call)
    }

    #[pyo3(signature = (source, source_bytes, target, target_bytes, done = None, call = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn all_to_all(
        &self,
        py: Python<'_>,
        source: usize,
        source_bytes: Vec<usize>,
        target: usize,
        target_bytes: Vec<usize>,
        done: Done,
        call: Option<String>,
    ) -> PyResult<()> {
        let (sends, recvs) = ((source, source_bytes), (target, target_bytes));
        self.issue(py, done, calls::all_to_all(self.world, sends, recvs, call)?)
    }

    #[pyo3(signature = (address, bytes, root = 0, done = None, call = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn broadcast(
        &self,
        py: Python<'_>,
        address: usize,
        bytes: usize,
        root: i128,
        done: Done,
        call: Option<String>,
    ) -> PyResult<()> {
        let root = arguments::rank("root", root, self.world)?;
        self.issue(py, done, calls::broadcast(address, bytes, root, call)?)
    }

    #[pyo3(signature = (address, bytes, to, tag = 0, done = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn send(
        &self,
        py: Python<'_>,
        address: usize,
        bytes: usize,
        to: i128,
        tag: i128,
        done: Done,
    ) -> PyResult<()> {
        let (to, tag) = (arguments::rank("to", to, self.world)?, arguments::number("tag", tag)?);
        self.issue(py, done, calls::send(address, bytes, to, tag)?)
    }

    #[pyo3(signature = (address, bytes, source, tag = 0, done = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn recv(
        &self,
        py: Python<'_>,
        address: usize,
        bytes: usize,
        source: i128,
        tag: i128,
        done: Done,
    ) -> PyResult<()> {
        let (from, tag) =
            (arguments::rank("source", source, self.world)?, arguments::number("tag", tag)?);
        self.issue(py, done, calls::recv(address, bytes, from, tag)?)
    }

    #[pyo3(signature = (done = None))]
    fn barrier(&self, py: Python<'_>, done: Done) -> PyResult<()> {
        self.issue(py, done, calls::barrier(self.world))
    }

    /// Returns a rank that has begun an all_gather with this description, if this rank has not
    /// begun that call.
    fn gatherer(&self, py: Python<'_>, call: String) -> PyResult<Option<u32>> {
        self.held.context.lifetime.check()?;
        let look =
            move |group: &mut thinwire_collective::Group| Ok(group.caller("all_gather", &call));
        let found = py.detach(|| self.with(|driver| driver.call(look)))?;
        Ok(found.map_err(Failure::from)?.map(|rank| rank.0))
    }

    /// Fails if one of these ranks has left this group, or ended it.
    fn expect(&self, ranks: Vec<i128>) -> PyResult<()> {
        let rank = |rank| arguments::rank("rank", rank, self.world);
        let ranks = ranks.into_iter().map(rank).collect::<Result<Vec<_>, _>>()?;
        let Err(error) = self.with(Driver::watch)?.look(&ranks) else { return Ok(()) };
        let reporter = match error.kind {
            thinwire_link::Kind::Poisoned { by } => Some(by),
            _ => None,
        };
        // The ranks that are left may form groups without the one that has ended this group.
        match error.rank.or(reporter) {
            Some(rank) if ranks.contains(&rank) => {
                Err(Failure::from(thinwire_job::Error::from(error)).into())
            }
            _ => Ok(()),
        }
    }

    /// Ends this group and everything made from it; every peer fails with `reason`.
    fn abort(&self, reason: &str) -> PyResult<()> {
        self.held.context.lifetime.check()?;
        self.held.context.lifetime.abort(reason);
        Ok(())
    }

    /// Says goodbye for this group and everything made from it.
    fn close(&self, py: Python<'_>) {
        if !self.held.context.lifetime.is_forked() {
            py.detach(|| self.held.context.lifetime.close());
        }
    }

    /// Returns the bytes and frames moved by the collectives of this group.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.held.context.lifetime.check()?;
        let called = py.detach(|| self.with(|driver| driver.call(|group| Ok(group.counters()))));
        let counters = called?.map_err(Failure::from)?;
        let dict = PyDict::new(py);
        dict.set_item("sent_bytes", counters.sent_bytes)?;
        dict.set_item("received_bytes", counters.received_bytes)?;
        dict.set_item("sent_frames", counters.sent_frames)?;
        dict.set_item("received_frames", counters.received_frames)?;
        Ok(dict)
    }
}

/// Meeting that this process has joined, recorded to refuse a second one at the same place.
///
/// A rank joins once. A split or a synchroniser of a group keeps the group's meeting, and with it the
/// port of rank 0, even after the group itself is dropped.
struct Joined {
    place: Place,
    meeting: Weak<Meeting>,
    process: u32,
}

// Process-global, as a rank is.
static JOINED: Mutex<Vec<Joined>> = Mutex::new(Vec::new());

impl Joined {
    /// Refuses a place that this process already has through a group, a split or a synchroniser.
    fn check(place: &Place) -> Result<(), Failure> {
        let mut joined = JOINED.lock().expect("no holder panics");
        joined.retain(|joined| joined.meeting.strong_count() > 0);
        let same = |joined: &&Joined| {
            let (mine, old) = (place, &joined.place);
            // A fork has no part in the meetings of its parent.
            joined.process == std::process::id()
                && (mine.rank, mine.world, &mine.coordinator)
                    == (old.rank, old.world, &old.coordinator)
        };
        let Some(Joined { place: Place { rank, world, coordinator, .. }, .. }) =
            joined.iter().find(same).filter(|_| place.world > 1)
        else {
            return Ok(());
        };
        Err(Failure::Invalid(format!(
            "this process has joined already, as rank {rank} of {world} at {coordinator}, and \
             that group still exists, or a split, a hook or a synchronizer made of it (hint: keep the group, \
         and use it or its split(name): a rank joins once)"
        )))
    }

    /// Records a meeting.
    fn add(place: &Place, meeting: &Arc<Meeting>) {
        let (place, meeting, process) =
            (place.clone(), Arc::downgrade(meeting), std::process::id());
        JOINED.lock().expect("no holder panics").push(Joined { place, meeting, process });
    }
}
