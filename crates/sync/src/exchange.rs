//! One bucket on its way: what the communication thread does with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_codec::Finite;
use thinwire_collective::{Address, Run, Times};
use thinwire_wire::World;
use thinwire_wire::random::Key;

use crate::integers::Integers;
use crate::low_rank::{Factors, LowRank};
use crate::method::Method;
use crate::tensor::Tensor;
use crate::turns::Turns;

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
    /// The sum of one factor, and in `values` the new residual.
    Turns { turns: Box<Turns>, values: Vec<f32>, residual: Vec<f32>, sum: Vec<f32> },
    /// The sum of integers.
    Integers { integers: Box<Integers>, run: Run<Tensor> },
}

/// A bucket whose messages are moving. Its run is driven by the group.
#[derive(Debug)]
pub(crate) enum Stage {
    Bytes { bucket: usize },
    First(Matrices<LowRank>),
    Second { matrices: Matrices<LowRank>, first: Vec<f32>, mine: Vec<f32> },
    Only(Matrices<Turns>),
    Integers { bucket: usize, integers: Box<Integers>, rounding: Duration },
}

/// What a bucket with factors keeps while its messages move.
#[derive(Debug)]
pub(crate) struct Matrices<F> {
    bucket: usize,
    factors: Box<F>,
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
        let address = address(bucket, 0, step, seed);
        match method {
            Method::Bytes(program) => {
                let residual = residual.map(Tensor::Owned);
                let mut run = Run::new(program, address, world, values, residual);
                if !finite {
                    run.mark_nonfinite();
                }
                (Stage::Bytes { bucket }, run)
            }
            Method::LowRank(factors) => {
                let mut matrices = Matrices::new(bucket, factors, values, residual);
                let message = matrices.project(LowRank::project);
                let program = Arc::clone(&matrices.factors.programs[0]);
                (Stage::First(matrices), Run::new(program, address, world, message, None))
            }
            Method::Turns(factors) => {
                let mut matrices = Matrices::new(bucket, factors, values, residual);
                let message = matrices.project(Turns::project);
                let program = matrices.factors.program();
                (Stage::Only(matrices), Run::new(program, address, world, message, None))
            }
            Method::Integers(mut integers) => {
                let (begin, mut values) = (Instant::now(), values);
                let key = Key { seed, step, tensor: address.tensor };
                let (program, finite) = integers.round(values.as_mut(), key);
                let rounding = begin.elapsed();
                let mut run = Run::new(program, address, world, values, None);
                if finite == Finite::No {
                    run.mark_nonfinite();
                }
                (Stage::Integers { bucket, integers, rounding }, run)
            }
        }
    }
}

impl<F> Matrices<F> {
    fn new(bucket: usize, factors: Box<F>, values: Tensor, residual: Option<Vec<f32>>) -> Self {
        let residual = residual.expect("a bucket with factors has a residual");
        Matrices { bucket, factors, values: values.into_owned(), residual, times: Times::default() }
    }

    /// The first message, and how long it took to make.
    fn project(&mut self, project: impl Fn(&F, &mut [f32], &[f32]) -> Vec<f32>) -> Tensor {
        let begin = Instant::now();
        let message = project(&self.factors, &mut self.values, &self.residual);
        self.times.encode += begin.elapsed();
        Tensor::Owned(message)
    }
}

impl Stage {
    /// Goes on after the stage's run is done.
    pub(crate) fn proceed(self, run: Run<Tensor>, world: World) -> Follow {
        let times = run.times();
        match self {
            Stage::Bytes { bucket } => Follow::Done { bucket, times, body: Body::Bytes(run) },
            Stage::First(mut matrices) => {
                matrices.times = sum(matrices.times, times);
                let step = run.address().step;
                let mut first = run.into_parts().0.into_owned();
                let begin = Instant::now();
                let mine = matrices.factors.project_back(&matrices.values, &mut first);
                matrices.times.encode += begin.elapsed();
                let program = Arc::clone(&matrices.factors.programs[1]);
                let address = address(matrices.bucket, 1, step, 0);
                let run = Run::new(program, address, world, Tensor::Owned(mine.clone()), None);
                Follow::Run(Stage::Second { matrices, first, mine }, run)
            }
            Stage::Second { matrices, first, mine } => {
                let Matrices { bucket, factors: low_rank, values, residual, .. } = matrices;
                let times = sum(matrices.times, times);
                let second = run.into_parts().0.into_owned();
                let factors = Factors { first, mine, second };
                let body = Body::LowRank { low_rank, values, residual, factors };
                Follow::Done { bucket, body, times }
            }
            Stage::Only(matrices) => {
                let Matrices { bucket, factors: turns, values, residual, .. } = matrices;
                let times = sum(matrices.times, times);
                let sum = run.into_parts().0.into_owned();
                Follow::Done { bucket, body: Body::Turns { turns, values, residual, sum }, times }
            }
            Stage::Integers { bucket, integers, rounding } => {
                let times = Times { encode: times.encode + rounding, ..times };
                Follow::Done { bucket, body: Body::Integers { integers, run }, times }
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
            // A codec without words for a NaN tells; sums of finite numbers may overflow.
            Body::Bytes(run) => run.is_finite() && is_finite(run.values()),
            Body::LowRank { factors, .. } => {
                is_finite(&factors.first) && is_finite(&factors.second)
            }
            Body::Turns { sum, .. } => is_finite(sum),
            Body::Integers { run, .. } => run.is_finite(),
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
