//! Transfers: a collective of the model as a sequence of schedules, with rearrangements of values before
//! and after each schedule.
//!
//! Schedules move flat buffers, so the part of each rank is made contiguous first. Reductions other than sums
//! have two phases, an all-to-all of the parts and an all-gather of the reduced parts, which send as many
//! bytes as an all-reduce.

use std::fmt;
use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_model::{Collective, Reduction};
use thinwire_schedule::{self as schedule, Operation, Shape};
use thinwire_wire::{HEADER_BYTES, World};

use super::{Phase, Rearrange};

/// A function from a codec and a number of elements to bytes.
pub type Length = fn(&dyn Codec, usize) -> usize;

/// The bytes of elements in the codec's encoding.
pub const ENCODED: Length = |codec, elements| codec.expected_len(elements);
/// The bytes of elements as f32, whatever the codec.
pub const RAW: Length = |_, elements| size_of::<f32>() * elements;

/// The encoding of a collective's values.
#[derive(Clone, Debug)]
pub struct Encoding {
    /// The codec of the values that are encoded.
    pub codec: Arc<dyn Codec>,
    /// Number of neighbours that sum values raw before the sums are encoded.
    pub inner: usize,
    /// Whether the values are an activation or its gradient. In this case, parts that are gathered are
    /// encoded too, and the error of the codec is not kept.
    pub activation: bool,
}

impl Encoding {
    /// Returns the encoding of values that are sent raw.
    pub fn raw() -> Encoding {
        Encoding { codec: thinwire_codec::raw(), inner: 1, activation: false }
    }

    /// Returns the transfer of the values of one rank of a group. Sums are sent encoded, and the codec's
    /// blocks start at the beginning of every rank's part. For an activation or its gradient, values
    /// that stay on their rank are not encoded, unless other ranks get them as well.
    pub fn transfer(&self, collective: Collective, shape: &[usize], world: World) -> Transfer {
        let cut = Cut { shape, world };
        let mut transfer = match collective {
            Collective::Slice { dim } => Transfer::local([cut.split(dim), cut.mine()]),
            Collective::Pad { reduction, from } => cut.pad(reduction, from),
            Collective::AllGather { dim } => cut.all_gather(dim),
            Collective::AllToAll { from, to } => cut.all_to_all(from, to),
            Collective::AllReduce { reduction: Reduction::Sum } => cut.all_reduce(self),
            Collective::AllReduce { reduction } => cut.all_reduce_by(reduction),
            Collective::ReduceScatter { reduction: Reduction::Sum, dim } => {
                cut.reduce_scatter(dim, self)
            }
            Collective::ReduceScatter { reduction, dim } => cut.reduce_scatter_by(reduction, dim),
        };
        if self.activation {
            for phase in &mut transfer.phases {
                phase.feedback = false;
                if let Collective::AllGather { .. } | Collective::AllToAll { .. } = collective {
                    phase.codec = Arc::clone(&self.codec);
                }
            }
        }
        transfer
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Encoding { codec, inner, activation } = self;
        write!(f, "{codec} between units of {inner}, activation {activation}")
    }
}

/// A collective: phases that run one after the other.
#[derive(Clone, Debug, Default)]
pub struct Transfer {
    /// The rearrangements before the first phase.
    pub before: Vec<Rearrange>,
    /// The phases.
    pub phases: Vec<Phase>,
}

impl Transfer {
    /// Returns the number of elements of the residual, if there is one.
    pub fn owed(&self) -> Option<usize> {
        self.phases.iter().find_map(Phase::owed)
    }

    /// Returns the bytes that this rank sends, including headers.
    pub fn sent_bytes(&self) -> u64 {
        self.bytes(ENCODED)
    }

    /// Returns the bytes that this rank sends, including headers; `length` gives the bytes of a number of
    /// elements.
    pub fn bytes(&self, length: Length) -> u64 {
        let sent = |phase: &Phase| -> usize {
            let lengths = phase.schedule.bytes(&|elements| length(&*phase.codec, elements));
            let sends = phase.schedule.tasks.iter().filter_map(|task| match task.operation {
                Operation::Send { slot, .. } => Some(lengths[slot.index()] + HEADER_BYTES),
                _ => None,
            });
            sends.sum()
        };
        self.phases.iter().map(sent).sum::<usize>() as u64
    }

    fn local(before: impl Into<Vec<Rearrange>>) -> Transfer {
        Transfer { before: before.into(), phases: Vec::new() }
    }
}

/// Values of this shape on one rank of a group.
struct Cut<'a> {
    shape: &'a [usize],
    world: World,
}

