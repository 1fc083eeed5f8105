//! IntSGD on a bucket: integers under scales that all ranks know.
//!
//! Every tensor of a bucket has a scale, the same on all ranks, which follows its averages. The
//! first step, before there is one, travels as f32; so does a step without a usable scale. The
//! algebra is `thinwire_codec`'s; here are the places.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Finite, IntSgd, kernel};
use thinwire_collective::Program;
use thinwire_wire::World;
use thinwire_wire::random::Key;

/// The scales of a bucket, and the programs that carry it.
#[derive(Debug)]
pub(crate) struct Integers {
    codec: IntSgd,
    world: World,
    /// The elements of each tensor.
    tensors: Vec<Range<usize>>,
    /// Roughly the root of the mean square of each tensor's averages; 0 for none yet.
    scales: Vec<f32>,
    /// What 1 stands for in this step, by tensor; empty if it travels as f32.
    units: Vec<f32>,
    raw: Arc<Program>,
    integers: Arc<Program>,
}

/// Scales beyond these have units with which f32 overflows or vanishes.
const USABLE: std::ops::RangeInclusive<f32> = f32::from_bits(27 << 23)..=f32::from_bits(227 << 23);

impl Integers {
    /// Without scales. `program` makes what carries the bucket by a codec.
    pub(crate) fn new(
        codec: IntSgd,
        tensors: Vec<Range<usize>>,
        world: World,
        program: impl Fn(Arc<dyn thinwire_codec::Codec>) -> Arc<Program>,
    ) -> Integers {
        Integers {
            codec,
            world,
            scales: vec![0.0; tensors.len()],
            units: Vec::new(),
            tensors,
            raw: program(thinwire_codec::raw()),
            integers: program(codec.integers()),
        }
    }

    /// Turns values into what travels; says by which program, and whether all were finite. Random
    /// numbers are those of `key`, and the rank's own.
    pub(crate) fn round(&mut self, values: &mut [f32], key: Key) -> (Arc<Program>, Finite) {
        self.units = self.next_units();
        if self.units.is_empty() {
            return (Arc::clone(&self.raw), Finite::when(kernel::is_finite(values)));
        }
        let ranks = self.world.size();
        let limit = self.codec.limit(ranks).expect("start has refused so many ranks");
        let mut finite = Finite::Yes;
        for (elements, unit) in self.tensors.iter().zip(&self.units) {
            let start = (elements.start as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let key = Key { seed: key.seed ^ start, ..key }.for_rank(self.world.rank().0);
            let values = &mut values[elements.clone()];
            finite = finite.and(self.codec.round(values, *unit, limit, key));
        }
        (Arc::clone(&self.integers), finite)
    }

    /// Turns the sum over ranks into averages, from which the scales go on.
    pub(crate) fn commit(&mut self, sum: &mut [f32]) {
        for (elements, unit) in self.tensors.iter().zip(&self.units) {
            sum[elements.clone()].iter_mut().for_each(|x| *x *= unit);
        }
        for (elements, scale) in self.tensors.iter().zip(&mut self.scales) {
            *scale = IntSgd::follow(*scale, &sum[elements.clone()]);
        }
    }

    /// A tensor without a scale of its own, since it has been zero so far, takes that of the bucket.
    fn next_units(&self) -> Vec<f32> {
        let of_bucket = self.scale_of_bucket();
        if !USABLE.contains(&of_bucket) || self.scales.iter().any(|scale| scale > USABLE.end()) {
            return Vec::new();
        }
        let usable = |scale: &f32| if scale < USABLE.start() { of_bucket } else { *scale };
        let unit = |scale: &f32| self.codec.unit(usable(scale), self.world.size());
        self.scales.iter().map(unit).collect()
    }

    fn scale_of_bucket(&self) -> f32 {
        let squares = self.tensors.iter().zip(&self.scales);
        let sum: f64 = squares.map(|(at, s)| at.len() as f64 * f64::from(*s).powi(2)).sum();
        let elements: usize = self.tensors.iter().map(ExactSizeIterator::len).sum();
        (sum / elements.max(1) as f64).sqrt() as f32
    }

    /// The scale of a tensor: what a checkpoint must hold.
    pub(crate) fn scale(&self, tensor: usize) -> f32 {
        self.scales[tensor]
    }

    /// Goes on from a tensor's scale in a checkpoint; one that is no scale is none.
    pub(crate) fn load(&mut self, tensor: usize, scale: f32) {
        self.scales[tensor] = if scale.is_finite() && scale > 0.0 { scale } else { 0.0 };
    }
}
