//! A group with a thread of its own.
//!
//! Only the thread touches the group. Runs arrive over a channel, and are passed by value to the
//! continuations that were given with them, so nothing is shared and nothing is locked. Between runs
//! the thread keeps listening, so that heartbeats are answered and a lost peer is noticed while all
//! ranks compute.
//!
//! Law: every continuation is called once, with its run or with the error that has ended the group. In
//! the second case a run that was under way comes back with its buffers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thinwire_link::Waker;
use thinwire_link::tcp::Watch;
use thinwire_wire::World;

use crate::run::Asked;
use crate::{Buffer, Error, Group, Kind, Run};

/// The longest sleep of the thread when nothing happens.
const NAP: Duration = Duration::from_millis(250);

/// Time after a rank's goodbye in which its messages over other connections may still arrive.
const LEFT_GRACE: Duration = Duration::from_secs(1);

/// The next thing that the group does for a request.
#[expect(clippy::large_enum_variant, reason = "it is moved once, and is nearly always a run")]
pub enum Next<V> {
    /// Do this run, and then its continuation.
    Run(Run<V>, Then<V>),
    /// Wait until a device has done its work.
    Wait(Wait<V>),
    /// Do nothing more.
    End,
}

/// The continuation of a run, called when it is done or has failed.
pub type Then<V> = Box<dyn FnOnce(Result<Run<V>, FailedRun<V>>) -> Next<V> + Send>;

/// Function that returns the next thing to do. It is called whenever something may have happened, until
/// it returns the next thing to do; later requests wait until then. If an error has ended the group, it
/// is called once more, with that error. An error that it returns ends the group.
pub type Wait<V> = Box<dyn FnMut(Option<&Error>) -> Result<Option<Next<V>>, String> + Send>;

/// A run that has failed with its group.
#[derive(Debug)]
pub struct FailedRun<V> {
    /// The error that has ended the group.
    pub error: Error,
    /// The run as it was when the group ended: its residual is the one from before the run, and its
    /// values are undefined.
    pub run: Run<V>,
}

/// The answer of this rank to one that asks; `None` to let it wait.
type Answer<V> = Box<dyn FnMut(Asked) -> Option<Next<V>> + Send>;
type Begin<V> = Box<dyn FnOnce(Result<&mut Group, Error>) -> Next<V> + Send>;
type Call = Box<dyn FnOnce(&mut Group) -> Result<(), Error> + Send>;

/// A request of another thread.
enum Request<V> {
    Run(Begin<V>),
    Call(Call),
    Answer(u32, Answer<V>),
}

/// Handle by which other threads use the group's thread.
pub struct Driver<V> {
    world: World,
    requests: Option<Sender<Request<V>>>,
    waker: Waker,
    stop: Stop,
    failure: Arc<OnceLock<Error>>,
    left: Arc<[OnceLock<Instant>]>,
    thread: Option<JoinHandle<Option<Group>>>,
}

