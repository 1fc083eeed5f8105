//! A collective of the model as what moves: schedules, and how values lie before and after each.
//!
//! What is sent along a dimension of the mesh is flat: the part of each rank is made contiguous
//! first. Reductions other than sums go in two steps, all-to-all of the parts and all-gather of what
//! every rank has reduced, which is as many bytes as an all-reduce.

use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_model::{Collective, Reduction};
use thinwire_schedule::{self as schedule, Operation, Shape};
use thinwire_wire::{HEADER_BYTES, World};

use super::leg::Leg;
use super::reform::Reform;
use super::units::Units;

/// The bytes of so many elements by a codec.
pub type Length = fn(&dyn Codec, usize) -> usize;

/// As the codec encodes them.
pub const ENCODED: Length = |codec, elements| codec.encoded_len(elements);
/// As f32, whatever the codec.
pub const RAW: Length = |_, elements| size_of::<f32>() * elements;

/// All of a collective.
#[derive(Clone, Debug, Default)]
pub struct Transfer {
    /// What is done first.
    pub before: Vec<Reform>,
    /// What is sent.
    pub legs: Vec<Leg>,
}

impl Transfer {
    /// What one of `size` ranks does with its values of this shape. Sums travel encoded, and a
    /// codec's blocks begin anew in every rank's part.
    pub fn new(
        collective: Collective,
        shape: &[usize],
        place: (usize, usize),
        codec: &Arc<dyn Codec>,
    ) -> Transfer {
        Transfer::in_units(collective, shape, place, (codec, 1))
    }

    /// The same where every `inner` neighbours sum as it is what is then encoded between them.
    pub fn in_units(
        collective: Collective,
        shape: &[usize],
        (size, at): (usize, usize),
        (codec, inner): (&Arc<dyn Codec>, usize),
    ) -> Transfer {
        let world = World::new(at as u32, size as u32).expect("a rank is in its group");
        let cut = Cut { shape, world };
        match collective {
            Collective::Slice { dim } => Transfer::local([cut.split(dim), cut.mine()]),
            Collective::Pad { reduction, from } => cut.pad(reduction, from),
            Collective::AllGather { dim } => cut.all_gather(dim),
            Collective::AllToAll { from, to } => cut.all_to_all(from, to),
            Collective::AllReduce { reduction: Reduction::Sum } if inner > 1 => {
                cut.units(inner).all_reduce(codec)
            }
            Collective::AllReduce { reduction: Reduction::Sum } => cut.all_reduce(codec),
            Collective::AllReduce { reduction } => cut.all_reduce_by(reduction),
            Collective::ReduceScatter { reduction: Reduction::Sum, dim } if inner > 1 => {
                cut.units(inner).reduce_scatter(dim, codec)
            }
            Collective::ReduceScatter { reduction: Reduction::Sum, dim } => {
                cut.reduce_scatter(dim, codec)
            }
            Collective::ReduceScatter { reduction, dim } => cut.reduce_scatter_by(reduction, dim),
        }
    }

    /// The same of an activation or its gradient: parts that are gathered or change places travel
    /// encoded too, and what is lost is lost. What stays on its rank is not encoded, but for a part
    /// that others get as well.
    pub fn of_activation(
        collective: Collective,
        shape: &[usize],
        place: (usize, usize),
        (codec, inner): (&Arc<dyn Codec>, usize),
    ) -> Transfer {
        let mut transfer = Transfer::in_units(collective, shape, place, (codec, inner));
        for leg in &mut transfer.legs {
            leg.feedback = false;
            if let Collective::AllGather { .. } | Collective::AllToAll { .. } = collective {
                leg.codec = Arc::clone(codec);
            }
        }
        transfer
    }

    /// How many elements are kept of what its codec loses, if that is kept.
    pub fn owed(&self) -> Option<usize> {
        self.legs.iter().find_map(Leg::owed)
    }

    /// The bytes that this rank sends, headers included.
    pub fn sent_bytes(&self) -> u64 {
        self.bytes(ENCODED)
    }

    /// The same where elements are so many bytes.
    pub fn bytes(&self, length: Length) -> u64 {
        let sent = |leg: &Leg| -> usize {
            let sends = leg.schedule.tasks.iter().filter_map(|task| match task.operation {
                Operation::Send { slot, .. } => Some(leg.schedule.slots[slot.index()]),
                _ => None,
            });
            sends.map(|elements| length(&*leg.codec, elements) + HEADER_BYTES).sum()
        };
        self.legs.iter().map(sent).sum::<usize>() as u64
    }

    fn local(before: impl Into<Vec<Reform>>) -> Transfer {
        Transfer { before: before.into(), legs: Vec::new() }
    }
}

/// Values of a shape, of one rank of a group.
pub(super) struct Cut<'a> {
    shape: &'a [usize],
    world: World,
}

