//! The communication thread, as the synchroniser uses it: buckets go out, arrivals come back.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use thinwire_collective::{Driver, Group, Next, Stop, Then};
use thinwire_wire::World;

use crate::Error;
use crate::exchange::{Arrival, Follow, Job, Stage};
use crate::tensor::Tensor;

type Outbox = Sender<Result<Arrival, Error>>;

/// The trainer's end of the thread.
#[derive(Debug)]
pub(crate) struct Worker {
    driver: Driver<Tensor>,
    outbox: Outbox,
    arrivals: Receiver<Result<Arrival, Error>>,
}

impl Worker {
    /// Starts the thread.
    pub(crate) fn start(group: Group) -> Worker {
        let (outbox, arrivals) = channel();
        Worker { driver: Driver::start(group), outbox, arrivals }
    }

    /// Hands a bucket over.
    pub(crate) fn exchange(&self, job: Job) {
        let (world, outbox) = (self.driver.world(), self.outbox.clone());
        self.driver.run(move |group| match group {
            Ok(_) => {
                let (stage, run) = job.start(world);
                Next::Run(run, proceed(stage, world, outbox))
            }
            Err(error) => deliver(&outbox, Err(Error::Collective(error))),
        });
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
        self.driver.call(call).map_err(Error::Collective)
    }

    /// Ends the group from any thread.
    pub(crate) fn stop(&self) -> Stop {
        self.driver.stop()
    }
}

/// What follows the run of a stage, until the bucket is there.
fn proceed(stage: Stage, world: World, outbox: Outbox) -> Then<Tensor> {
    Box::new(move |run| {
        let run = match run {
            Ok(run) => run,
            Err(error) => return deliver(&outbox, Err(Error::Collective(error))),
        };
        match stage.proceed(run, world) {
            Follow::Run(stage, run) => Next::Run(run, proceed(stage, world, outbox)),
            Follow::Done { bucket, body, times } => {
                let arrival =
                    Arrival { bucket, body, times, done: Instant::now(), cpu: thread_cpu() };
                deliver(&outbox, Ok(arrival))
            }
        }
    })
}

/// Hands an arrival to the trainer's thread, which may be gone already.
fn deliver(outbox: &Outbox, arrival: Result<Arrival, Error>) -> Next<Tensor> {
    let _ = outbox.send(arrival);
    Next::End
}

/// Processor time that this thread has used.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
