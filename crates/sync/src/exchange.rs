//! Exchanges: the encoding of the gradients of one bucket, and the messages in which ranks send it.
//!
//! The communication thread begins an exchange and continues with it as its runs finish. The trainer's
//! thread commits it at the end of the step, when all ranks know whether everything was finite.

pub(crate) mod alternating;
pub(crate) mod bytes;
pub(crate) mod choose;
pub(crate) mod intsgd;
pub(crate) mod powersgd;
pub(crate) mod route;

use std::fmt::Debug;
use std::sync::Arc;
use std::task::Waker;

use thinwire_codec::Finite;
use thinwire_collective::{Address, Buffer, Check, Program, Run};
use thinwire_device::{Device, Done, Failure, Submission};

use crate::Error;
use crate::buffer::Tensor;

/// The exchange of one bucket, from step to step.
pub(crate) trait Exchange: Debug + Send {
    /// Takes the gradients of a step and starts the first run.
    fn begin(&mut self, departure: Departure) -> Run<Tensor>;

    /// Takes a run that is done and starts the next one, if there is one.
    fn next(&mut self, run: Run<Tensor>) -> Progress;

    /// Returns whether the exchange takes gradients in the memory of this device, not only in host memory.
    fn runs_on(&self, _device: &dyn Device) -> bool {
        false
    }

    /// Takes back a run that has failed. The step is then to be committed as skipped. An exchange whose
    /// runs hold nothing but a message need not implement this.
    fn reclaim(&mut self, _run: Run<Tensor>) {}

    /// Ends a step: returns the sum over ranks and the new residual, empty without feedback. After a
    /// skipped step, the sum is undefined, and the residual is the one from before the step.
    ///
    /// # Errors
    /// If peers sent invalid encodings.
    ///
    /// # Panics
    /// If the exchange is not done.
    fn commit(&mut self, outcome: Outcome) -> Result<(Tensor, Tensor), Error>;

    /// Returns the bytes that this rank will send in the next step, headers included.
    fn sent_bytes(&mut self) -> u64;

    /// Returns the state of a member of the bucket that a checkpoint must hold in addition to the
    /// residual, and its name.
    fn state(&self, _member: usize) -> Option<(&'static str, Vec<f32>)> {
        None
    }

    /// Continues from what [`Exchange::state`] returned, of the same length.
    fn load(&mut self, _member: usize, _state: &[f32]) {}
}

/// The end of a step, the same on all ranks.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All ranks have the averages.
    Averaged,
    /// Some rank had a gradient that is not finite. No rank has changed anything: the optimiser
    /// must not step.
    Skipped,
}

/// A full bucket that sets out.
#[derive(Debug)]
pub(crate) struct Departure {
    /// The gradients, scaled so that their sum over ranks is the result.
    pub(crate) values: Tensor,
    /// The residual, of an exchange with feedback.
    pub(crate) residual: Option<Tensor>,
    /// Whether all gradients are finite on this rank, as far as is known at once.
    pub(crate) finite: Finite,
    /// Questions whether the other gradients are finite, which a device answers later; the exchange
    /// begins when all are answered.
    pub(crate) checks: Vec<Check>,
    /// Wakes the communication thread when a device has an answer.
    pub(crate) waker: Waker,
    /// The address of the first run; that of the second one has the next tensor.
    pub(crate) address: Address,
}

impl Departure {
    /// Takes in what the device has answered; returns whether it has answered everything.
    ///
    /// # Errors
    /// If the device has failed.
    pub(crate) fn answered(&mut self) -> Result<bool, String> {
        match Check::answered(&mut self.checks) {
            Ok(Finite::Yes) => {}
            Ok(Finite::No) => self.finite = Finite::No,
            Err(Failure::Corrupt(detail) | Failure::Device(detail)) => return Err(detail),
        }
        Ok(self.checks.is_empty())
    }
}

/// The program of a message in host memory, and that of one on a device; each is `None` before its
/// first message.
#[derive(Debug)]
struct Programs {
    on_host: Arc<Program>,
    on_device: Option<Arc<Program>>,
}

impl Programs {
    fn new(on_host: Arc<Program>) -> Programs {
        Programs { on_host, on_device: None }
    }

    /// Returns the program for a message.
    fn of(&mut self, message: &Tensor) -> Arc<Program> {
        match message.device() {
            None => Arc::clone(&self.on_host),
            Some(_) => {
                let on_host = &self.on_host;
                Arc::clone(self.on_device.get_or_insert_with(|| Arc::new(on_host.on_device())))
            }
        }
    }
}

/// The progress of an exchange after a run.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is moved once")]
pub(crate) enum Progress {
    /// Another run follows.
    Run(Run<Tensor>),
    /// The exchange is done. The value tells whether all ranks gave finite numbers, and is the same on
    /// all ranks.
    Done(Finite),
}

/// Records whether the values of some work are finite: in `finite` if the work is done, else as one of
/// `checks`.
fn look(
    submission: Submission,
    tell: fn(&Done) -> Finite,
    finite: &mut Finite,
    checks: &mut Vec<Check>,
) {
    let mut pending = match submission {
        // The group hears of a failure by a check.
        Submission::Done(done) if done.failure.is_none() => {
            if tell(&done) == Finite::No {
                *finite = Finite::No;
            }
            return;
        }
        other => other.into_pending(),
    };
    checks.push(Check::new(move || {
        let done = pending.poll()?;
        Some(match done.failure {
            Some(failure) => Err(failure),
            None => Ok(tell(&done)),
        })
    }));
}

/// Returns whether measured values are finite.
fn is_finite(done: &Done) -> Finite {
    Finite::from(done.largest <= f32::MAX.to_bits())
}
