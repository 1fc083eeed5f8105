//! Work of a device, and its results.

use std::fmt::Debug;
use std::sync::Arc;
use std::task::Waker;
use std::thread::yield_now;
use std::time::Duration;

use thinwire_codec::{Codec, Finite, Write};
use thinwire_wire::random::Key;

use crate::{HostBytes, Operand, Region, Source};

/// Work on a range of values.
#[derive(Debug)]
pub enum Work<'a> {
    /// Values become bytes.
    Encode(Encoding<'a>),
    /// Bytes become values, or are added to them.
    Decode(Decoding<'a>),
    /// Values change element by element.
    Change(Operand<'a>, Change<Source<'a>>),
    /// A matrix becomes two thin factors, or they become a matrix.
    Factor(Factoring<'a>),
}

/// Step of PowerSGD on one matrix M, as the function of `thinwire_codec::powersgd` with the step's name
/// computes it. All operands lie in the same memory.
#[derive(Debug)]
pub struct Factoring<'a> {
    /// M, row after row.
    pub matrix: Operand<'a>,
    /// P: vectors with one number for each row of M.
    pub p: Operand<'a>,
    /// Q: the same number of vectors as P, with one number for each column of M.
    pub q: Operand<'a>,
    /// Number of rows of M.
    pub rows: usize,
    /// Step to take.
    pub step: FactorStep<Source<'a>>,
}

/// Step of a [`Factoring`].
#[derive(Debug)]
pub enum FactorStep<S> {
    /// Adds this residual to M, and writes `P = M Q`. [`Done::finite`] is then `Yes` if P is finite.
    Project(S),
    /// Makes P orthonormal, and writes `Q = Mᵀ P`.
    ProjectBack,
    /// Subtracts `P Qᵀ` from M.
    Subtract,
    /// Writes `M = P Qᵀ`.
    Reconstruct,
}

impl<S> FactorStep<S> {
    /// Returns the same step, with `map` applied to its residual.
    pub fn map<T>(self, map: impl FnOnce(S) -> T) -> FactorStep<T> {
        match self {
            FactorStep::Project(residual) => FactorStep::Project(map(residual)),
            FactorStep::ProjectBack => FactorStep::ProjectBack,
            FactorStep::Subtract => FactorStep::Subtract,
            FactorStep::Reconstruct => FactorStep::Reconstruct,
        }
    }
}

/// Change of values, which may read the values of a source. Products and sums are rounded separately.
#[derive(Debug)]
pub enum Change<S> {
    /// Every value becomes this one.
    Fill(f32),
    /// Values become those of the source.
    Copy(S),
    /// Adds the source.
    Add(S),
    /// Multiplies all values.
    Scale(f32),
    /// Values become those of the source times a factor. [`Done::largest`] has their largest magnitude.
    Pack(S, f32),
    /// Leaves the values as they are. [`Done::largest`] has their largest magnitude.
    Measure,
    /// Applies [`Codec::canonicalise`].
    Canonicalise(Arc<dyn Codec>),
}

impl<S> Change<S> {
    /// Returns the same change, with `map` applied to its source.
    pub fn map<T>(self, map: impl FnOnce(S) -> T) -> Change<T> {
        match self {
            Change::Fill(value) => Change::Fill(value),
            Change::Copy(source) => Change::Copy(map(source)),
            Change::Add(source) => Change::Add(map(source)),
            Change::Scale(factor) => Change::Scale(factor),
            Change::Pack(source, factor) => Change::Pack(map(source), factor),
            Change::Measure => Change::Measure,
            Change::Canonicalise(codec) => Change::Canonicalise(codec),
        }
    }

    /// Returns the source, if the change has one.
    pub fn source(&self) -> Option<&S> {
        match self {
            Change::Copy(source) | Change::Add(source) | Change::Pack(source, _) => Some(source),
            Change::Fill(_) | Change::Scale(_) | Change::Measure | Change::Canonicalise(_) => None,
        }
    }
}

/// Encoding of `values`. With a residual, the sum of both is encoded, and the error is left in
/// `values`.
#[derive(Debug)]
pub struct Encoding<'a> {
    /// Codec of the bytes.
    pub codec: &'a Arc<dyn Codec>,
    /// Values, replaced by the new residual if there is an old one.
    pub values: Operand<'a>,
    /// Residual of earlier steps, in the same memory as `values` and as long; not changed.
    pub residual: Option<Source<'a>>,
    /// Random numbers, which count from the first element.
    pub key: Key,
    /// Memory of [`Codec::encoded_len`] bytes, returned in [`Done::bytes`].
    pub to: HostBytes,
}

