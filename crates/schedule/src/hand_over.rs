//! The hand-over: ranks that hold the same values give them to those that do not.
//!
//! The first ranks of a world are holders, the others joiners. With at least as many holders as
//! joiners, every holder owns a chunk and sends it to every joiner. With more joiners, every joiner
//! gets a chunk of its own from a holder and passes it on to the other joiners, as in a
//! scatter followed by an all-gather (Thakur, Rabenseifner and Gropp, "Optimization of collective
//! communication operations in MPICH", section 4.1), but one partition after the other, so that both
//! halves overlap.
//!
//! Law: whatever the number of ranks, a joiner receives the values once, and no rank sends more than
//! their bytes. So the hand-over takes as long as one joiner needs to receive the values; if chunks are
//! passed on, it takes about the time of one partition longer.
//!
//! With h holders and j joiners, per rank: if holders send directly, a holder sends j/h of the bytes
//! and a joiner nothing; if chunks are passed on, a holder sends 1/h of the bytes and a joiner (j-1)/j
//! of them.

use thinwire_wire::{Rank, World};

use crate::builder::{Builder, Phase, Span};
use crate::{Schedule, Shape};

/// Largest chunk in bytes, which bounds messages.
const CHUNK_BYTES_MAX: usize = 4 << 20;

/// Smallest chunk in bytes to which more partitions may lead.
const CHUNK_BYTES_MIN: usize = 64 << 10;

/// Number of partitions from which on another one saves less than a twentieth of the time.
const PARTITIONS: usize = 20;

/// Returns the schedule after which all ranks have the values of the first `holders` ranks. The holders
/// must all have the same values, and keep them.
///
/// Values travel raw: a codec that rounds would give the joiners other values than the holders have.
///
/// # Panics
/// If there are no holders or more holders than ranks, or `shape.block` or `shape.partitions` is 0.
pub fn hand_over(holders: usize, world: World, shape: &Shape) -> Schedule {
    let roles = Roles::new(holders, world);
    let mut builder = Builder::default();
    for partition in 0..shape.partitions {
        for index in 0..roles.parts() {
            if let Some(span) = Span::chunk(shape, partition, roles.parts(), index) {
                match roles.direct() {
                    true => roles.give(&mut builder, &span, index),
                    false => roles.pass_on(&mut builder, &span, partition, index),
                }
            }
        }
    }
    builder.finish()
}

/// Returns the number of partitions in which `bytes` are handed over: enough for messages of bounded
/// size, and for joiners that pass chunks on while the next ones arrive.
///
/// # Panics
/// If there are no holders or more holders than ranks.
pub fn hand_over_partitions(holders: usize, world: World, bytes: usize) -> usize {
    let parts = Roles::new(holders, world).parts();
    let least = bytes.div_ceil(parts * CHUNK_BYTES_MAX);
    let useful = (bytes / (parts * CHUNK_BYTES_MIN)).min(PARTITIONS);
    least.max(useful).max(1)
}

/// The ranks of a world, of which the first are holders.
struct Roles {
    world: World,
    holders: usize,
    joiners: usize,
}

impl Roles {
    fn new(holders: usize, world: World) -> Roles {
        let size = world.size();
        assert!((1..=size).contains(&holders), "{holders} holders in a world of {size}");
        Roles { world, holders, joiners: size - holders }
    }

    /// Returns whether holders send everything themselves.
    const fn direct(&self) -> bool {
        self.joiners <= self.holders
    }

    /// Returns the number of chunks of a partition: one for each holder, or one for each joiner.
    fn parts(&self) -> usize {
        self.holders.max(self.joiners)
    }

    /// Returns a joiner, counted around the ring of joiners.
    const fn joiner(&self, index: usize) -> Rank {
        Rank((self.holders + index % self.joiners) as u32)
    }

    fn is_holder(&self) -> bool {
        self.world.rank().index() < self.holders
    }

    /// Sends chunk `index` from the holder with this number to all joiners.
    fn give(&self, builder: &mut Builder, span: &Span, index: usize) {
        let (me, owner) = (self.world.rank(), Rank(index as u32));
        if !self.is_holder() {
            let received = builder.recv(span, Phase::Gather, owner);
            builder.decode(received, span, None);
        } else if me == owner && self.joiners > 0 {
            let encoded = builder.encode(span, None);
            // Each holder begins with another joiner, so that nobody receives from all at once.
            for offset in 0..self.joiners {
                builder.send(encoded, span, Phase::Gather, self.joiner(index + offset));
            }
        }
    }

    /// Sends a chunk from a holder to the joiner with its index, and from there to the other joiners.
    fn pass_on(&self, builder: &mut Builder, span: &Span, partition: usize, index: usize) {
        let me = self.world.rank();
        let holder = Rank(((partition * self.joiners + index) % self.holders) as u32);
        let first = self.joiner(index);
        if self.is_holder() {
            if me == holder {
                let encoded = builder.encode(span, None);
                builder.send(encoded, span, Phase::Reduce, first);
            }
            return;
        }
        if me != first {
            let received = builder.recv(span, Phase::Gather, first);
            builder.decode(received, span, None);
            return;
        }
        let received = builder.recv(span, Phase::Reduce, holder);
        for offset in 1..self.joiners {
            builder.send(received, span, Phase::Gather, self.joiner(index + offset));
        }
        builder.decode(received, span, None);
    }
}
