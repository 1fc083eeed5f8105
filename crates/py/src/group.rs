//! A group of ranks for Python: collectives on addresses.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use thinwire_codec::{Choice, Codec};
use thinwire_collective::{Driver, Next, Options, Run, start};
use thinwire_job::{Form, Given, Host, Meeting, Place, Settings, find, process, token};
use thinwire_link::Bandwidth;
use thinwire_link::tcp::Encryption;
use thinwire_wire::{DType, World};

use crate::background::Background;
use crate::callback::Callback;
use crate::circle::{Cell, Circle, Member};
use crate::error::Failure;
use crate::memory::{Buffer, Memory};
use crate::wait;
use crate::whole;
use crate::words::{Words, places};

type Reply = Box<dyn FnOnce(Result<(), Failure>) + Send>;
type Done = Option<Py<PyAny>>;

/// What a group and all that is made from it share.
pub(crate) struct Home {
    pub(crate) place: Place,
    pub(crate) meeting: Arc<Meeting>,
    pub(crate) timeout: Duration,
    pub(crate) circle: Circle,
}

impl Home {
    /// That of a split, which ends with its parent or alone.
    fn child(&self) -> Arc<Home> {
        let (place, meeting) = (self.place.clone(), Arc::clone(&self.meeting));
        let home = Home { place, meeting, timeout: self.timeout, circle: Circle::new() };
        let home = Arc::new(home);
        self.circle.add(&home);
        home
    }
}

impl Member for Home {
    fn abort(&self, reason: &str) {
        self.circle.abort(reason);
    }

    fn close(&self) {
        self.circle.close();
    }
}

/// Ranks that work together.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Group {
    home: Arc<Home>,
    world: World,
    cell: Arc<Cell<Driver<Buffer>>>,
    background: Background,
}

impl Group {
    pub(crate) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    fn new(home: Arc<Home>, link: Box<dyn thinwire_link::Link>) -> Group {
        let group = thinwire_collective::Group::new(link).with_timeout(home.timeout);
        let driver = Driver::start(group);
        let (world, stop) = (driver.world(), driver.stop());
        let cell = Cell::new(&home.circle, stop, driver);
        Group { home, world, cell, background: Background::start() }
    }

    /// Starts something on the communication thread; waits for it unless there is a `done` to call.
    fn issue(
        &self,
        py: Python<'_>,
        done: Done,
        work: impl FnOnce(&Driver<Buffer>, Reply),
    ) -> PyResult<()> {
        self.home.circle.check()?;
        if let Some(done) = done {
            let callback = Callback::new(done, &self.background);
            let reply = Box::new(move |result| callback.call(result));
            return Ok(self.with(|driver| work(driver, reply))?);
        }
        let (reply, answer) = channel();
        // Nobody listens any more after a signal.
        let reply = Box::new(move |result| drop(reply.send(result)));
        self.with(|driver| work(driver, reply))?;
        wait::for_answer(py, answer, &self.cell.stop)
    }

    fn with<T>(&self, use_it: impl FnOnce(&Driver<Buffer>) -> T) -> Result<T, Failure> {
        self.cell.with("group", |driver| use_it(driver))
    }
}

impl Drop for Group {
    /// A fork has none of the threads that a goodbye needs: there everything is left alone.
    fn drop(&mut self) {
        if self.home.circle.is_forked() {
            std::mem::forget((Arc::clone(&self.home), Arc::clone(&self.cell)));
        }
    }
}

