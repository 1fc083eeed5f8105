//! Gradients as the bytes of a codec.

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use thinwire_codec::{Codec, Finite};
use thinwire_collective::{Buffer, Run};
use thinwire_device::{Change, Device};
use thinwire_wire::World;

use crate::buffer::Tensor;
use crate::exchange::route::{Route, Target};
use crate::exchange::{Departure, Exchange, Programs, Progress, is_finite, look};
use crate::{Error, Outcome};

/// The exchange of a bucket by a codec of bytes.
#[derive(Debug)]
pub(crate) struct Bytes {
    programs: Programs,
    world: World,
    /// Of a sharded bucket, this rank's chunk, which no rank encodes.
    own: Option<Own>,
    arrived: Option<Run<Tensor>>,
    /// Whether the sums of this step were looked at.
    is_checked: bool,
    waker: Waker,
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
            programs: Programs::new(route.program(Arc::clone(codec))),
            world,
            own: (route.target == Target::Shard).then_some(own),
            arrived: None,
            is_checked: false,
            waker: Waker::noop().clone(),
        }
    }

    /// Completes this rank's chunk of a result with feedback: none of it was encoded, so it has no
    /// residual.
    fn complete(&self, own: &Own, sum: &mut Tensor, residual: &mut Tensor) {
        let (codec, elements) = (self.programs.on_host.codec(), || own.elements.clone());
        if own.in_unit {
            residual.change(elements(), Change::Canonicalise(Arc::clone(codec)));
            sum.change(elements(), Change::Add(residual.source(elements())));
            residual.change(elements(), Change::Fill(0.0));
        }
        sum.change(elements(), Change::Canonicalise(Arc::clone(codec)));
    }

    /// Returns whether sums are as finite as what the ranks gave: those that lose nothing more, and
    /// those of which the ranks have different chunks. Other sums of finite numbers may overflow, on
    /// all ranks alike.
    fn keeps_finite(&self) -> bool {
        self.programs.on_host.codec().is_raw()
            || self.programs.on_host.feedback()
            || self.own.is_some()
    }
}

impl Exchange for Bytes {
    fn begin(&mut self, departure: Departure) -> Run<Tensor> {
        let Departure { mut values, mut residual, finite, waker, address, .. } = departure;
        if let (Some(own), Some(first)) = (&self.own, &mut residual) {
            let elements = || own.elements.clone();
            match own.in_unit {
                // The unit's sum is added to the result when it is complete.
                true => first.change(elements(), Change::Fill(0.0)),
                // The result is decoded over the residual: there this rank's chunk is the first term.
                false => {
                    let codec = self.programs.on_host.codec();
                    first.change(elements(), Change::Copy(values.source(elements())));
                    first.change(elements(), Change::Canonicalise(Arc::clone(codec)));
                    values.change(elements(), Change::Fill(0.0));
                }
            }
        }
        let program = self.programs.of(&values);
        (self.is_checked, self.waker) = (false, waker);
        let mut run = Run::new(program, address, self.world, values, residual);
        if finite == Finite::No {
            run.mark_nonfinite();
        }
        run
    }

    fn runs_on(&self, device: &dyn Device) -> bool {
        device.encodes_with(self.programs.on_host.codec().as_ref())
    }

    fn sent_bytes(&mut self) -> u64 {
        self.programs.on_host.sent_bytes()
    }

    fn next(&mut self, mut run: Run<Tensor>) -> Progress {
        let may_overflow = run.is_finite() && !self.keeps_finite();
        if may_overflow && !std::mem::replace(&mut self.is_checked, true) {
            let (mut finite, mut checks) = (Finite::Yes, Vec::new());
            look(run.measure(&self.waker), is_finite, &mut finite, &mut checks);
            if finite == Finite::No {
                run.mark_nonfinite();
            }
            if !checks.is_empty() {
                run.check(checks);
                return Progress::Run(run);
            }
        }
        let finite = Finite::from(run.is_finite());
        self.arrived = Some(run);
        Progress::Done(finite)
    }

    fn reclaim(&mut self, run: Run<Tensor>) {
        self.arrived = Some(run);
    }

    fn commit(&mut self, outcome: Outcome) -> Result<(Tensor, Tensor), Error> {
        let run = self.arrived.take().expect("a run is done before it is committed");
        if outcome == Outcome::Averaged && self.programs.on_host.feedback() {
            let (mut sum, mut residual) = run.commit()?;
            if let Some(own) = &self.own {
                self.complete(own, &mut sum, &mut residual);
            }
            return Ok((sum, residual));
        }
        let (mut values, residual) = run.into_parts();
        let mut residual = residual.unwrap_or_default();
        if let Some(own) = &self.own {
            let elements = own.elements.clone();
            if self.programs.on_host.feedback() {
                residual.change(elements, Change::Fill(0.0));
            } else if !own.merges {
                // Nobody's encoding was merged, which would have canonicalised it.
                values.change(
                    elements,
                    Change::Canonicalise(Arc::clone(self.programs.on_host.codec())),
                );
            }
        }
        Ok((values, residual))
    }
}
