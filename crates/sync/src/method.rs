//! How one bucket travels: its codec, bound to what the codec must know of the bucket.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Choice, Codec, Rounds};
use thinwire_collective::Program;
use thinwire_schedule::{Algorithm, Shape, all_reduce};
use thinwire_wire::World;
use thinwire_wire::random::Key;

use crate::integers::Integers;
use crate::low_rank::LowRank;
use crate::turns::Turns;

/// How a bucket travels.
#[derive(Debug)]
pub(crate) enum Method {
    /// As the bytes of a codec.
    Bytes(Arc<Program>),
    /// As two thin factors.
    LowRank(Box<LowRank>),
    /// As one of two thin factors.
    Turns(Box<Turns>),
    /// As integers.
    Integers(Box<Integers>),
}

/// What a method is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    /// The members of the bucket, as elements of it and as rows and columns.
    pub(crate) matrices: &'a [(Range<usize>, (usize, usize))],
    pub(crate) elements: usize,
    pub(crate) algorithm: Algorithm,
    pub(crate) partitions: usize,
    pub(crate) world: World,
    /// What factors start from.
    pub(crate) key: Key,
}

impl Method {
    pub(crate) fn new(choice: Choice, route: &Route<'_>) -> Method {
        let Route { matrices, algorithm, world, key, .. } = *route;
        match choice {
            Choice::Bytes(codec) => Method::Bytes(route.program(codec)),
            Choice::Integers(codec) => {
                let tensors = matrices.iter().map(|(elements, _)| elements.clone()).collect();
                let program = |codec| route.program(codec);
                Method::Integers(Box::new(Integers::new(codec, tensors, world, program)))
            }
            Choice::LowRank(codec) => match codec.rounds() {
                Rounds::Two => {
                    let low_rank = LowRank::new(codec, matrices, algorithm, world, key);
                    Method::LowRank(Box::new(low_rank))
                }
                Rounds::One => {
                    Method::Turns(Box::new(Turns::new(codec, matrices, algorithm, world, key)))
                }
            },
        }
    }

    /// Whether it leaves a residual.
    pub(crate) fn feedback(&self) -> bool {
        match self {
            Method::Bytes(program) => program.feedback(),
            Method::LowRank(_) | Method::Turns(_) => true,
            Method::Integers(_) => false,
        }
    }

    /// What a restart must know of a member of the bucket beside what is owed, and what it is called.
    pub(crate) fn state(&self, member: usize) -> Option<(&'static str, Vec<f32>)> {
        match self {
            Method::Bytes(_) => None,
            Method::LowRank(low_rank) => Some((FACTOR, low_rank.factor(member)?.to_vec())),
            Method::Turns(turns) => Some((FACTOR, turns.factor(member)?)),
            Method::Integers(integers) => Some((SCALE, vec![integers.scale(member)])),
        }
    }

    /// Goes on from what [`Method::state`] gave, of the same length.
    pub(crate) fn load(&mut self, member: usize, state: &[f32]) {
        match self {
            Method::Bytes(_) => {}
            Method::LowRank(low_rank) => low_rank.load(member, state),
            Method::Turns(turns) => turns.load(member, state),
            Method::Integers(integers) => integers.load(member, state[0]),
        }
    }
}

impl Route<'_> {
    /// What carries the bucket by a codec.
    fn program(&self, codec: Arc<dyn Codec>) -> Arc<Program> {
        let partitions = self.partitions.clamp(1, self.elements.max(1));
        let shape = Shape { length: self.elements, block: codec.block(), partitions };
        let schedule = all_reduce(self.algorithm, self.world, &shape);
        Arc::new(Program::new(schedule, self.elements, codec))
    }
}

const FACTOR: &str = "factor";
const SCALE: &str = "scale";
