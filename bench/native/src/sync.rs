//! `thinwire-bench sync`: the time that an iteration waits for its gradients, by method.
//!
//! The tensors are those of a known model; its arithmetic is a clock, as where a GPU does it: a
//! tensor is ready when its share of the compute time has passed. The time to synchronise is the
//! time of a step less that of computing alone, so what is hidden behind backward counts nothing.
//! Each method is measured in the same group of processes, on the same links; a step takes what
//! its slowest rank takes; medians after a warm-up.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use thinwire_job::{Meeting, Place};
use thinwire_sync::{Assignment, Plan, Synchronizer, median};

use crate::job::Flags;
use crate::method::Method;
use crate::replay::{Computing, Replay};
use crate::{cores, print_json, shapes};

/// Steps in which `auto` measures and memory is touched for the first time.
const WARM_UP: u64 = 2;

/// Time that an iteration waits for its gradients, by method.
#[derive(clap::Args)]
pub struct Args {
    /// Model whose tensors are exchanged: any name that `thinwire model show` knows, or one of gpt, lstm,
    /// cnn, layer and many, which are those of the benchmarks of DDP
    #[arg(long, default_value = "vgg19")]
    model: String,
    /// Time that an iteration computes, in milliseconds
    #[arg(long, default_value_t = 160, value_name = "MS")]
    compute: u64,
    /// Source of the computing time: a clock, or this rank's core
    #[arg(long, value_enum, default_value_t = Computing::Clock)]
    computing: Computing,
    /// Methods by name, or spelled out: a codec, and after slashes an algorithm, tensor or bucket, whole or cut, serial
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "none,compress,overlap,pipeline,bulk,planned,auto,ring-dgc"
    )]
    methods: Vec<Method>,
    /// Steps that are timed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    steps: u64,
    /// Also print one JSON object per step, as it ends
    #[arg(long)]
    every_step: bool,
    #[command(flatten)]
    job: Flags,
}

#[derive(Serialize)]
struct Line {
    method: String,
    model: String,
    world: u32,
    network: String,
    compute_s: f64,
    step_s: f64,
    sync_s: f64,
    /// Seconds that the machine's cores, all busy, would need for their work in a step; all ranks
    /// on it share them.
    cores_s: Option<f64>,
    sent_bytes: u64,
    buckets: usize,
    /// Number of buckets by codec.
    codecs: Vec<(String, usize)>,
    /// Assignment of every bucket.
    plan: Vec<Assignment>,
}

/// Measures; rank 0 prints one JSON object per method.
///
/// # Errors
/// If the ranks lose each other.
pub fn run(args: &Args) -> Result<()> {
    ensure!(!args.methods.is_empty(), "no method to measure");
    let tensors = shapes::tensors(&args.model)?;
    let (place, meeting) = args.job.meet()?;
    let compute = Duration::from_millis(args.compute);
    let replay = Replay::new(tensors, compute, args.computing, place.rank);
    let bench = Bench { args, place: &place, replay };
    for method in &args.methods {
        let line = bench.measure(method, &meeting)?;
        if place.rank == 0 {
            print_json(&line)?;
        }
    }
    Ok(())
}

/// One step, printed as it ends.
#[derive(Serialize)]
struct Watched {
    method: String,
    step: u64,
    step_s: f64,
    codecs: Vec<(String, usize)>,
    /// The reason for which it was planned anew after this step.
    planned: Option<String>,
}

/// Returns the number of buckets by codec.
pub fn codecs(plan: &Plan) -> Vec<(String, usize)> {
    let mut counts = BTreeMap::<String, usize>::new();
    for assignment in &plan.assignments {
        *counts.entry(assignment.codec.clone()).or_default() += 1;
    }
    counts.into_iter().collect()
}

struct Bench<'a> {
    args: &'a Args,
    place: &'a Place,
    replay: Replay,
}

impl Bench<'_> {
    fn measure(&self, method: &Method, meeting: &Meeting) -> Result<Line> {
        let options = self.replay.options(method.options(self.args.job.timeout()));
        let mut sync = Synchronizer::start(meeting.link()?, self.replay.parameters(), options)?;
        let mut steps = Vec::new();
        let warm_up = WARM_UP + method.looks_around();
        let mut cores = None;
        for step in 0..warm_up + self.args.steps {
            sync.barrier()?;
            if step == warm_up {
                cores = cores::busy();
            }
            let step_s = self.replay.step(&mut sync, step)?;
            steps.push(step_s);
            if self.args.every_step && self.place.rank == 0 {
                let codecs = codecs(sync.plan());
                let planned = sync.record().planning.as_ref().map(|it| it.reason.clone());
                let method = method.to_string();
                print_json(&Watched { method, step, step_s, codecs, planned })?;
            }
        }
        let cores_s = cores.zip(cores::busy()).map(|(begun, ended)| ended - begun);
        let step_s = median(&mut steps[warm_up as usize..]);
        let compute_s = self.args.compute as f64 / 1e3;
        let plan = sync.plan();
        Ok(Line {
            method: method.to_string(),
            model: self.args.model.to_string(),
            world: self.place.world,
            network: self.args.job.network(),
            compute_s,
            step_s,
            sync_s: step_s - compute_s,
            cores_s: cores_s.map(|busy| busy / self.args.steps as f64),
            sent_bytes: sync.record().buckets.iter().map(|bucket| bucket.sent_bytes).sum(),
            buckets: plan.assignments.len(),
            codecs: codecs(plan),
            plan: plan.assignments.clone(),
        })
    }
}