/// Decoding of `from` into `to`.
#[derive(Debug)]
pub struct Decoding<'a> {
    /// Codec of the bytes.
    pub codec: &'a Arc<dyn Codec>,
    /// Encoding, followed by bytes that a codec of variable length has not used.
    pub from: HostBytes,
    /// Values to overwrite or to add to.
    pub to: Operand<'a>,
    /// Whether values are overwritten or added to.
    pub write: Write,
    /// Times at which [`Codec::canonicalise`] is applied to `to`.
    pub canonicalise: Canonicalise,
}

/// Times at which a decoding applies [`Codec::canonicalise`] to its values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Canonicalise {
    /// Before the bytes are added: the values are this rank's own.
    pub before: bool,
    /// After the bytes were added: the sum is complete.
    pub after: bool,
}

/// Result of work.
#[derive(Debug)]
pub struct Done {
    /// Whether everything that was encoded decodes to finite numbers; `Yes` for a decoding.
    pub finite: Finite,
    /// Bytes that were written or read.
    pub bytes: HostBytes,
    /// Time for which the processor was busy with the work.
    pub busy: Duration,
    /// Reason why the work has failed, if it has.
    pub failure: Option<Failure>,
    /// Bits of the largest magnitude, for [`Change::Pack`] and [`Change::Measure`]. If a value is NaN, the
    /// number is greater than the bits of infinity.
    pub largest: u32,
}

/// Reason why work has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The bytes are not a valid encoding.
    Corrupt(String),
    /// The device cannot work any more. All work that is submitted later fails too, so results of work
    /// on which later work builds need not be checked.
    Device(String),
}

impl Done {
    /// Returns the result of work that has failed.
    pub fn failed(failure: Failure) -> Done {
        Done { failure: Some(failure), ..Done::new(HostBytes::default()) }
    }

    /// Returns the result of work whose values are finite and that has no other result.
    pub fn new(bytes: HostBytes) -> Done {
        Done { finite: Finite::Yes, bytes, busy: Duration::ZERO, failure: None, largest: 0 }
    }
}

/// Processor with memory of its own.
///
/// Work on overlapping ranges of an allocation is carried out in the order of submission, whichever
/// threads submit it.
pub trait Device: Debug + Send + Sync {
    /// Returns a number that no other device of this process has.
    fn id(&self) -> usize;

    /// Allocates memory for `elements` values, all 0.
    fn allocate(&self, elements: usize) -> Region;

    /// Returns memory for encodings of `bytes` bytes, of any content.
    fn host(&self, bytes: usize) -> HostBytes {
        HostBytes::new(bytes)
    }

    /// Returns whether this device encodes and decodes with `codec`; otherwise values are copied to
    /// host memory.
    fn encodes_with(&self, codec: &dyn Codec) -> bool;

    /// Returns whether this device does [`Work::Factor`]; otherwise values are copied to host memory.
    fn factors(&self) -> bool {
        false
    }

    /// Queues work whose operands lie in this device's memory. Wakes `waker` when it is done.
    fn submit(&self, work: Work<'_>, waker: &Waker) -> Submission;

    /// Returns new memory with these values.
    fn upload(&self, values: &[f32]) -> Region {
        let region = self.allocate(values.len());
        self.write(values, &region);
        region
    }

    /// Copies values to host memory after all work that was submitted before, and waits until they
    /// are there.
    ///
    /// # Panics
    /// If the lengths differ.
    fn read(&self, from: &Region, to: &mut [f32]);

    /// Copies values from host memory after all work that was submitted before, and waits until
    /// they are there.
    ///
    /// # Panics
    /// If the lengths differ.
    fn write(&self, from: &[f32], to: &Region);
}

/// Work that was submitted. It may be dropped if its result is of no interest: if work of a device
/// fails, all later work fails too.
#[derive(Debug)]
pub enum Submission {
    /// Work that is done already.
    Done(Done),
    /// Work under way.
    Pending(Pending),
}

impl Submission {
    /// Returns the work as [`Pending`] even if it is done already.
    pub fn into_pending(self) -> Pending {
        match self {
            Submission::Pending(pending) => pending,
            Submission::Done(done) => {
                let mut done = Some(done);
                Pending::new(move || done.take())
            }
        }
    }
}

/// Work under way on a device.
pub struct Pending(Box<dyn FnMut() -> Option<Done> + Send>);

impl Pending {
    /// Returns work whose result `poll` returns, once.
    pub fn new(poll: impl FnMut() -> Option<Done> + Send + 'static) -> Pending {
        Pending(Box::new(poll))
    }

    /// Returns the result, once, when the work is done; never blocks.
    pub fn poll(&mut self) -> Option<Done> {
        (self.0)()
    }

    /// Waits until the work is done, and returns its result. The result must not have been polled
    /// before.
    pub fn wait(mut self) -> Done {
        loop {
            match self.poll() {
                Some(done) => return done,
                None => yield_now(),
            }
        }
    }
}

impl Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pending")
    }
}
