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
    own: Option<Range<usize>>,
    arrived: Option<Run<Tensor>>,
}

impl Bytes {
    pub(crate) fn new(codec: &Arc<dyn Codec>, route: &Route<'_>) -> Bytes {
        let own = route.target.own(route.elements, route.ranks.world);
        Bytes {
            program: route.program(Arc::clone(codec)),
            world: route.ranks.world,
            own: (route.target == Target::Shard).then_some(own),
            arrived: None,
        }
    }

    /// Whether all ranks gave finite numbers.
    fn finite(&self, run: &Run<Tensor>) -> Finite {
        let codec = self.program.codec();
        // Sums that lose nothing more, or of which the ranks have different chunks, are as finite as
        // what was given; other sums of finite numbers may overflow, on all ranks alike.
        let told = codec.is_raw() || self.program.feedback() || self.own.is_some();
        Finite::when(run.is_finite() && (told || kernel::is_finite(run.values())))
    }
}

impl Exchange for Bytes {
    fn begin(&mut self, departure: Departure) -> Run<Tensor> {
        let Departure { mut values, mut residual, finite, address } = departure;
        if let Some(own) = &self.own {
            let mine = &mut values.as_mut()[own.clone()];
            match &mut residual {
                // The result is decoded over the residual: there this rank's chunk is the first term.
                Some(residual) => {
                    let first = &mut residual[own.clone()];
                    first.copy_from_slice(mine);
                    self.program.codec().canonicalise(first);
                    mine.fill(0.0);
                }
                // Nobody else's chunk is merged, which would canonicalise it.
                None if self.world.size() == 1 => self.program.codec().canonicalise(mine),
                None => {}
            }
        }
        let (program, residual) = (Arc::clone(&self.program), residual.map(Tensor::Owned));
        let mut run = Run::new(program, address, self.world, values, residual);
        if finite == Finite::No {
            run.mark_nonfinite();
        }
        run
    }

    fn next(&mut self, run: Run<Tensor>) -> Progress {
        let finite = self.finite(&run);
        self.arrived = Some(run);
        Progress::Done(finite)
    }

    fn commit(&mut self, outcome: Outcome) -> Result<(Tensor, Vec<f32>), Error> {
        let run = self.arrived.take().expect("a run is done before it is committed");
        if outcome == Outcome::Averaged && self.program.feedback() {
            let (mut sum, residual) = run.commit()?;
            if let Some(own) = &self.own {
                self.program.codec().canonicalise(&mut sum.as_mut()[own.clone()]);
            }
            return Ok((sum, residual.into_owned()));
        }
        let (values, residual) = run.into_parts();
        let mut residual = residual.map_or_else(Vec::new, Tensor::into_owned);
        if let Some(own) = self.own.clone().filter(|_| !residual.is_empty()) {
            residual[own].fill(0.0);
        }
        Ok((values, residual))
    }
}
