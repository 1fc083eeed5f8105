//! Gradients as the bytes of a codec.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Codec, Finite, kernel};
use thinwire_collective::{Program, Run};
use thinwire_wire::World;

use crate::buffer::Tensor;
use crate::exchange::route::{Route, Target};
use crate::exchange::{Departure, Exchange, Progress};
use crate::{Error, Outcome};

/// The exchange of a bucket by a codec of bytes.
#[derive(Debug)]
pub(crate) struct Bytes {
    program: Arc<Program>,
    world: World,
    /// Of a sharded bucket, this rank's chunk, which no rank encodes.
    own: Option<Own>,
    arrived: Option<Run<Tensor>>,
}

/// The chunk of a sharded bucket that this rank sums.
#[derive(Clone, Debug)]
struct Own {
    elements: Range<usize>,
    /// Whether ranks of this rank's unit add to it, unencoded, before the others do.
    in_unit: bool,
    /// Whether encodings of other ranks are added to it.
    merges: bool,
}

impl Bytes {
    pub(crate) fn new(codec: &Arc<dyn Codec>, route: &Route<'_>) -> Bytes {
        let (world, unit) = (route.ranks.world, route.summation.unit);
        let own = Own {
            elements: route.target.own(route.elements, world, route.summation),
            in_unit: unit > 1,
            merges: world.size() > unit,
        };
        Bytes {
            program: route.program(Arc::clone(codec)),
            world,
            own: (route.target == Target::Shard).then_some(own),
            arrived: None,
        }
    }

    /// Completes this rank's chunk of a result with feedback: nothing of it was encoded, so nothing is owed.
    fn complete(&self, own: &Own, sum: &mut [f32], residual: &mut [f32]) {
        let codec = self.program.codec();
        let (sum, unit) = (&mut sum[own.elements.clone()], &mut residual[own.elements.clone()]);
        if own.in_unit {
            codec.canonicalise(unit);
            kernel::add(sum, unit);
            unit.fill(0.0);
        }
        codec.canonicalise(sum);
    }

    /// Whether all ranks gave finite numbers.
    fn finite(&self, run: &Run<Tensor>) -> Finite {
        let codec = self.program.codec();
        // Sums that lose nothing more, or of which the ranks have different chunks, are as finite as
        // what was given; other sums of finite numbers may overflow, on all ranks alike.
        let told = codec.is_raw() || self.program.feedback() || self.own.is_some();
        Finite::from(run.is_finite() && (told || kernel::is_finite(run.values())))
    }
}

impl Exchange for Bytes {
    fn begin(&mut self, departure: Departure) -> Run<Tensor> {
        let Departure { mut values, mut residual, finite, address } = departure;
        if let (Some(own), Some(residual)) = (&self.own, &mut residual) {
            let first = &mut residual[own.elements.clone()];
            match own.in_unit {
                // The unit's sum is added to the result when it is complete.
                true => first.fill(0.0),
                // The result is decoded over the residual: there this rank's chunk is the first term.
                false => {
                    let mine = &mut values.as_mut()[own.elements.clone()];
                    first.copy_from_slice(mine);
                    self.program.codec().canonicalise(first);
                    mine.fill(0.0);
                }
            }
        }
        let (program, residual) = (Arc::clone(&self.program), residual.map(Tensor::Owned));
        let mut run = Run::new(program, address, self.world, values, residual);
        if finite == Finite::No {
            run.mark_nonfinite();
        }
        run
    }

    fn sent_bytes(&mut self) -> u64 {
        self.program.sent_bytes()
    }

    fn next(&mut self, run: Run<Tensor>) -> Progress {
        let finite = self.finite(&run);
        self.arrived = Some(run);
        Progress::Done(finite)
    }

    fn reclaim(&mut self, run: Run<Tensor>) {
        self.arrived = Some(run);
    }

    fn commit(&mut self, outcome: Outcome) -> Result<(Tensor, Vec<f32>), Error> {
        let run = self.arrived.take().expect("a run is done before it is committed");
        if outcome == Outcome::Averaged && self.program.feedback() {
            let (mut sum, mut residual) = run.commit()?;
            if let Some(own) = &self.own {
                self.complete(own, sum.as_mut(), residual.as_mut());
            }
            return Ok((sum, residual.into_owned()));
        }
        let (mut values, residual) = run.into_parts();
        let mut residual = residual.map_or_else(Vec::new, Tensor::into_owned);
        if let Some(own) = &self.own {
            let elements = own.elements.clone();
            match residual.get_mut(elements.clone()) {
                Some(owed) => owed.fill(0.0),
                // Nobody's encoding was merged, which would have canonicalised it.
                None if !own.merges => {
                    self.program.codec().canonicalise(&mut values.as_mut()[elements]);
                }
                None => {}
            }
        }
        Ok((values, residual))
    }
}
