//! `thinwire bench sync`: what an iteration waits for its gradients, by method.
//!
//! The tensors are those of a known model; its arithmetic is a clock, as where a GPU does it: a
//! tensor is ready when its share of the compute time has passed. The time to synchronise is the
//! time of a step less that of computing alone, so what is hidden behind backward counts nothing.
//! Each method is measured in the same group of processes, on the same links; a step takes what
//! its slowest rank takes; medians after a warm-up.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use thinwire_job::{Meeting, Place};
use thinwire_sync::{Assignment, Outcome, Parameter, Plan, Synchronizer};
use thinwire_wire::random::Key;

use super::cores;
use super::method::Method;
use super::shapes::{self, Tensor};
use crate::figures::{bytes, ratio, seconds};
use crate::link::Settings;
use crate::output::{print_json, print_lines, say};
use crate::place::Flags;
use crate::ranks::{self, Start};
use crate::samples::{median, tally};

/// Steps in which `auto` looks around and memory is touched for the first time.
const WARM_UP: u64 = 2;

/// Time that an iteration waits for its gradients, by method.
#[derive(clap::Args)]
pub struct Args {
    /// Number of ranks to start on this machine [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Option<u32>,
    /// Model whose tensors are exchanged: any name that `thinwire model show` knows, or gpt, which is
    /// one of 10.7 M parameters
    #[arg(long, default_value = "vgg19")]
    model: String,
    /// Time that an iteration computes, in milliseconds
    #[arg(long, default_value_t = 160, value_name = "MS")]
    compute: u64,
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
    /// Also one JSON object per step, as it ends
    #[arg(long)]
    every_step: bool,
    #[command(flatten)]
    link: Settings,
    #[command(flatten)]
    place: Flags,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
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

/// Measures; rank 0 prints.
///
/// # Errors
/// If the ranks lose each other.
pub fn run(args: &Args) -> Result<u8> {
    ensure!(!args.methods.is_empty(), "no method to measure");
    let tensors = shapes::tensors(&args.model)?;
    let place = match ranks::start(&args.place, args.ranks, 4)? {
        Start::Rank(place) => place,
        Start::Done(code) => return Ok(code),
    };
    let meeting = args.link.meet(&place, &args.place, args.link.limit())?;
    let bench = Bench::new(args, &place, tensors);
    let mut lines = Vec::new();
    for method in &args.methods {
        let line = bench.measure(method, &meeting)?;
        if place.rank == 0 && args.json {
            print_json(&line)?;
        } else if place.rank == 0 {
            say(format!("{method}: {}", seconds(line.sync_s)));
        }
        lines.push(line);
    }
    if place.rank == 0 && !args.json {
        show(&lines)?;
    }
    Ok(0)
}

fn show(lines: &[Line]) -> Result<()> {
    let header =
        ["method", "to synchronise", "× first", "step", "cores", "sent", "buckets", "codecs"];
    print_lines((lines, false), header, |line| {
        let codecs = line.codecs.iter().map(|(codec, count)| format!("{count} {codec}"));
        [
            line.method.clone(),
            seconds(line.sync_s),
            ratio(line.sync_s / lines[0].sync_s),
            seconds(line.step_s),
            line.cores_s.map_or("?".to_owned(), seconds),
            bytes(line.sent_bytes as f64),
            line.buckets.to_string(),
            codecs.collect::<Vec<_>>().join(", "),
        ]
    })
}

/// One step, for those who watch.
#[derive(Serialize)]
struct Watched {
    method: String,
    step: u64,
    step_s: f64,
    codecs: Vec<(String, usize)>,
}

/// Returns the number of buckets by codec.
fn codecs(plan: &Plan) -> Vec<(String, usize)> {
    tally(plan.assignments.iter().map(|assignment| assignment.codec.clone()))
}

struct Bench<'a> {
    args: &'a Args,
    place: &'a Place,
    tensors: Vec<Tensor>,
    /// When each tensor is ready, from the beginning of a step.
    ready: Vec<Duration>,
    /// Values of which every gradient is the beginning.
    values: Vec<f32>,
}

impl<'a> Bench<'a> {
    fn new(args: &'a Args, place: &'a Place, tensors: Vec<Tensor>) -> Bench<'a> {
        let work: f64 = tensors.iter().map(|tensor| tensor.work).sum();
        let compute = Duration::from_millis(args.compute);
        // A third of the time is forward's.
        let ready = tensors.iter().scan(0.0, |done, tensor| {
            *done += tensor.work;
            Some(compute.mul_f64((1.0 + 2.0 * *done / work) / 3.0))
        });
        let ready = ready.collect();
        let largest = tensors.iter().map(|tensor| tensor.parameter.elements()).max().unwrap_or(0);
        let key = Key { seed: u64::from(place.rank), step: 0, tensor: 0 };
        let values = (0..largest as u64).map(|i| (key.uniform(i) - 0.5) * 0.01).collect();
        Bench { args, place, tensors, ready, values }
    }

    fn measure(&self, method: &Method, meeting: &Meeting) -> Result<Line> {
        let parameters: Vec<Parameter> =
            self.tensors.iter().map(|tensor| tensor.parameter.clone()).collect();
        let options = method.options(self.args.link.timeout());
        let mut sync = Synchronizer::start(meeting.link()?, parameters, options)?;
        let mut steps = Vec::new();
        let warm_up = WARM_UP + method.looks_around();
        let mut cores = None;
        for step in 0..warm_up + self.args.steps {
            sync.barrier()?;
            if step == warm_up {
                cores = cores::busy();
            }
            let mine = self.step(&mut sync, step)?;
            let all = sync.gather(&[mine.as_secs_f32()])?;
            let step_s = f64::from(all.into_iter().fold(0.0, f32::max));
            steps.push(step_s);
            if self.args.every_step && self.place.rank == 0 {
                let codecs = codecs(sync.plan());
                print_json(&Watched { method: method.to_string(), step, step_s, codecs })?;
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
            network: self.args.link.network(),
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

    fn step(&self, sync: &mut Synchronizer, step: u64) -> Result<Duration> {
        let begun = Instant::now();
        sync.begin(step)?;
        for (index, (tensor, ready)) in self.tensors.iter().zip(&self.ready).enumerate() {
            thread::sleep(ready.saturating_sub(begun.elapsed()));
            sync.ready(index, &self.values[..tensor.parameter.elements()])?;
        }
        ensure!(sync.finish()? == Outcome::Averaged, "step {step} was skipped");
        Ok(begun.elapsed())
    }
}