impl<V: Buffer + Send + 'static> Driver<V> {
    /// Starts the thread.
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub fn start(group: Group) -> Driver<V> {
        let (requests, inbox) = channel();
        let (world, waker, stop) = (group.world(), group.waker(), group.stop());
        let left = group.left();
        let failure = Arc::new(OnceLock::new());
        let state = Loop {
            group,
            thens: Vec::new(),
            runs: Vec::new(),
            waits: VecDeque::new(),
            answer: None,
            failure: Arc::clone(&failure),
        };
        let thread = std::thread::Builder::new().name("thinwire".to_owned());
        let thread = thread.spawn(move || state.run(&inbox)).expect("the system starts a thread");
        Driver { world, requests: Some(requests), waker, stop, failure, left, thread: Some(thread) }
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// Returns the waker of the group's thread, to be given to a device with work that the thread
    /// waits for.
    pub fn waker(&self) -> std::task::Waker {
        Arc::new(self.waker.clone()).into()
    }

    /// Returns a handle by which any thread can end the group.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Returns the error that has ended the group, if any has.
    pub fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    /// Returns a watch for making further links between the ranks of this group. The wait for such a link
    /// ends with this group's error if the group ends, and also if an awaited rank has said goodbye.
    pub fn watch(&self) -> Watch {
        let (failure, left) = (Arc::clone(&self.failure), Arc::clone(&self.left));
        Watch::new(move |awaited| {
            if let Some(error) = failure.get() {
                return Err(error.for_peers());
            }
            let is_gone = |at: &Instant| at.elapsed() >= LEFT_GRACE;
            let gone = awaited.iter().find(|rank| left[rank.index()].get().is_some_and(is_gone));
            gone.map_or(Ok(()), |rank| Err(thinwire_link::Error::left(*rank)))
        })
    }

    /// Begins a run on the group's thread, in addition to those under way; runs begin in the order of
    /// these calls.
    pub fn run(&self, begin: impl FnOnce(Result<&mut Group, Error>) -> Next<V> + Send + 'static) {
        self.request(Request::Run(Box::new(begin)));
    }

    /// Runs `call` on the group's thread and waits for it. `call` may exchange messages only while no run
    /// is under way.
    ///
    /// # Errors
    /// The error of `call`, which ends the group unless it is [`Kind::Invalid`], or the error that has
    /// ended the group before.
    pub fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Group) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = channel();
        let call = move |group: &mut Group| {
            let result = call(group);
            let fatal = |error: &&Error| error.kind() != Kind::Invalid;
            let failure = result.as_ref().err().filter(fatal).cloned();
            // Nobody listens any more only if the caller's thread is gone.
            let _ = reply.send(result);
            failure.map_or(Ok(()), Err)
        };
        self.request(Request::Call(Box::new(call)));
        answer.recv().unwrap_or_else(|_| Err(self.ended()))
    }

    /// Takes part, from now on, in the counted exchanges of a tensor that other ranks begin. `answer`
    /// is called when the first bytes of such an exchange have come, and returns what this rank does.
    /// If `answer` lets the other rank wait, that rank's further messages on the same connection wait
    /// too, and `answer` is called again later; such a wait may exceed the timeout. There can be one
    /// such tensor; a later call replaces it.
    pub fn answer(
        &self,
        tensor: u32,
        answer: impl FnMut(Asked) -> Option<Next<V>> + Send + 'static,
    ) {
        self.request(Request::Answer(tensor, Box::new(answer)));
    }

    /// Ends the thread and gives the group back.
    ///
    /// # Errors
    /// The error that has ended the group, if any has.
    pub fn into_group(mut self) -> Result<Group, Error> {
        self.close().ok_or_else(|| self.ended())
    }

    fn ended(&self) -> Error {
        let silent = || Error::stopped("the communication thread has stopped".to_owned());
        self.failure().unwrap_or_else(silent)
    }

    fn request(&self, request: Request<V>) {
        let requests = self.requests.as_ref().expect("requests end with the driver");
        match requests.send(request) {
            Ok(()) => self.waker.wake(),
            Err(unsent) => refuse(unsent.0, self.ended()),
        }
    }
}

impl<V> Driver<V> {
    /// Ends the thread; returns the group, if it is still whole.
    fn close(&mut self) -> Option<Group> {
        self.requests = None;
        self.waker.wake();
        // A panic in the thread has been printed; there is nobody to tell.
        self.thread.take()?.join().ok()?
    }
}

impl<V> Drop for Driver<V> {
    /// Says goodbye to the peers, or aborts the runs that are still under way.
    fn drop(&mut self) {
        drop(self.close());
        // Ends further links that are made by this group's watch; an earlier failure stays.
        let _ = self.failure.set(Error::stopped("the group is closed".to_owned()));
    }
}

impl<V> fmt::Debug for Driver<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("world", &self.world).finish_non_exhaustive()
    }
}

/// Fails a request that cannot be carried out any more; dropping it also ends the wait for a call's
/// reply.
fn refuse<V>(request: Request<V>, error: Error) {
    if let Request::Run(begin) = request {
        begin(Err(error));
    }
}

/// The thread's own state: `thens[i]` follows `runs[i]`.
struct Loop<V> {
    group: Group,
    thens: Vec<Then<V>>,
    runs: Vec<Run<V>>,
    waits: VecDeque<Wait<V>>,
    answer: Option<Answer<V>>,
    failure: Arc<OnceLock<Error>>,
}

impl<V: Buffer> Loop<V> {
    /// Returns the group once the other end is closed in good order.
    fn run(mut self, inbox: &Receiver<Request<V>>) -> Option<Group> {
        loop {
            match self.round(inbox) {
                Ok(true) => {}
                Ok(false) => return Some(self.group),
                Err(error) => {
                    self.fail(error, inbox);
                    return None;
                }
            }
        }
    }

