//! `thinwire-bench choice`: the step time of `auto` over that of the fastest fixed codec.
//!
//! First `auto` runs until its first trial is over. Then every fixed codec within the error budget, as
//! `auto` measured it on these gradients, runs for a few steps with each algorithm; those near the fastest
//! stay. They and `auto` take turns for some rounds. A step takes what its slowest rank takes; a round
//! counts with the median of its steps, a method with the median of its rounds.

use std::collections::HashMap;
use std::env;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use thinwire_codec::Choice;
use thinwire_job::Meeting;
use thinwire_sync::{Assignment, Options, Planning, Policy, Synchronizer, median};

use crate::job::Flags;
use crate::method::Method;
use crate::replay::{Computing, Replay};
use crate::shapes;
use crate::sync::codecs;
use crate::{print_json, say};

/// The algorithms that differ between two ranks, and those that do among more.
const OF_TWO: [&str; 2] = ["two-shot", "gather"];
const OF_MORE: [&str; 4] = ["two-shot", "gather", "ring", "halving"];

/// The number of steps after which `auto` knows enough for a trial.
const LOOKED_AROUND: u64 = 17;

/// The most steps of `auto` before it is measured: a first trial takes 180 after the first 17.
const SETTLING_MAX: u64 = 220;

/// Factors of the fastest step: beyond the first a method is given up at once, within the second it stays.
const HOPELESS: f64 = 1.6;
const NEAR: f64 = 1.15;

/// The most fixed methods that take turns with `auto`.
const FINALISTS: usize = 4;

/// Step time of `auto`, beside that of the fastest fixed codec within its error budget.
#[derive(clap::Args)]
pub struct Args {
    /// Model whose tensors are exchanged, as in `thinwire-bench sync`
    #[arg(long, default_value = "gpt")]
    model: String,
    /// Time that an iteration computes, in milliseconds
    #[arg(long, default_value_t = 100, value_name = "MS")]
    compute: u64,
    /// Source of the computing time: a clock, or this rank's core
    #[arg(long, value_enum, default_value_t = Computing::Core)]
    computing: Computing,
    /// Fixed codecs
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "none,bf16,lossless,lossless:bf16,int8,int4,ecsq:0.25,ecsq:0.35,ecsq:0.5,ecsq:0.7,ecsq:1,ecsq:1.2,ecsq:1.4"
    )]
    codecs: Vec<String>,
    /// Rounds in which `auto` and the fastest fixed codecs take turns
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Milliseconds of steps for each of them in a round, at least three steps
    #[arg(long, default_value_t = 700, value_name = "MS")]
    turn: u64,
    #[command(flatten)]
    job: Flags,
}

/// The result; times in seconds.
#[derive(Serialize)]
struct Found {
    model: String,
    world: u32,
    network: String,
    /// The cores that ranks have, if the benchmark bound them to some.
    cores: String,
    compute_s: f64,
    auto_s: f64,
    /// The time of `auto` over that of the fastest fixed method, the median of their rounds.
    over_fixed: f64,
    /// The lines that `auto` said.
    lines: Vec<String>,
    codecs: Vec<(String, usize)>,
    /// The steps before `auto` was measured.
    settling: u64,
    /// The fixed methods in order of their times.
    fixed: Vec<Fixed>,
}

/// A fixed method; `rounds` of 0 if it was given up after a few steps.
#[derive(Serialize)]
struct Fixed {
    method: String,
    step_s: f64,
    rounds: usize,
}

/// Measures; rank 0 prints one JSON object.
///
/// # Errors
/// If the ranks lose each other.
pub fn run(args: &Args) -> Result<()> {
    let tensors = shapes::tensors(&args.model)?;
    let (place, meeting) = args.job.meet()?;
    let compute = Duration::from_millis(args.compute);
    let replay = Replay::new(tensors, compute, args.computing, place.rank);
    let bench = Bench { args, meeting, replay, world: place.world };
    let found = bench.measure()?;
    if place.rank == 0 {
        found.lines.iter().for_each(|line| say(line));
        print_json(&found)?;
    }
    Ok(())
}

/// A method at work.
struct Contender {
    method: String,
    sync: Synchronizer,
    steps: u64,
    /// The median step of every round.
    rounds: Vec<f64>,
    /// A line for every planning, on rank 0.
    planned: Vec<String>,
}