#[pymethods]
impl Group {
    #[staticmethod]
    #[pyo3(signature = (rank = None, world = None, coordinator = None, token = None,
        encryption = "auto", connections = 1, link = None, timeout_s = 60.0, launched = false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn join(
        py: Python<'_>,
        rank: Option<i128>,
        world: Option<i128>,
        coordinator: Option<String>,
        token: Option<String>,
        encryption: &str,
        connections: i128,
        link: Option<&str>,
        timeout_s: f64,
        launched: bool,
    ) -> PyResult<Group> {
        let rank = rank.map(|rank| whole::to("rank", rank)).transpose()?;
        let world = world.map(|world| whole::to("world", world)).transpose()?;
        let connections = whole::to("connections", connections)?;
        let host = if launched { Host::Launcher } else { Host::RankZero };
        let given = Given { rank, world, coordinator, host, token, form: Form::Arguments };
        let settings = settings(encryption, connections, link, timeout_s)?;
        wait::for_work(py, move || {
            let place = find(&given, &process)?.unwrap_or_else(|| Place::alone(Form::Arguments));
            let secret = match place.world {
                1 => String::new(),
                _ => self::token(&given, &place.coordinator, &process)?,
            };
            let meeting = Meeting::new(&place, &secret, &settings)?;
            let link = meeting.link()?;
            let timeout = settings.timeout;
            let meeting = Arc::new(meeting);
            let home = Home { place, meeting, timeout, circle: Circle::new() };
            Ok(Group::new(Arc::new(home), link))
        })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.home.place.rank
    }

    #[getter]
    fn world(&self) -> u32 {
        self.home.place.world
    }

    #[getter]
    fn local_rank(&self) -> u32 {
        self.home.place.local_rank
    }

    #[getter]
    fn local_world(&self) -> u32 {
        self.home.place.local_world
    }

    /// Where the ranks have met.
    fn store(&self) -> &str {
        &self.home.place.coordinator
    }

    fn split(&self, py: Python<'_>, name: &str) -> PyResult<Group> {
        self.home.circle.check()?;
        let (home, name) = (Arc::clone(&self.home), format!("split-{name}"));
        wait::for_work(py, move || {
            let link = home.meeting.link_named(&name)?;
            Ok(Group::new(home.child(), link))
        })
    }

