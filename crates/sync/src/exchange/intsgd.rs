//! IntSGD on a bucket: integers under scales that all ranks know.
//!
//! Every tensor of a bucket has a scale, the same on all ranks, which follows its averages. The
//! first step, before there is one, travels as f32; so does a step without a usable scale. The
//! algebra is `thinwire_codec`'s; here are the ranges of elements.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Finite, IntSgd, kernel};
use thinwire_collective::{Program, Run};
use thinwire_wire::World;
use thinwire_wire::random::Key;

use crate::buffer::Tensor;
use crate::exchange::route::Route;
use crate::exchange::{Departure, Exchange, Progress};
use crate::{Error, Outcome};

/// The name of a tensor's scale in a checkpoint.
const SCALE: &str = "scale";

/// The scales of a bucket, and the programs that carry it.
#[derive(Debug)]
pub(crate) struct Integers {
    codec: IntSgd,
    world: World,
    /// The elements of each tensor.
    tensors: Vec<Range<usize>>,
    /// Roughly the root of the mean square of each tensor's averages; 0 for none yet.
    scales: Vec<f32>,
    /// The value of 1 in this step, by tensor; empty if the step travels as f32.
    units: Vec<f32>,
    raw: Arc<Program>,
    integers: Arc<Program>,
    arrived: Option<Run<Tensor>>,
}

/// Scales beyond these have units with which f32 overflows or vanishes.
const USABLE: std::ops::RangeInclusive<f32> = f32::from_bits(27 << 23)..=f32::from_bits(227 << 23);

impl Integers {
    /// Returns the exchange of a bucket, without scales so far.
    pub(crate) fn new(codec: IntSgd, route: &Route<'_>) -> Integers {
        let tensors: Vec<_> = route.matrices.iter().map(|(elements, _)| elements.clone()).collect();
        Integers {
            codec,
            world: route.ranks.world,
            scales: vec![0.0; tensors.len()],
            units: Vec::new(),
            tensors,
            raw: route.program_of_whole(thinwire_codec::raw()),
            integers: route.program_of_whole(codec.integers()),
            arrived: None,
        }
    }

    /// Rounds values to what travels; returns the program that carries it, and whether all values were
    /// finite. Random numbers are those of `key`, and the rank's own.
    fn round(&mut self, values: &mut [f32], key: Key) -> (Arc<Program>, Finite) {
        self.units = self.next_units();
        if self.units.is_empty() {
            return (Arc::clone(&self.raw), Finite::from(kernel::is_finite(values)));
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

    /// Returns the units of the next step. A tensor without a scale, because it has been zero so far,
    /// takes that of the bucket.
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
}

impl Exchange for Integers {
    fn begin(&mut self, departure: Departure) -> Run<Tensor> {
        let Departure { mut values, address, .. } = departure;
        let key = Key { seed: address.seed, step: address.step, tensor: address.tensor };
        let (program, finite) = self.round(values.as_mut(), key);
        let mut run = Run::new(program, address, self.world, values, None);
        if finite == Finite::No {
            run.mark_nonfinite();
        }
        run
    }

    fn sent_bytes(&mut self) -> u64 {
        if self.next_units().is_empty() { &self.raw } else { &self.integers }.sent_bytes()
    }

    fn next(&mut self, run: Run<Tensor>) -> Progress {
        let finite = Finite::from(run.is_finite());
        self.arrived = Some(run);
        Progress::Done(finite)
    }

    fn reclaim(&mut self, run: Run<Tensor>) {
        self.arrived = Some(run);
    }

    /// Turns the sum of integers into averages, from which the scales continue.
    fn commit(&mut self, outcome: Outcome) -> Result<(Tensor, Tensor), Error> {
        let run = self.arrived.take().expect("a run is done before it is committed");
        let mut sum = run.into_parts().0;
        if outcome == Outcome::Averaged {
            let values = sum.as_mut();
            for (elements, unit) in self.tensors.iter().zip(&self.units) {
                values[elements.clone()].iter_mut().for_each(|x| *x *= unit);
            }
            for (elements, scale) in self.tensors.iter().zip(&mut self.scales) {
                *scale = IntSgd::follow(*scale, &values[elements.clone()]);
            }
        }
        Ok((sum, Tensor::default()))
    }

    fn state(&self, tensor: usize) -> Option<(&'static str, Vec<f32>)> {
        Some((SCALE, vec![self.scales[tensor]]))
    }

    /// Loads a scale; one that is not usable counts as missing.
    fn load(&mut self, tensor: usize, state: &[f32]) {
        let scale = state[0];
        self.scales[tensor] = if scale.is_finite() && scale > 0.0 { scale } else { 0.0 };
    }
}