impl Cut<'_> {
    pub fn elements(&self) -> usize {
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

    /// The parts of a dimension made contiguous.
    pub fn split(&self, dim: usize) -> Reform {
        Reform::Split { outer: self.outer(dim), parts: self.size() }
    }

    /// Contiguous parts brought together along a dimension.
    fn join(&self, dim: usize) -> Reform {
        Reform::Join { outer: self.outer(dim), parts: self.size() }
    }

    /// This rank's part of as many elements as there are.
    fn mine(&self) -> Reform {
        let part = self.elements() / self.size();
        Reform::Take(self.at() * part..(self.at() + 1) * part)
    }

    pub fn flat(&self, elements: usize) -> Shape {
        Shape { length: elements, block: 1, partitions: 1 }
    }

    fn pad(&self, reduction: Reduction, from: Option<usize>) -> Transfer {
        let rest = reduction.identity() as f32;
        let (n, at) = (self.elements(), self.at());
        match from {
            None if at == 0 => Transfer::default(),
            None => {
                Transfer::local([Reform::Take(0..0), Reform::Place { start: 0, length: n, rest }])
            }
            Some(dim) => {
                let place = Reform::Place { start: at * n, length: n * self.size(), rest };
                Transfer::local([place, self.join(dim)])
            }
        }
    }

    fn all_gather(&self, dim: usize) -> Transfer {
        let (n, all) = (self.elements(), self.elements() * self.size());
        let schedule = schedule::all_gather(self.world, &self.flat(all));
        Transfer {
            before: vec![Reform::Place { start: self.at() * n, length: all, rest: 0.0 }],
            legs: vec![Leg::raw(schedule, all, [self.join(dim)])],
        }
    }

    fn all_reduce(&self, codec: &Arc<dyn Codec>) -> Transfer {
        let leg = Leg::all_reduce(self.world, self.elements(), codec);
        Transfer { before: Vec::new(), legs: vec![leg] }
    }

    fn reduce_scatter(&self, dim: usize, codec: &Arc<dyn Codec>) -> Transfer {
        let leg = Leg::reduce_scatter(self.world, self.elements(), codec);
        Transfer { before: vec![self.split(dim)], legs: vec![leg] }
    }

    /// The same values in units of so many neighbours.
    fn units(&self, inner: usize) -> Units<'_> {
        let (at, size) = (self.at(), self.size());
        let world = |at: usize, size: usize| {
            World::new(at as u32, size as u32).expect("a rank is in its unit")
        };
        Units { cut: self, inner: world(at % inner, inner), outer: world(at / inner, size / inner) }
    }

    fn all_to_all(&self, from: usize, to: usize) -> Transfer {
        let mut shape = self.shape.to_vec();
        shape[to] /= self.size();
        let joined = Cut { shape: &shape, world: self.world }.join(from);
        let mut leg = self.exchange(vec![self.elements() / self.size(); self.size()]);
        leg.after.push(joined);
        Transfer { before: vec![self.split(to), self.room(&leg)], legs: vec![leg] }
    }

    fn reduce_scatter_by(&self, reduction: Reduction, dim: usize) -> Transfer {
        let mut leg = self.exchange(vec![self.elements() / self.size(); self.size()]);
        leg.after.push(Reform::Fold { parts: self.size(), reduction });
        Transfer { before: vec![self.split(dim), self.room(&leg)], legs: vec![leg] }
    }

    fn all_reduce_by(&self, reduction: Reduction) -> Transfer {
        let n = self.elements();
        let chunk = |rank| self.flat(n).chunk(0, self.size(), rank);
        let mut leg = self.exchange((0..self.size()).map(|rank| chunk(rank).len()).collect());
        let place = Reform::Place { start: chunk(self.at()).start, length: n, rest: 0.0 };
        leg.after.extend([Reform::Fold { parts: self.size(), reduction }, place]);
        let schedule = schedule::all_gather(self.world, &self.flat(n));
        let gather = Leg::raw(schedule, n, []);
        Transfer { before: vec![self.room(&leg)], legs: vec![leg, gather] }
    }

    /// Contiguous parts of these lengths to all ranks; what comes is as many equal parts.
    fn exchange(&self, parts: Vec<usize>) -> Leg {
        let (n, at) = (self.elements(), self.at());
        let mine = parts[at];
        let start: usize = parts[..at].iter().sum();
        let schedule = schedule::all_to_all(self.world, &parts, &vec![mine; parts.len()]);
        let elements = n + mine * parts.len();
        let own = Reform::Copy { from: start..start + mine, to: n + at * mine };
        Leg::raw(schedule, elements, [own, Reform::Take(n..elements)])
    }

    /// Room behind the values for what a leg brings.
    fn room(&self, leg: &Leg) -> Reform {
        Reform::Place { start: 0, length: leg.elements, rest: 0.0 }
    }
}
