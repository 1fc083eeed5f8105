//! A collective of the model as what moves: schedules, and how values lie before and after each.
//!
//! What is sent along a dimension of the mesh is flat: the part of each rank is made contiguous
//! first. Reductions other than sums go in two steps, all-to-all of the parts and all-gather of what
//! every rank has reduced, which is as many bytes as an all-reduce.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Codec, Exchange};
use thinwire_collective::Program;
use thinwire_collective::operations::{partitions, preferred};
use thinwire_model::{Collective, Reduction};
use thinwire_schedule::{self as schedule, Operation, Schedule, Shape};
use thinwire_wire::{HEADER_BYTES, Rank, World};

/// How values are laid out anew.
#[derive(Clone, Debug, PartialEq)]
pub enum Reform {
    /// `[outer, parts, inner]` becomes `[parts, outer, inner]`.
    Split {
        /// The elements before the dimension.
        outer: usize,
        /// The parts of the dimension.
        parts: usize,
    },
    /// `[parts, outer, inner]` becomes `[outer, parts, inner]`.
    Join {
        /// The elements before the dimension.
        outer: usize,
        /// The parts of the dimension.
        parts: usize,
    },
    /// Only these elements stay.
    Take(Range<usize>),
    /// All elements go to this place among so many.
    Place {
        /// Where they begin.
        start: usize,
        /// How many elements there are then.
        length: usize,
        /// What all others are.
        rest: f32,
    },
    /// Elements are copied to a place behind them.
    Copy {
        /// Which.
        from: Range<usize>,
        /// Where their copy begins.
        to: usize,
    },
    /// Equal parts become one.
    Fold {
        /// How many parts.
        parts: usize,
        /// How they are brought together.
        reduction: Reduction,
    },
}

/// One schedule, and what becomes of the values after it.
#[derive(Clone, Debug)]
pub struct Leg {
    /// What is sent, by the ranks of the group, numbered from 0.
    pub schedule: Schedule,
    /// How many values it runs on.
    pub elements: usize,
    /// What they are encoded with.
    pub codec: Arc<dyn Codec>,
    /// What is done afterwards.
    pub after: Vec<Reform>,
}

/// All of a collective.
#[derive(Clone, Debug, Default)]
pub struct Transfer {
    /// What is done first.
    pub before: Vec<Reform>,
    /// What is sent.
    pub legs: Vec<Leg>,
}

impl Transfer {
    /// What one of `size` ranks does with its values of this shape. Sums travel encoded; parts are
    /// cut at other places than a codec's blocks, so that they need one without.
    pub fn new(
        collective: Collective,
        shape: &[usize],
        (size, at): (usize, usize),
        codec: &Arc<dyn Codec>,
    ) -> Transfer {
        let world = World::new(at as u32, size as u32).expect("a rank is in its group");
        let cut = Cut { shape, world };
        match collective {
            Collective::Slice { dim } => Transfer::local([cut.split(dim), cut.mine()]),
            Collective::Pad { reduction, from } => cut.pad(reduction, from),
            Collective::AllGather { dim } => cut.all_gather(dim),
            Collective::AllToAll { from, to } => cut.all_to_all(from, to),
            Collective::AllReduce { reduction: Reduction::Sum } => cut.all_reduce(codec),
            Collective::AllReduce { reduction } => cut.all_reduce_by(reduction),
            Collective::ReduceScatter { reduction: Reduction::Sum, dim } => {
                cut.reduce_scatter(dim, codec)
            }
            Collective::ReduceScatter { reduction, dim } => cut.reduce_scatter_by(reduction, dim),
        }
    }

    /// The bytes that this rank sends, headers included.
    pub fn sent_bytes(&self) -> u64 {
        let sent = |leg: &Leg| -> usize {
            let sends = leg.schedule.tasks.iter().filter_map(|task| match task.operation {
                Operation::Send { slot, .. } => Some(leg.schedule.slots[slot.index()]),
                _ => None,
            });
            sends.map(|elements| leg.codec.encoded_len(elements) + HEADER_BYTES).sum()
        };
        self.legs.iter().map(sent).sum::<usize>() as u64
    }