    /// Makes one round; returns false when the other end is closed.
    fn round(&mut self, inbox: &Receiver<Request<V>>) -> Result<bool, Error> {
        loop {
            match inbox.try_recv() {
                Ok(Request::Run(begin)) => {
                    let next = begin(Ok(&mut self.group));
                    self.add(next, self.runs.len())?;
                }
                Ok(Request::Call(call)) => call(&mut self.group)?,
                Ok(Request::Answer(tensor, answer)) => {
                    self.group.answer(tensor);
                    self.answer = Some(answer);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected)
                    if self.runs.is_empty() && self.waits.is_empty() =>
                {
                    return Ok(false);
                }
                Err(TryRecvError::Disconnected) => {
                    // Unless it was told to stop, and why.
                    self.group.check()?;
                    self.group.abort("a rank stopped in the middle of a step");
                    break;
                }
            }
        }
        self.ask()?;
        let active = self.group.advance(&mut self.runs)?;
        self.collect()?;
        if !(self.heed()? || active) {
            self.group.wait(&self.runs, NAP)?;
        }
        Ok(true)
    }

    /// Calls every [`Wait`] again, and continues with those that have an answer.
    fn ask(&mut self) -> Result<(), Error> {
        while let Some(wait) = self.waits.front_mut() {
            match wait(None) {
                Ok(None) => break,
                Ok(Some(next)) => {
                    self.waits.pop_front();
                    self.add(next, self.runs.len())?;
                }
                Err(reason) => {
                    self.group.abort(&reason);
                    self.group.check()?;
                }
            }
        }
        Ok(())
    }

    /// Takes part in the exchange of a rank that asks for it; returns whether it has begun.
    fn heed(&mut self) -> Result<bool, Error> {
        let Some((asked, answer)) = self.group.asked().zip(self.answer.as_mut()) else {
            return Ok(false);
        };
        let Some(next) = answer(asked) else { return Ok(false) };
        self.add(next, self.runs.len())?;
        Ok(true)
    }

    fn add(&mut self, next: Next<V>, at: usize) -> Result<(), Error> {
        let (mut run, then) = match next {
            Next::Run(run, then) => (run, then),
            Next::Wait(wait) => {
                self.waits.push_back(wait);
                return Ok(());
            }
            Next::End => return Ok(()),
        };
        let admitted = self.group.admit(&mut run);
        self.runs.insert(at, run);
        self.thens.insert(at, then);
        admitted
    }

    /// Passes runs that are done to their continuations.
    fn collect(&mut self) -> Result<(), Error> {
        let mut index = 0;
        while index < self.runs.len() {
            if !self.runs[index].is_done() {
                index += 1;
                continue;
            }
            let (run, then) = (self.runs.remove(index), self.thens.remove(index));
            self.add(then(Ok(run)), index)?;
        }
        Ok(())
    }

    /// Reports the error to everything that waits, and to later requests until the other end is closed.
    fn fail(self, error: Error, inbox: &Receiver<Request<V>>) {
        // Only this thread sets it, and only here.
        let _ = self.failure.set(error.clone());
        drop(self.group);
        for (then, run) in self.thens.into_iter().zip(self.runs) {
            then(Err(FailedRun { error: error.clone(), run }));
        }
        for mut wait in self.waits {
            // There is nothing more to go on with.
            let _ = wait(Some(&error));
        }
        while let Ok(request) = inbox.recv() {
            refuse(request, error.clone());
        }
    }
}

/// Handle by which any thread can end the group that it came from. It is cheap to clone, and can be
/// used any number of times.
#[derive(Clone, Debug)]
pub struct Stop {
    reason: Arc<OnceLock<String>>,
    waker: Waker,
}

impl Stop {
    pub(crate) fn new(waker: Waker) -> Stop {
        Stop { reason: Arc::default(), waker }
    }

    /// Ends the group: everything that is under way here fails with `reason`, and so does every
    /// peer. The first reason counts.
    pub fn stop(&self, reason: &str) {
        // Somebody else was first.
        let _ = self.reason.set(reason.to_owned());
        self.waker.wake();
    }

    /// Returns the reason for which the group is to end, if there is one.
    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.get().cloned()
    }
}
