//! The communication thread, as the synchroniser uses it: buckets go out, arrivals come back.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use thinwire_codec::Finite;
use thinwire_collective::{Address, Error as Failure, FailedRun, Next, Program, Run, Times};

use thinwire_wire::World;

use crate::buffer::Tensor;
use crate::exchange::{Departure, Exchange, Progress};
use crate::measure::processor_time;
use crate::{Channel, Error};

/// The trainer's end of the thread.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) channel: Channel,
    outbox: Outbox,
    arrivals: Receiver<Result<Arrival, Box<LostRun>>>,
}

type Outbox = Sender<Result<Arrival, Box<LostRun>>>;

/// A full bucket for the thread.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) bucket: usize,
    pub(crate) exchange: Box<dyn Exchange>,
    pub(crate) departure: Departure,
}

/// A bucket that has arrived, whose exchange is to be committed.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) bucket: usize,
    pub(crate) exchange: Box<dyn Exchange>,
    /// Whether all ranks gave finite numbers; the same on all ranks.
    pub(crate) finite: Finite,
    pub(crate) times: Times,
    pub(crate) done: Instant,
    /// Processor time that the thread has used so far.
    pub(crate) cpu: Duration,
}

/// A bucket whose exchange has failed, and all that it had before the step.
#[derive(Debug)]
pub(crate) struct LostRun {
    pub(crate) bucket: usize,
    pub(crate) exchange: Box<dyn Exchange>,
    /// `Some` if the exchange had not begun.
    pub(crate) departure: Option<Departure>,
    pub(crate) error: Error,
}

impl Worker {
    /// Sends buckets over a channel.
    pub(crate) fn new(of: Channel) -> Worker {
        let (outbox, arrivals) = mpsc::channel();
        Worker { channel: of, outbox, arrivals }
    }

    /// Hands a bucket over.
    pub(crate) fn exchange(&self, job: Job) {
        let Job { bucket, exchange, departure } = job;
        let (outbox, times) = (self.outbox.clone(), Times::default());
        let bulk = self.channel.is_bulk();
        let underway = Underway { bulk, bucket, exchange, times, outbox };
        self.channel.driver().run(move |group| match group {
            Ok(_) => underway.begin(departure),
            Err(error) => underway.fail(Some(departure), Error::Collective(error)),
        });
    }

    /// Sums a few values over all ranks of the channel, while buckets travel.
    pub(crate) fn sum(
        &self,
        program: Arc<Program>,
        address: Address,
        values: Vec<f32>,
    ) -> Receiver<Result<Vec<f32>, Error>> {
        sum(&self.channel, self.channel.world(), program, address, values)
    }

    /// Returns the next bucket that has arrived, waiting for it; or one whose exchange has failed.
    ///
    /// # Panics
    /// If no bucket is on its way.
    pub(crate) fn arrival(&self) -> Result<Arrival, Box<LostRun>> {
        self.arrivals.recv().expect("this end has a sender, too")
    }
}

/// Sums values over the ranks of a program, in which this rank has its place in `world`, on a channel's thread.
pub(crate) fn sum(
    channel: &Channel,
    world: World,
    program: Arc<Program>,
    address: Address,
    values: Vec<f32>,
) -> Receiver<Result<Vec<f32>, Error>> {
    let (outbox, answer) = mpsc::channel();
    let bulk = channel.is_bulk();
    // Whoever asked may be gone already.
    let reply = move |sum: Result<Vec<f32>, Failure>| {
        let _ = outbox.send(sum.map_err(Error::Collective));
        Next::End
    };
    channel.driver().run(move |group| match group {
        Ok(_) => {
            let run = Run::new(program, address, world, Tensor::Owned(values), None);
            let run = if bulk { run.bulk() } else { run };
            let sum = |run: Run<Tensor>| run.into_parts().0.into_owned();
            Next::Run(run, Box::new(move |run| reply(run.map(sum).map_err(|broken| broken.error))))
        }
        Err(error) => reply(Err(error)),
    });
    answer
}

/// A bucket on the communication thread.
struct Underway {
    bulk: bool,
    bucket: usize,
    exchange: Box<dyn Exchange>,
    times: Times,
    outbox: Outbox,
}

impl Underway {
    /// Begins the exchange once the device that has the gradients has packed them. Otherwise work that
    /// is queued there would hold up the exchanges of other buckets, whose gradients are ready.
    fn begin(self, departure: Departure) -> Next<Tensor> {
        if departure.checks.is_empty() {
            return self.depart(departure);
        }
        let mut waiting = Some((self, departure));
        Next::Wait(Box::new(move |ended| {
            let Some((_, departure)) = &mut waiting else { return Ok(None) };
            let is_packed = match ended {
                None => departure.answered()?,
                Some(_) => true,
            };
            let next = |(underway, departure): (Underway, Departure)| match ended {
                None => underway.depart(departure),
                Some(error) => underway.fail(Some(departure), Error::Collective(error.clone())),
            };
            Ok(waiting.take_if(|_| is_packed).map(next))
        }))
    }

    fn depart(mut self, departure: Departure) -> Next<Tensor> {
        let begin = Instant::now();
        let run = self.exchange.begin(departure);
        self.times.encode += begin.elapsed();
        self.follow(run)
    }

    fn follow(self, run: Run<Tensor>) -> Next<Tensor> {
        Next::Run(
            if self.bulk { run.bulk() } else { run },
            Box::new(|run| match run {
                Ok(run) => self.go_on(run),
                Err(broken) => self.lose(broken),
            }),
        )
    }

    fn go_on(mut self, mut run: Run<Tensor>) -> Next<Tensor> {
        let (begin, times) = (Instant::now(), run.take_times());
        let progress = self.exchange.next(run);
        self.times.encode += times.encode + begin.elapsed();
        self.times.decode += times.decode;
        self.times.sent_bytes += times.sent_bytes;
        self.times.received_bytes += times.received_bytes;
        match progress {
            Progress::Run(run) => self.follow(run),
            Progress::Done(finite) => {
                let Underway { bucket, exchange, times, outbox, .. } = self;
                let (done, cpu) = (Instant::now(), processor_time());
                deliver(&outbox, Ok(Arrival { bucket, exchange, finite, times, done, cpu }))
            }
        }
    }

    fn lose(mut self, broken: FailedRun<Tensor>) -> Next<Tensor> {
        self.exchange.reclaim(broken.run);
        self.fail(None, Error::Collective(broken.error))
    }

    fn fail(self, departure: Option<Departure>, error: Error) -> Next<Tensor> {
        let Underway { bucket, exchange, outbox, .. } = self;
        deliver(&outbox, Err(Box::new(LostRun { bucket, exchange, departure, error })))
    }
}

/// Hands an arrival to the trainer's thread, which may be gone already.
fn deliver(outbox: &Outbox, arrival: Result<Arrival, Box<LostRun>>) -> Next<Tensor> {
    let _ = outbox.send(arrival);
    Next::End
}