    fn local(before: impl Into<Vec<Reform>>) -> Transfer {
        Transfer { before: before.into(), legs: Vec::new() }
    }
}

impl Leg {
    fn raw(schedule: Schedule, elements: usize, after: impl Into<Vec<Reform>>) -> Leg {
        Leg { schedule, elements, codec: thinwire_codec::raw(), after: after.into() }
    }

    /// The leg as a program of the ranks of the whole job that are the group's.
    pub fn program(&self, members: &[Rank]) -> Program {
        let mut schedule = self.schedule.clone();
        for task in &mut schedule.tasks {
            match &mut task.operation {
                Operation::Send { to: peer, .. } | Operation::Recv { from: peer, .. } => {
                    *peer = members[peer.index()];
                }
                Operation::Encode { .. } | Operation::Merge { .. } | Operation::Decode { .. } => {}
            }
        }
        Program::new(schedule, self.elements, Arc::clone(&self.codec))
    }
}

/// Values of a shape, of one rank of a group.
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

    /// The parts of a dimension made contiguous.
    fn split(&self, dim: usize) -> Reform {
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

    fn flat(&self, elements: usize) -> Shape {
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
        let n = self.elements();
        let shape = Shape { length: n, block: codec.block(), partitions: partitions(n) };
        let algorithm = preferred(codec.exchange(), self.world, n);
        let schedule = schedule::all_reduce(algorithm, self.world, &shape);
        let leg = Leg { codec: Arc::clone(codec), ..Leg::raw(schedule, n, []) };
        Transfer { before: Vec::new(), legs: vec![leg] }
    }

    fn reduce_scatter(&self, dim: usize, codec: &Arc<dyn Codec>) -> Transfer {
        let n = self.elements();
        let schedule = schedule::reduce_scatter(self.world, &self.flat(n));
        let mut leg = Leg::raw(schedule, n, [self.mine()]);
        if codec.block() == 1 && codec.exchange() == Exchange::Summable {
            leg.codec = Arc::clone(codec);
        }
        Transfer { before: vec![self.split(dim)], legs: vec![leg] }
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

impl Reform {
    /// The values, laid out anew.
    pub fn apply(&self, values: Vec<f32>) -> Vec<f32> {
        match self {
            Reform::Split { outer, parts } => swap(&values, *outer, *parts),
            Reform::Join { outer, parts } => swap(&values, *parts, *outer),
            Reform::Take(range) => values[range.clone()].to_vec(),
            Reform::Place { start, length, rest } => {
                let mut all = vec![*rest; *length];
                all[*start..start + values.len()].copy_from_slice(&values);
                all
            }
            Reform::Copy { from, to } => {
                let mut values = values;
                values.copy_within(from.clone(), *to);
                values
            }
            Reform::Fold { parts, reduction } => fold(&values, *parts, *reduction),
        }
    }
}

/// `[a, b, rest]` becomes `[b, a, rest]`.
fn swap(values: &[f32], a: usize, b: usize) -> Vec<f32> {
    if a == 1 || b == 1 || values.is_empty() {
        return values.to_vec();
    }
    let rest = values.len() / (a * b);
    let mut swapped = Vec::with_capacity(values.len());
    for j in 0..b {
        for i in 0..a {
            swapped.extend_from_slice(&values[(i * b + j) * rest..][..rest]);
        }
    }
    swapped
}

fn fold(values: &[f32], parts: usize, reduction: Reduction) -> Vec<f32> {
    let length = values.len() / parts;
    let combined = |place: usize| {
        let parts = (0..parts).map(|part| f64::from(values[part * length + place]));
        parts.fold(reduction.identity(), |a, b| reduction.combine(a, b)) as f32
    };
    (0..length).map(combined).collect()
}