impl Cut<'_> {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    fn size(&self) -> usize {
        self.world.size()
    }

    fn at(&self) -> usize {
        self.world.rank().index()
    }

    fn outer(&self, dim: usize) -> usize {
        self.shape[..dim].iter().product()
    }

    /// Returns the rearrangement that makes the parts of a dimension contiguous.
    fn split(&self, dim: usize) -> Rearrange {
        Rearrange::Split { outer: self.outer(dim), parts: self.size() }
    }

    /// Returns the rearrangement that joins contiguous parts along a dimension.
    fn join(&self, dim: usize) -> Rearrange {
        Rearrange::Join { outer: self.outer(dim), parts: self.size() }
    }

    /// Returns the rearrangement that keeps only this rank's part.
    fn mine(&self) -> Rearrange {
        let part = self.elements() / self.size();
        Rearrange::Take(self.at() * part..(self.at() + 1) * part)
    }

    fn flat(&self, elements: usize) -> Shape {
        Shape { length: elements, block: 1, partitions: 1 }
    }

    fn pad(&self, reduction: Reduction, from: Option<usize>) -> Transfer {
        let rest = reduction.identity() as f32;
        let (n, at) = (self.elements(), self.at());
        match from {
            None if at == 0 => Transfer::default(),
            None => Transfer::local([
                Rearrange::Take(0..0),
                Rearrange::Place { start: 0, length: n, rest },
            ]),
            Some(dim) => {
                let place = Rearrange::Place { start: at * n, length: n * self.size(), rest };
                Transfer::local([place, self.join(dim)])
            }
        }
    }

    fn all_gather(&self, dim: usize) -> Transfer {
        let (n, all) = (self.elements(), self.elements() * self.size());
        let schedule = schedule::all_gather(self.world, &self.flat(all));
        Transfer {
            before: vec![Rearrange::Place { start: self.at() * n, length: all, rest: 0.0 }],
            phases: vec![Phase::raw(schedule, all, [self.join(dim)])],
        }
    }

    fn all_reduce(&self, encoding: &Encoding) -> Transfer {
        let phase = Phase::all_reduce(self.world, self.elements(), encoding);
        Transfer { before: Vec::new(), phases: vec![phase] }
    }

    fn reduce_scatter(&self, dim: usize, encoding: &Encoding) -> Transfer {
        let phase = Phase::reduce_scatter(self.world, self.elements(), encoding);
        let (inner, mut before) = (encoding.inner, vec![self.split(dim)]);
        if inner > 1 {
            // Parts that go to one place in all units come first.
            before.push(Rearrange::Split { outer: self.size() / inner, parts: inner });
        }
        Transfer { before, phases: vec![phase] }
    }

    fn all_to_all(&self, from: usize, to: usize) -> Transfer {
        let mut shape = self.shape.to_vec();
        shape[to] /= self.size();
        let joined = Cut { shape: &shape, world: self.world }.join(from);
        let mut phase = self.exchange(vec![self.elements() / self.size(); self.size()]);
        phase.after.push(joined);
        Transfer { before: vec![self.split(to), self.room(&phase)], phases: vec![phase] }
    }

    fn reduce_scatter_by(&self, reduction: Reduction, dim: usize) -> Transfer {
        let mut phase = self.exchange(vec![self.elements() / self.size(); self.size()]);
        phase.after.push(Rearrange::Fold { parts: self.size(), reduction });
        Transfer { before: vec![self.split(dim), self.room(&phase)], phases: vec![phase] }
    }

    fn all_reduce_by(&self, reduction: Reduction) -> Transfer {
        let n = self.elements();
        let chunk = |rank| self.flat(n).chunk(0, self.size(), rank);
        let mut phase = self.exchange((0..self.size()).map(|rank| chunk(rank).len()).collect());
        let place = Rearrange::Place { start: chunk(self.at()).start, length: n, rest: 0.0 };
        phase.after.extend([Rearrange::Fold { parts: self.size(), reduction }, place]);
        let schedule = schedule::all_gather(self.world, &self.flat(n));
        let gather = Phase::raw(schedule, n, []);
        Transfer { before: vec![self.room(&phase)], phases: vec![phase, gather] }
    }

    /// Returns the phase that sends contiguous parts of these lengths to all ranks, and receives the same
    /// number of equal parts.
    fn exchange(&self, parts: Vec<usize>) -> Phase {
        let (n, at) = (self.elements(), self.at());
        let mine = parts[at];
        let start: usize = parts[..at].iter().sum();
        let schedule = schedule::all_to_all(self.world, &parts, &vec![mine; parts.len()]);
        let elements = n + mine * parts.len();
        let own = Rearrange::Copy { from: start..start + mine, to: n + at * mine };
        Phase::raw(schedule, elements, [own, Rearrange::Take(n..elements)])
    }

    /// Returns the rearrangement that adds room after the values, for the values that a phase receives.
    fn room(&self, phase: &Phase) -> Rearrange {
        Rearrange::Place { start: 0, length: phase.elements, rest: 0.0 }
    }
}
