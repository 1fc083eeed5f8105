//! The communication thread.
//!
//! It alone touches the group. Buckets come in over a channel and go back over another, by value,
//! so nothing is shared and nothing is locked. Between steps it keeps listening, so that heartbeats
//! are answered and a lost peer is noticed while everybody computes.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use thinwire_collective::{Group, Run};
use thinwire_link::Waker;

use crate::Error;
use crate::exchange::{Arrival, Job, Next, Stage};

/// How long the thread sleeps at most when nothing happens.
const NAP: Duration = Duration::from_millis(250);

type Call = Box<dyn FnOnce(&mut Group) -> Result<(), thinwire_collective::Error> + Send>;

/// What the trainer's thread asks for.
enum Request {
    Exchange(Job),
    Call(Call),
}

/// The trainer's end of the thread.
#[derive(Debug)]
pub(crate) struct Worker {
    requests: Option<Sender<Request>>,
    arrivals: Receiver<Result<Arrival, Error>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread.
    pub(crate) fn start(group: Group) -> Worker {
        let (requests, inbox) = channel();
        let (outbox, arrivals) = channel();
        let waker = group.waker();
        let run = move || Loop { group, stages: Vec::new(), runs: Vec::new(), outbox }.run(&inbox);
        let thread = std::thread::Builder::new().name("thinwire".to_owned()).spawn(run);
        let thread = thread.expect("the system can start a thread");
        Worker { requests: Some(requests), arrivals, waker, thread: Some(thread) }
    }

    /// Hands a bucket over.
    pub(crate) fn exchange(&self, job: Job) -> Result<(), Error> {
        self.request(Request::Exchange(job))
    }

    /// The next bucket that has arrived.
    pub(crate) fn arrival(&self) -> Result<Arrival, Error> {
        self.arrivals.recv().map_err(|_| Error::Stopped)?
    }

    /// Runs `call` on the group and waits for it. No bucket may be on its way.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Group) -> Result<T, thinwire_collective::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = channel();
        let call = move |group: &mut Group| {
            let result = call(group);
            let failure = result.as_ref().err().cloned();
            // Nobody listens any more only if the trainer's thread is gone.
            let _ = reply.send(result);
            failure.map_or(Ok(()), Err)
        };
        self.request(Request::Call(Box::new(call)))?;
        match answer.recv() {
            Ok(result) => result.map_err(Error::Collective),
            Err(_) => {
                Err(self.arrivals.recv().ok().and_then(Result::err).unwrap_or(Error::Stopped))
            }
        }
    }

    fn request(&self, request: Request) -> Result<(), Error> {
        let sent = self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok());
        if !sent {
            let failures = self.arrivals.try_iter().filter_map(Result::err);
            return Err(failures.last().unwrap_or(Error::Stopped));
        }
        self.waker.wake();
        Ok(())
    }
}

impl Drop for Worker {
    /// Says goodbye to the peers.
    fn drop(&mut self) {
        self.requests = None;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been printed; there is nobody to tell.
            let _ = thread.join();
        }
    }
}

/// The thread's own state: `stages[i]` is what `runs[i]` is for.
struct Loop {
    group: Group,
    stages: Vec<Stage>,
    runs: Vec<Run<Vec<f32>>>,
    outbox: Sender<Result<Arrival, Error>>,
}

impl Loop {
    fn run(mut self, inbox: &Receiver<Request>) {
        loop {
            match self.turn(inbox) {
                Ok(true) => {}
                Ok(false) => return self.group.leave(),
                Err(error) => {
                    // The trainer's thread may be gone already.
                    let _ = self.outbox.send(Err(error));
                    return;
                }
            }
        }
    }

    /// One round; false when the trainer's thread has closed the channel.
    fn turn(&mut self, inbox: &Receiver<Request>) -> Result<bool, Error> {
        loop {
            match inbox.try_recv() {
                Ok(Request::Exchange(job)) => self.admit(job)?,
                Ok(Request::Call(call)) => call(&mut self.group)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    if !self.runs.is_empty() {
                        self.group.abort("a rank stopped in the middle of a step");
                    }
                    return Ok(false);
                }
            }
        }
        let active = self.group.advance(&mut self.runs)?;
        self.collect()?;
        if !active {
            self.group.wait(&self.runs, NAP)?;
        }
        Ok(true)
    }

    fn admit(&mut self, job: Job) -> Result<(), Error> {
        let (stage, run) = job.start(self.group.world());
        self.add(stage, run, self.runs.len())
    }

    fn add(&mut self, stage: Stage, mut run: Run<Vec<f32>>, at: usize) -> Result<(), Error> {
        self.group.admit(&mut run)?;
        self.runs.insert(at, run);
        self.stages.insert(at, stage);
        Ok(())
    }

    /// Sends on what has arrived.
    fn collect(&mut self) -> Result<(), Error> {
        let mut index = 0;
        while index < self.runs.len() {
            if !self.runs[index].is_done() {
                index += 1;
                continue;
            }
            let (run, stage) = (self.runs.remove(index), self.stages.remove(index));
            match stage.proceed(run, self.group.world()) {
                Next::Run(stage, run) => self.add(stage, run, index)?,
                Next::Done { bucket, body, times } => {
                    let arrival = Arrival { bucket, body, times, done: Instant::now(), cpu: cpu() };
                    self.outbox.send(Ok(arrival)).map_err(|_| Error::Stopped)?;
                }
            }
        }
        Ok(())
    }
}

/// Processor time that this thread has used.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
