//! One bucket on its way: what the communication thread does with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_collective::{Address, Program, Run, Times};
use thinwire_wire::World;

use crate::low_rank::{Factors, LowRank};
use crate::tensor::Tensor;

/// How a bucket travels.
#[derive(Debug)]
pub(crate) enum Method {
    /// As the bytes of a codec.
    Bytes(Arc<Program>),
    /// As two thin factors.
    LowRank(Box<LowRank>),
}

/// A full bucket.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) bucket: usize,
    pub(crate) step: u64,
    pub(crate) seed: u64,
    pub(crate) values: Tensor,
    /// There where the method leaves one.
    pub(crate) residual: Option<Vec<f32>>,
    pub(crate) method: Method,
    /// Whether all gradients in it are.
    pub(crate) finite: bool,
}

/// A bucket that has arrived.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) bucket: usize,
    pub(crate) body: Body,
    pub(crate) times: Times,
    pub(crate) done: Instant,
    /// Processor time that the communication thread has used so far.
    pub(crate) cpu: Duration,
}

/// What has arrived.
#[derive(Debug)]
pub(crate) enum Body {
    /// A run that is done; with feedback it is still to be committed.
    Bytes(Run<Tensor>),
    /// Both factors; everything else is still to be done.
    LowRank { low_rank: Box<LowRank>, values: Vec<f32>, residual: Vec<f32>, factors: Factors },
}

/// A bucket whose messages are moving. Its run is driven by the group.
#[derive(Debug)]
pub(crate) enum Stage {
    Bytes { bucket: usize },
    First(Matrices),
    Second { matrices: Matrices, first: Vec<f32>, mine: Vec<f32> },
}

/// What a bucket with factors keeps while its messages move.
#[derive(Debug)]
pub(crate) struct Matrices {
    bucket: usize,
    low_rank: Box<LowRank>,
    values: Vec<f32>,
    residual: Vec<f32>,
    times: Times,
}

/// What follows a run that is done.
pub(crate) enum Follow {
    /// Another run for the same bucket.
    Run(Stage, Run<Tensor>),
    /// The bucket is there.
    Done { bucket: usize, body: Body, times: Times },
}

impl Job {
    /// The first run of a bucket.
    pub(crate) fn start(self, world: World) -> (Stage, Run<Tensor>) {
        let Job { bucket, step, seed, values, residual, method, finite } = self;
        match method {
            Method::Bytes(program) => {
                let address = address(bucket, 0, step, seed);
                let residual = residual.map(Tensor::Owned);
                let mut run = Run::new(program, address, world, values, residual);
                if !finite {
                    run.mark_nonfinite();
                }
                (Stage::Bytes { bucket }, run)
            }
            Method::LowRank(low_rank) => {
                let begin = Instant::now();
                let residual = residual.expect("a bucket with factors has a residual");
                let mut values = values.into_owned();
                let first = low_rank.project(&mut values, &residual);
                let program = Arc::clone(&low_rank.programs[0]);
                let times = Times { encode: begin.elapsed(), ..Times::default() };
                let matrices = Matrices { bucket, low_rank, values, residual, times };
                let run = Run::new(
                    program,
                    address(bucket, 0, step, seed),
                    world,
                    Tensor::Owned(first),
                    None,
                );
                (Stage::First(matrices), run)
            }
        }
    }
}

impl Stage {
    /// Goes on after the stage's run is done.
    pub(crate) fn proceed(self, run: Run<Tensor>, world: World) -> Follow {
        match self {
            Stage::Bytes { bucket } => {
                Follow::Done { bucket, times: run.times(), body: Body::Bytes(run) }
            }
            Stage::First(mut matrices) => {
                matrices.times = sum(matrices.times, run.times());
                let step = run.address().step;
                let mut first = run.into_parts().0.into_owned();
                let begin = Instant::now();
                let mine = matrices.low_rank.project_back(&matrices.values, &mut first);
                matrices.times.encode += begin.elapsed();
                let program = Arc::clone(&matrices.low_rank.programs[1]);
                let address = address(matrices.bucket, 1, step, 0);
                let run = Run::new(program, address, world, Tensor::Owned(mine.clone()), None);
                Follow::Run(Stage::Second { matrices, first, mine }, run)
            }
            Stage::Second { matrices, first, mine } => {
                let Matrices { bucket, low_rank, values, residual, times } = matrices;
                let times = sum(times, run.times());
                let second = run.into_parts().0.into_owned();
                let factors = Factors { first, mine, second };
                Follow::Done {
                    bucket,
                    body: Body::LowRank { low_rank, values, residual, factors },
                    times,
                }
            }
        }
    }
}

impl Body {
    /// Whether all ranks gave finite numbers; all ranks say the same.
    pub(crate) fn is_finite(&self) -> bool {
        use thinwire_codec::kernel::is_finite;
        match self {
            Body::Bytes(run) if run.program().codec().is_raw() => run.is_finite(),
            Body::Bytes(run) if run.program().feedback() => run.is_finite(),
            Body::Bytes(run) => is_finite(run.values()),
            Body::LowRank { factors, .. } => {
                is_finite(&factors.first) && is_finite(&factors.second)
            }
        }
    }
}

fn address(bucket: usize, phase: u32, step: u64, seed: u64) -> Address {
    Address { step, tensor: bucket as u32 * 2 + phase, seed, operation: "all_reduce" }
}

fn sum(a: Times, b: Times) -> Times {
    Times {
        encode: a.encode + b.encode,
        decode: a.decode + b.decode,
        sent_bytes: a.sent_bytes + b.sent_bytes,
        received_bytes: a.received_bytes + b.received_bytes,
    }
}