    #[pyo3(signature = (address, elements, dtype, codec = "none", average = false, done = None))]
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
    ) -> PyResult<()> {
        let dtype = parse_dtype(dtype)?;
        let memory = Memory::of(address, elements, dtype)?;
        let options = Options { codec: bytes_codec(codec, dtype)?, ..Options::default() };
        let scale = self.scale(average);
        self.issue(py, done, |driver, reply| {
            let begin = move |group: &mut _| {
                start::all_reduce(group, scaled(memory, dtype, scale), &options)
            };
            launch(driver, reply, begin, move |buffer| take_back(memory, dtype, &buffer));
        })
    }

    #[pyo3(signature = (source, target, elements, dtype, codec = "none", average = false, done = None))]
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
    ) -> PyResult<()> {
        let dtype = parse_dtype(dtype)?;
        let source = Memory::of(source, elements.saturating_mul(self.world.size()), dtype)?;
        let mut target = Memory::of(target, elements, dtype)?;
        let codec = bytes_codec(codec, dtype)?;
        let scale = self.scale(average);
        let mine = self.world.rank().index() * elements;
        self.issue(py, done, |driver, reply| {
            let begin = move |group: &mut _| {
                start::reduce_scatter(group, scaled(source, dtype, scale), &codec)
            };
            let end = move |buffer: Buffer| {
                target.write(dtype, &buffer.as_ref()[mine..mine + elements]);
            };
            launch(driver, reply, begin, end);
        })
    }

    #[pyo3(signature = (source, target, bytes, done = None))]
    fn all_gather(
        &self,
        py: Python<'_>,
        source: usize,
        target: usize,
        bytes: usize,
        done: Done,
    ) -> PyResult<()> {
        let size = self.world.size();
        let source = Memory::new(source, bytes)?;
        let target = Memory::new(target, bytes.saturating_mul(size))?;
        let mine = self.world.rank().index();
        let direct = target.is_words() && bytes.is_multiple_of(4);
        self.issue(py, done, |driver, reply| {
            let begin = move |group: &mut _| {
                if direct {
                    target.part(mine * bytes, bytes).copy_from(source);
                    return Ok(start::all_gather(group, Buffer::Borrowed(target)));
                }
                let mut words = Words::new(&vec![bytes; size]);
                words.put(mine, source);
                Ok(start::all_gather(group, words.into_buffer()))
            };
            let end = move |buffer: Buffer| {
                if let Buffer::Owned(values) = &buffer {
                    let words = Words::of(values, &vec![bytes; size]);
                    (0..size).for_each(|rank| words.get(rank, target.part(rank * bytes, bytes)));
                }
            };
            launch(driver, reply, begin, end);
        })
    }

    #[pyo3(signature = (source, source_bytes, target, target_bytes, done = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn all_to_all(
        &self,
        py: Python<'_>,
        source: usize,
        source_bytes: Vec<usize>,
        target: usize,
        target_bytes: Vec<usize>,
        done: Done,
    ) -> PyResult<()> {
        let size = self.world.size();
        for lengths in [&source_bytes, &target_bytes] {
            if lengths.len() != size {
                let found = lengths.len();
                return Err(Failure::invalid(format!(
                    "all_to_all with {found} lengths, expected one for each of {size} ranks"
                ))
                .into());
            }
        }
        let mine = self.world.rank().index();
        if source_bytes[mine] != target_bytes[mine] {
            let (sent, received) = (source_bytes[mine], target_bytes[mine]);
            return Err(Failure::invalid(format!(
                "all_to_all sends {sent} bytes to this rank itself, and receives {received} from it"
            ))
            .into());
        }
        let total = |lengths: &[usize]| lengths.iter().copied().fold(0, usize::saturating_add);
        let source = Memory::new(source, total(&source_bytes))?;
        let target = Memory::new(target, total(&target_bytes))?;
        self.issue(py, done, |driver, reply| {
            let lengths: Vec<usize> = source_bytes.iter().chain(&target_bytes).copied().collect();
            let (sends, of_begin) = (places(&source_bytes), lengths.clone());
            let begin = move |group: &mut _| {
                let mut words = Words::new(&of_begin);
                for (rank, (start, bytes)) in sends.iter().enumerate() {
                    words.put(rank, source.part(*start, *bytes));
                }
                let counts: Vec<usize> = of_begin.iter().map(|bytes| bytes.div_ceil(4)).collect();
                let parts = counts.split_at(counts.len() / 2);
                Ok(start::all_to_all(group, words.into_buffer(), parts))
            };
            let (own, recvs) = (places(&source_bytes)[mine], places(&target_bytes));
            let end = move |buffer: Buffer| {
                let words = Words::of(buffer.as_ref(), &lengths);
                for (rank, (start, bytes)) in recvs.iter().enumerate() {
                    let mut part = target.part(*start, *bytes);
                    match rank == mine {
                        true => part.copy_from(source.part(own.0, own.1)),
                        false => words.get(recvs.len() + rank, part),
                    }
                }
            };
            launch(driver, reply, begin, end);
        })
    }

    #[pyo3(signature = (address, bytes, root = 0, done = None))]
    fn broadcast(
        &self,
        py: Python<'_>,
        address: usize,
        bytes: usize,
        root: i128,
        done: Done,
    ) -> PyResult<()> {
        let memory = Memory::new(address, bytes)?;
        let root = whole::rank("root", root, self.world)?;
        self.issue(py, done, |driver, reply| {
            let begin = move |group: &mut _| start::broadcast(group, whole(memory), root);
            launch(driver, reply, begin, move |buffer| give_back(memory, &buffer));
        })
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
        let memory = Memory::new(address, bytes)?;
        let peer = (whole::rank("to", to, self.world)?, whole::to("tag", tag)?);
        self.issue(py, done, |driver, reply| {
            let begin = move |group: &mut _| start::send(group, whole(memory), peer);
            launch(driver, reply, begin, drop);
        })
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
        let memory = Memory::new(address, bytes)?;
        let peer = (whole::rank("source", source, self.world)?, whole::to("tag", tag)?);
        self.issue(py, done, |driver, reply| {
            let begin = move |group: &mut _| start::recv(group, whole(memory), peer);
            launch(driver, reply, begin, move |buffer| give_back(memory, &buffer));
        })
    }

    #[pyo3(signature = (done = None))]
    fn barrier(&self, py: Python<'_>, done: Done) -> PyResult<()> {
        let size = self.world.size();
        self.issue(py, done, |driver, reply| {
            let begin =
                move |group: &mut _| Ok(start::barrier(group, Buffer::Owned(vec![0.0; size])));
            launch(driver, reply, begin, drop);
        })
    }

    /// Ends this group and everything made from it; every peer fails with `reason`.
    fn abort(&self, reason: &str) -> PyResult<()> {
        self.home.circle.check()?;
        self.home.circle.abort(reason);
        Ok(())
    }

    /// Says goodbye for this group and everything made from it.
    fn close(&self, py: Python<'_>) {
        if !self.home.circle.is_forked() {
            py.detach(|| self.home.circle.close());
        }
    }

    /// Bytes and frames moved by the collectives of this group.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.home.circle.check()?;
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