struct Bench<'a> {
    args: &'a Args,
    meeting: Meeting,
    replay: Replay,
    world: u32,
}

impl Bench<'_> {
    fn measure(&self) -> Result<Found> {
        let mut auto = self.start("auto")?;
        let planning = self.settle(&mut auto)?;
        let settling = auto.steps;
        let usual = median(&mut self.run(&mut auto, 5)?);
        let methods = self.within_budget(&mut auto, &planning)?;
        let (mut fixed, mut given_up) = self.scan(&mut auto, methods, usual)?;
        for round in 0..self.args.rounds {
            self.turn(&mut auto, usual)?;
            let count = fixed.len();
            for place in 0..count {
                self.turn(&mut fixed[(place + round as usize) % count], usual)?;
            }
        }
        let of_all = |rounds: &[f64]| median(&mut rounds.to_vec());
        fixed.sort_by(|a, b| of_all(&a.rounds).total_cmp(&of_all(&b.rounds)));
        let ratios = auto.rounds.iter().zip(&fixed[0].rounds).map(|(auto, fixed)| auto / fixed);
        given_up.sort_by(|a, b| a.step_s.total_cmp(&b.step_s));
        let finalist = |it: &Contender| Fixed {
            method: it.method.clone(),
            step_s: of_all(&it.rounds),
            rounds: it.rounds.len(),
        };
        Ok(Found {
            model: self.args.model.clone(),
            world: self.world,
            network: self.args.job.network(),
            cores: env::var("NETWORK_CORES").unwrap_or_else(|_| "any".to_owned()),
            compute_s: self.args.compute as f64 / 1e3,
            auto_s: of_all(&auto.rounds),
            over_fixed: median(&mut ratios.collect::<Vec<f64>>()),
            lines: auto.planned,
            codecs: codecs(auto.sync.plan()),
            settling,
            fixed: fixed.iter().map(finalist).chain(given_up).collect(),
        })
    }

    fn start(&self, method: &str) -> Result<Contender> {
        let options = method.parse::<Method>()?.options(self.args.job.timeout());
        let (link, parameters) = (self.meeting.link()?, self.replay.parameters());
        let sync = Synchronizer::start(link, parameters, self.replay.options(options))?;
        Ok(Contender {
            method: method.to_owned(),
            sync,
            steps: 0,
            rounds: Vec::new(),
            planned: Vec::new(),
        })
    }

    /// Runs some steps, and returns their times on the slowest rank.
    fn run(&self, contender: &mut Contender, steps: u64) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for _ in 0..steps {
            contender.sync.barrier()?;
            times.push(self.replay.step(&mut contender.sync, contender.steps)?);
            if let Some(planning) = &contender.sync.record().planning {
                let what =
                    format!("step {}: {}: {}", contender.steps, planning.reason, planning.line);
                contender.planned.push(what);
            }
            contender.steps += 1;
        }
        Ok(times)
    }

    /// Runs `auto` until it has planned with what it saw, and no trial is under way. Returns what rank 0
    /// planned last, on that rank.
    fn settle(&self, auto: &mut Contender) -> Result<Planning> {
        let mut last = Planning::default();
        loop {
            self.run(auto, 1)?;
            let planning = auto.sync.record().planning.as_deref();
            // While plans take turns nothing is planned, unless the link is another one.
            let is_over = |planning: &Planning| {
                planning.trying.is_empty() && !planning.reason.starts_with("the link")
            };
            let settled = auto.steps > LOOKED_AROUND && planning.is_some_and(is_over);
            last = planning.cloned().unwrap_or(last);
            let settled = auto.sync.gather(&[f32::from(u8::from(settled))])?[0] > 0.0;
            if settled || auto.steps >= SETTLING_MAX {
                return Ok(last);
            }
        }
    }

    /// Returns the fixed methods whose error is within the budget in every bucket, by what rank 0 planned; of
    /// ecsq with each algorithm the one that sends least.
    fn within_budget(&self, auto: &mut Contender, planning: &Planning) -> Result<Vec<String>> {
        let budget = Options::default().error_budget;
        let mut errors: HashMap<String, f64> = HashMap::new();
        for one in planning.buckets.iter().flat_map(|bucket| &bucket.alternatives) {
            let Assignment { codec, algorithm, .. } = &one.assignment;
            let error = errors.entry(format!("{codec}/{algorithm}")).or_default();
            *error = error.max(one.error);
        }
        let methods: Vec<String> = self.methods().collect();
        let is_within = |method: &String| errors.get(method).is_some_and(|error| *error <= budget);
        let mine = methods.iter().map(|method| f32::from(u8::from(is_within(method))));
        let all = auto.sync.gather(&mine.collect::<Vec<f32>>())?;
        let within = methods.into_iter().zip(all).filter(|(_, within)| *within > 0.0);
        let within: Vec<String> = within.map(|(method, _)| method).collect();
        let ways = within.iter().map(|method| way(method)).collect::<Vec<_>>();
        let last = |(at, method): &(usize, &String)| {
            !method.starts_with("ecsq") || !ways[at + 1..].contains(&way(method))
        };
        Ok(within.iter().enumerate().filter(last).map(|(_, method)| method.clone()).collect())
    }

    /// Returns every codec with every algorithm.
    fn methods(&self) -> impl Iterator<Item = String> {
        let algorithms = if self.world == 2 { &OF_TWO[..] } else { &OF_MORE[..] };
        let of_codec = |codec| algorithms.iter().map(move |it| format!("{codec}/{it}"));
        self.args.codecs.iter().flat_map(of_codec)
    }

    /// Runs every fixed method for a few steps. Returns those that are near the fastest, and the others.
    fn scan(
        &self,
        auto: &mut Contender,
        methods: Vec<String>,
        usual: f64,
    ) -> Result<(Vec<Contender>, Vec<Fixed>)> {
        let (mut near, mut given_up): (Vec<(f64, Contender)>, Vec<Fixed>) = Default::default();
        let mut best = usual;
        for method in methods {
            if self.bytes_s(auto, &method)? > HOPELESS * best {
                continue;
            }
            let mut contender = self.start(&method)?;
            let mut step_s = self.run(&mut contender, 1)?[0];
            if step_s < 2.0 * HOPELESS * best {
                step_s = median(&mut self.run(&mut contender, 3)?);
            }
            best = best.min(step_s);
            near.push((step_s, contender));
            near.sort_by(|a, b| a.0.total_cmp(&b.0));
            let fastest = near[0].0;
            let place = near.iter().position(|(step_s, _)| *step_s > NEAR * fastest);
            let kept = place.unwrap_or(near.len()).min(FINALISTS);
            let others = near.split_off(kept).into_iter();
            given_up.extend(others.map(|(step_s, it)| Fixed {
                method: it.method,
                step_s,
                rounds: 0,
            }));
        }
        if near.is_empty() {
            bail!("no fixed codec is within the error budget");
        }
        Ok((near.into_iter().map(|(_, contender)| contender).collect(), given_up))
    }

    /// Returns the least time in which the bytes of a fixed method can pass the link, in seconds.
    fn bytes_s(&self, auto: &mut Contender, method: &str) -> Result<f64> {
        let elements: usize = self.replay.parameters().iter().map(|it| it.elements()).sum();
        let codec = method.split('/').next().unwrap_or_default();
        let Policy::Fixed(Choice::Bytes(codec)) = codec.parse::<Policy>()? else { return Ok(0.0) };
        let expected = codec.expected_len(elements) as f64;
        // Entropy coding may find less than it does in normal numbers.
        let least = if codec.is_variable() { 0.6 * expected } else { expected };
        let rate = auto.sync.link().map_or(f64::INFINITY, |link| link.bytes_per_s);
        let share = 2.0 * f64::from(self.world - 1) / f64::from(self.world);
        let all = auto.sync.gather(&[(share * least / rate) as f32])?;
        Ok(f64::from(all[0]))
    }

    /// Runs one method for one round.
    fn turn(&self, contender: &mut Contender, usual: f64) -> Result<()> {
        let steps = (self.args.turn as f64 / 1e3 / usual).clamp(3.0, 50.0) as u64;
        // The first step after another method's finds caches cold.
        let mut times = self.run(contender, 1 + steps)?.split_off(1);
        contender.rounds.push(median(&mut times));
        Ok(())
    }
}

/// Returns a method without the parameter of its codec.
fn way(method: &str) -> (&str, &str) {
    let (codec, algorithm) = method.split_once('/').unwrap_or((method, ""));
    (codec.split(':').next().unwrap_or(codec), algorithm)
}
