//! Submission of work: work on host memory is done at once, by the thread that submits it.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{Thread, current, park_timeout};
use std::time::{Duration, Instant};

use thinwire_codec::{Finite, Input, kernel, powersgd};

use crate::{
    Change, Decoding, Done, Encoding, FactorStep, Factoring, Failure, HostBytes, Operand, Pending,
    Source, Submission, Work,
};

/// Submits work to the processor in whose memory its values lie.
pub fn submit(work: Work<'_>, waker: &Waker) -> Submission {
    let values = match &work {
        Work::Encode(encoding) => &encoding.values,
        Work::Decode(decoding) => &decoding.to,
        Work::Change(values, _) => values,
        Work::Factor(factoring) => &factoring.matrix,
    };
    match values {
        Operand::Host(_) => Submission::Done(compute(work)),
        Operand::Device(region) => {
            let region = region.clone();
            region.device().submit(work, waker)
        }
    }
}

/// Several pieces of work for which a thread waits together.
#[derive(Debug)]
pub struct Batch {
    waker: Waker,
    pending: Vec<Pending>,
    failure: Option<Failure>,
}

/// Longest sleep of a thread that waits: after a fault a device may wake no thread.
const NAP: Duration = Duration::from_millis(100);

impl Batch {
    /// Returns a batch without work, for this thread.
    pub fn new() -> Batch {
        let waker = Waker::from(Arc::new(Sleeper(current())));
        Batch { waker, pending: Vec::new(), failure: None }
    }

    /// Submits work.
    pub fn submit(&mut self, work: Work<'_>) {
        match submit(work, &self.waker) {
            Submission::Done(done) => self.failure = self.failure.take().or(done.failure),
            Submission::Pending(pending) => self.pending.push(pending),
        }
    }

    /// Waits until all work is done.
    ///
    /// # Errors
    /// If some of it has failed.
    pub fn wait(mut self) -> Result<(), Failure> {
        while !self.pending.is_empty() {
            let failure = &mut self.failure;
            self.pending.retain_mut(|pending| match pending.poll() {
                Some(done) => {
                    *failure = failure.take().or(done.failure);
                    false
                }
                None => true,
            });
            if !self.pending.is_empty() {
                // A wake that came before makes this return at once.
                park_timeout(NAP);
            }
        }
        self.failure.map_or(Ok(()), Err)
    }
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

/// Thread that sleeps until work is done.
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Sleeper>) {
        self.0.unpark();
    }
}

/// Does work on host memory. [`submit`] calls it, and so do devices in tests, for their own memory.
///
/// # Panics
/// If an operand lies in the memory of a device.
pub fn compute(work: Work<'_>) -> Done {
    let begin = Instant::now();
    let mut done = match work {
        Work::Encode(encoding) => encode(encoding),
        Work::Decode(decoding) => decode(decoding),
        Work::Change(values, change) => {
            Done { largest: apply(values.host(), change), ..Done::new(HostBytes::default()) }
        }
        Work::Factor(factoring) => {
            Done { finite: factor(factoring), ..Done::new(HostBytes::default()) }
        }
    };
    done.busy = begin.elapsed();
    done
}

fn encode(encoding: Encoding<'_>) -> Done {
    let Encoding { codec, values, residual, key, mut to } = encoding;
    let values = values.host();
    let input = match residual {
        None => Input::Plain(values),
        Some(residual) => Input::Feedback { values, residual: residual.host() },
    };
    let finite: Finite = codec.encode(input, key, to.as_mut_slice());
    Done { finite, ..Done::new(to) }
}

fn decode(decoding: Decoding<'_>) -> Done {
    let Decoding { codec, from, to, write, canonicalise } = decoding;
    let values = to.host();
    if canonicalise.before {
        codec.canonicalise(values);
    }
    let bytes = from.as_slice();
    let decoded = codec.decode(&bytes[..codec.frame_len(bytes)], write, values);
    if decoded.is_ok() && canonicalise.after {
        codec.canonicalise(values);
    }
    Done {
        failure: decoded.err().map(|error| Failure::Corrupt(error.to_string())),
        ..Done::new(from)
    }
}

/// Takes a step of PowerSGD. Returns whether the factor that it writes is finite, as far as it looks.
fn factor(factoring: Factoring<'_>) -> Finite {
    let Factoring { matrix, p, q, rows, step } = factoring;
    let (matrix, p, q) = (matrix.host(), p.host(), q.host());
    match step {
        FactorStep::Project(residual) => {
            return powersgd::project(matrix, residual.host(), q, p, rows);
        }
        FactorStep::ProjectBack => powersgd::project_back(matrix, p, q, rows),
        FactorStep::Subtract => powersgd::subtract(p, q, matrix, rows),
        FactorStep::Reconstruct => powersgd::reconstruct(p, q, matrix, rows),
    }
    Finite::Yes
}

/// Changes values. Returns the value for [`Done::largest`].
fn apply(values: &mut [f32], change: Change<Source<'_>>) -> u32 {
    match change {
        Change::Fill(value) => values.fill(value),
        Change::Copy(source) => values.copy_from_slice(source.host()),
        Change::Add(source) => kernel::add(values, source.host()),
        Change::Scale(factor) => values.iter_mut().for_each(|value| *value *= factor),
        Change::Measure => return kernel::max_magnitude(values),
        Change::Canonicalise(codec) => codec.canonicalise(values),
        Change::Pack(source, factor) => return kernel::pack(values, source.host(), factor),
    }
    0
}