impl Group {
    fn scale(&self, average: bool) -> f32 {
        if average { 1.0 / self.world.size() as f32 } else { 1.0 }
    }
}

/// Begins a run and replies when it is done; `end` takes its buffer before that.
fn launch(
    driver: &Driver<Buffer>,
    reply: Reply,
    begin: impl FnOnce(
        &mut thinwire_collective::Group,
    ) -> Result<Run<Buffer>, thinwire_collective::Error>
    + Send
    + 'static,
    end: impl FnOnce(Buffer) + Send + 'static,
) {
    driver.run(move |group| match group.and_then(begin) {
        Ok(run) => {
            let then = move |run: Result<Run<Buffer>, _>| {
                reply(run.map(|run| end(run.into_parts().0)).map_err(Failure::from));
                Next::End
            };
            Next::Run(run, Box::new(then))
        }
        Err(error) => {
            reply(Err(error.into()));
            Next::End
        }
    });
}

fn settings(
    encryption: &str,
    connections: u16,
    link: Option<&str>,
    timeout_s: f64,
) -> Result<Settings, Failure> {
    let encryption = match encryption {
        "auto" => Encryption::Auto,
        "always" => Encryption::Always,
        "never" => Encryption::Never,
        other => {
            return Err(Failure::invalid(format!(
                "encryption is '{other}', expected auto, always or never"
            )));
        }
    };
    if !(1..=64).contains(&connections) {
        return Err(Failure::invalid(format!("connections is {connections}, expected 1..=64")));
    }
    if !(0.1..=86_400.0).contains(&timeout_s) {
        return Err(Failure::invalid(format!("timeout_s is {timeout_s}, expected 0.1..=86400")));
    }
    let limit = link.map(Bandwidth::parse_limit).transpose();
    let limit = limit.map_err(|error| Failure::invalid(error.to_string()))?.flatten();
    let timeout = Duration::from_secs_f64(timeout_s);
    Ok(Settings { encryption, connections, timeout, limit })
}

pub(crate) fn parse_dtype(name: &str) -> Result<DType, Failure> {
    name.parse().map_err(|error: thinwire_wire::UnknownDType| Failure::invalid(error.to_string()))
}

/// The codec of one call; raw means raw in the tensor's own dtype.
pub(crate) fn bytes_codec(name: &str, dtype: DType) -> Result<Arc<dyn Codec>, Failure> {
    match Choice::parse(name)? {
        Choice::Bytes(codec) if codec.is_raw() => Ok(thinwire_codec::raw_of(dtype)),
        Choice::Bytes(codec) => Ok(codec),
        other => Err(Failure::invalid(format!(
            "codec {other} needs the gradients of a model, not a single tensor (hint: use a Synchronizer)"
        ))),
    }
}

/// A tensor times `scale`: in place if it is of f32.
fn scaled(mut memory: Memory, dtype: DType, scale: f32) -> Buffer {
    if dtype != DType::F32 {
        let mut values = memory.to_f32(dtype);
        values.iter_mut().for_each(|value| *value *= scale);
        return Buffer::Owned(values);
    }
    if scale != 1.0 {
        memory.scale(scale);
    }
    Buffer::Borrowed(memory)
}

fn take_back(mut memory: Memory, dtype: DType, buffer: &Buffer) {
    if let Buffer::Owned(values) = buffer {
        memory.write(dtype, values);
    }
}

/// Any bytes as words: as they are if they are words, else a copy.
fn whole(memory: Memory) -> Buffer {
    if memory.is_words() {
        return Buffer::Borrowed(memory);
    }
    let mut words = Words::new(&[memory.bytes().len()]);
    words.put(0, memory);
    words.into_buffer()
}

fn give_back(memory: Memory, buffer: &Buffer) {
    if let Buffer::Owned(values) = buffer {
        Words::of(values, &[memory.bytes().len()]).get(0, memory);
    }
}
