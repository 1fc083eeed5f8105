//! `thinwire graph train`: trains a graph neural network on several ranks.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use serde::Serialize;
use thinwire_collective::Group;
use thinwire_graph::{Batches, Draw, Split, Store};
use thinwire_job::{Form, Place};
use thinwire_link::Link;
use thinwire_plan::report::counted;
use thinwire_report::figures::{bytes, count, seconds};
use thinwire_report::training::{GraphTraining, PassFigures, Report, graph_page};
use thinwire_sync::{Live, Time};
use thinwire_train::gnn::{Figures, Model, Network, Rows, Settings, Task, Trainer};
use thinwire_train::session::{Event, GraphSession, Observer, Pass};

use super::checkpoints::{self, Checkpoints};
use super::served::{self, Member};
use super::supply::fan_out;
use super::task::{Learned, batches, dealt, held_out, parse_learned, per_rank, task};
use crate::codings::within;
use crate::failure::hinted;
use crate::file;
use crate::launch::is_launched;
use crate::link;
use crate::memory;
use crate::output::{print, print_json, say};
use crate::place::Flags;
use crate::ranks::{self, Start};
use crate::training::{Codec, OUTPUT, PathFlag, RANKS, usual_warm_up_steps};
use crate::training::{command_line, date, machine_name};

/// Bytes per parameter of the network: its value, its gradient, two means of Adam and buffers of its
/// exchange.
const BYTES_PER_PARAMETER: u64 = 24;
/// Bytes per number of a trained row: its value and two means of Adam.
const BYTES_PER_TRAINED: u64 = 12;
/// Default number of seeds in a rank's batch.
const BATCH: u32 = 256;
/// Default number of attention heads.
const HEADS: usize = 4;

/// Train a graph neural network on mini-batches. Every rank opens FILE; if the file has one part for each rank, each
/// rank trains on the vertices of its own part. --plan does not cover these models: the sizes of a sampled batch
/// change with every step, so each rank has the whole model and gradients are averaged.
#[derive(clap::Args)]
pub struct Args {
    /// File of a graph, with features, labels and training vertices
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Layers: sage, gcn or gat
    ///
    /// sage is GraphSAGE with the mean of the in-neighbours.
    #[arg(long, value_name = "MODEL", default_value = "sage", value_parser = parse_model)]
    model: Model,
    /// Features if the file has none: learned:WIDTH
    ///
    /// Trains a row per vertex, kept by every rank or by servers (--servers).
    #[arg(long, value_name = "HOW", value_parser = parse_learned)]
    features: Option<Learned>,
    /// Outputs of all layers but the last
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    hidden: u32,
    /// Heads of gat; they divide --hidden [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    heads: Option<u32>,
    /// Fan-outs of the layers, -1 for all in-neighbours
    ///
    /// The seeds' fan-out comes first; validation and test use them too.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        allow_hyphen_values = true,
        default_value = "10,10",
        value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX))
    )]
    fan_outs: Vec<i64>,
    /// Way to draw in-neighbours: uniform or weighted
    #[arg(long, value_name = "SAMPLER", default_value = "uniform", hide_possible_values = true)]
    sampler: Sampler,
    /// Seeds of a step, all ranks together [default: 256 per rank]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Passes over the training vertices
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    passes: u64,
    /// Learning rate of Adam
    #[arg(long, value_name = "RATE", default_value_t = 0.01, value_parser = within(0.0_f32..=1e3, "a number from 0 to 1000"))]
    lr: f32,
    /// Weight decay: part of each matrix that is added to its gradient
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0, value_parser = within(0.0_f32..=1e3, "a number from 0 to 1000"))]
    weight_decay: f32,
    /// Share of the inputs of every layer that is dropped
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = within(0.0_f32..1.0, "a number from 0 to below 1"))]
    dropout: f32,
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Codec of gradients, as in `thinwire train`
    #[arg(long, default_value = "none")]
    codec: Codec,
    /// Train with a codec from a file without checking its laws
    ///
    /// `thinwire codec check` checks them, too.
    #[arg(long, hide_short_help = true)]
    unchecked: bool,
    /// Ranks to start here [default: the file's parts]
    ///
    /// The default is the file's number of parts, at most 8 per core; 1 if it has none.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256), help_heading = RANKS)]
    ranks: Option<u32>,
    /// File for the trained parameters, as safetensors
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    output: Option<PathBuf>,
    /// Page of loss, accuracy and times, or none
    #[arg(long, default_value = "report.html", value_name = "PATH", help_heading = OUTPUT)]
    report: PathFlag,
    /// One JSON object per pass, and one for the test
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Not supported: there are no plans for these models.
    #[arg(long, hide = true, value_name = "FILE")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    checkpoints: checkpoints::Flags,
    #[command(flatten)]
    served: served::Flags,
    #[command(flatten)]
    link: link::Settings,
    #[command(flatten)]
    place: Flags,
}

/// Ways to draw in-neighbours, without replacement.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sampler {
    /// Every set is equally likely
    Uniform,
    /// In proportion to the weights of edges
    Weighted,
}

/// Output of a training's figures after each pass.
struct Console<'a> {
    args: &'a Args,
    rank: u32,
    /// Number of steps in a pass.
    steps: u64,
    /// Membership of this process in a job with servers.
    member: Option<&'a Member>,
    passes: RefCell<Vec<PassFigures>>,
}

impl Console<'_> {
    /// Sends the coordinator this rank's figures for `thinwire top`.
    fn tell(&self, pass: &Pass) {
        let Pass { number, trained, seconds, loading_s, wait_s, .. } = *pass;
        let per_step = |all_s: f64| all_s / self.steps as f64;
        let (step_s, wait_s, other_s) = (per_step(seconds), per_step(wait_s), per_step(loading_s));
        let compute_s = (step_s - wait_s - other_s).max(0.0);
        let live = Live {
            step: Some(number * self.steps),
            steps: Some(self.args.passes * self.steps),
            loss: Some(trained.mean_loss()),
            samples_per_s: Some(trained.seeds as f64 / seconds),
            time: Some(Time { step_s, compute_s, wait_s, other_s, ..Time::default() }),
            ..Live::default()
        };
        self.member.into_iter().for_each(|member| member.tell(&live));
    }
}

impl Observer for Console<'_> {
    fn on(&self, event: Event<'_>) -> Result<(), thinwire_train::Error> {
        match event {
            Event::Line(line) => say(line),
            Event::Pass(pass) => {
                self.tell(pass);
                if self.rank > 0 {
                    return Ok(());
                }
                let figures = figures(pass);
                self.passes.borrow_mut().push(figures);
                show(self.args, &figures).map_err(thinwire_train::Error::caller)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Accuracy after the training.
#[derive(Serialize)]
struct Tested {
    test_accuracy: f64,
}

/// Trains. Rank 0 prints the results.
///
/// # Errors
/// If the file cannot be read or lacks needed data, or a rank is lost.
pub fn run(args: &Args) -> Result<u8> {
    if args.served.are_given() {
        return with_servers(args);
    }
    let (started, place) = match ranks::prepared(&args.place, || start(args))? {
        Start::Rank(started) => started,
        Start::Done(code) => return Ok(code),
    };
    let meeting = args.link.meet(&place, &args.place, args.link.limit())?;
    let threads = ranks::threads(&place);
    let work = || train(args, started, &place, meeting.link()?, threads);
    thinwire_train::with_threads(threads, work)??;
    Ok(0)
}

/// Trains with rows on servers. A process outside such a job starts its servers and ranks.
fn with_servers(args: &Args) -> Result<u8> {
    args.checkpoints
        .refuse("cannot be used with rows on servers: checkpoints do not contain them")?;
    let (mut started, parts) = prepare(args)?;
    ranks::check_parts(&args.place, args.ranks, parts)?;
    let ranks = args.ranks.unwrap_or(parts);
    let mode = args.served.resolve(args.features, ranks, args.lr)?;
    let Some(job_address) = args.place.member()? else {
        return served::launch(&args.place, &mode, &args.link);
    };
    let (member, link) = Member::join(job_address, &mode, &args.link)?;
    let (vertices, columns) = (started.task.graph.vertices(), started.task.rows.columns());
    let rows = member.rows(&mode, [vertices, columns], args.seed, &args.link)?;
    started.task.rows = Rows::Served { columns, rows: Arc::new(rows) };
    let member = Arc::new(member);
    started.member = Some(Arc::clone(&member));
    let threads = ranks::threads(&member.place);
    let work = || train(args, started, &member.place, link, threads);
    thinwire_train::with_threads(threads, work)?.map_err(served::or_lost)?;
    member.complete();
    Ok(0)
}

/// Refuses flags of other trainings and other models.
fn refuse(args: &Args) -> Result<()> {
    if let Some(path) = &args.plan {
        let path = path.display();
        let error = anyhow!("--plan {path} cannot be used with a graph neural network");
        let hint = "leave --plan out: the sizes of sampled batches differ from step to step";
        return Err(hinted(error, hint));
    }
    if args.heads.is_some() && args.model != Model::Gat {
        let error = anyhow!("--heads cannot be used with --model {}", args.model);
        return Err(hinted(error, "leave --heads out, or give --model gat"));
    }
    let is_weighted = args.sampler == Sampler::Weighted;
    if is_weighted && args.model == Model::Gcn {
        let error = anyhow!(
            "--sampler weighted cannot be used with --model gcn: its sum must represent all edges"
        );
        return Err(hinted(error, "give --model sage or gat"));
    }
    if is_weighted && args.fan_outs.iter().all(|limit| *limit == -1) {
        let error = anyhow!(
            "--sampler weighted has no effect with only -1 in --fan-outs: all edges are taken"
        );
        return Err(hinted(error, "leave --sampler out, or limit a fan-out"));
    }
    Ok(())
}

/// Returns the way of drawing in-neighbours.
///
/// # Errors
/// If it needs weights, but the graph has none.
fn draw(args: &Args, store: &Store) -> Result<Draw> {
    match (args.sampler, store.weights()) {
        (Sampler::Uniform, _) => Ok(Draw::Distinct),
        (Sampler::Weighted, Some(weights)) => Ok(Draw::Weighted(Arc::new(weights.clone()))),
        (Sampler::Weighted, None) => {
            let error = anyhow!("{} has no weights", store.path().display());
            Err(hinted(error, "thinwire graph import --columns 1,2,3, or a matrix with values"))
        }
    }
}

/// Refuses a network if the ranks of this machine together do not have enough memory for it. Ranks of a
/// launcher skip this check, because their launcher has made it.
fn ensure_fits(args: &Args, parts: u32, network: &Network, task: &Task) -> Result<()> {
    if is_launched() {
        return Ok(());
    }
    let ranks = match ranks::is_member() {
        true => 1,
        false => args.place.find()?.map_or(args.ranks.unwrap_or(parts), |it| it.local_world),
    };
    let elements = network.elements();
    let rows = match &task.rows {
        Rows::Learned { columns } if !args.served.are_given() => {
            u64::from(task.graph.vertices()) * u64::from(*columns)
        }
        _ => 0,
    };
    let bytes = u64::from(ranks) * (BYTES_PER_PARAMETER * elements + BYTES_PER_TRAINED * rows);
    let what = format!(
        "a network of {} parameters for {} classes on {}",
        count(elements + rows),
        count(task.classes.into()),
        counted(ranks as usize, "rank")
    );
    memory::ensure(bytes, &what, "give fewer classes or columns, or fewer --hidden or --ranks")
}

/// Inputs of a training.
struct Started {
    store: Arc<Store>,
    task: Task,
    checkpoints: Checkpoints,
    /// Membership of this process in a job with servers.
    member: Option<Arc<Member>>,
}

/// Opens the graph, and becomes a rank or starts all ranks.
fn start(args: &Args) -> Result<Start<(Started, Place)>> {
    let (started, parts) = prepare(args)?;
    match ranks::start_parts(&args.place, args.ranks, parts)? {
        Start::Rank(place) => Ok(Start::Rank((started, place))),
        Start::Done(code) => Ok(Start::Done(code)),
    }
}

/// Opens the graph and checks that it can be trained on. Also returns the number of its parts, at least 1.
fn prepare(args: &Args) -> Result<(Started, u32)> {
    refuse(args)?;
    file::ensure_place(args.output.as_deref(), "the model", "--output")?;
    file::ensure_place(args.report.0.as_deref(), "the report", "--report, or none")?;
    let is_other = |path| file::ensure_other("--output", path, [&*args.file]);
    args.output.as_deref().map_or(Ok(()), is_other)?;
    let is_other = |path| file::ensure_other("--report", path, [&*args.file]);
    args.report.0.as_deref().map_or(Ok(()), is_other)?;
    let store = Arc::new(Store::open(&args.file)?);
    let task = task(&store, args.features)?;
    let network = Network::new(settings(args, draw(args, &store)?, 1).shape(&task))?;
    let checkpoints = Checkpoints::resolve(&args.checkpoints, args.passes)?;
    let parts = store.bounds().len().saturating_sub(1).max(1) as u32;
    // The batches of all ranks have the same vertices, whoever they are dealt to.
    let ranks = args.place.find()?.map_or(args.ranks.unwrap_or(parts), |place| place.world);
    let batch = per_rank(args.batch, ranks, BATCH)?;
    batches(&store, &Place::alone(Form::Flags), batch, args.seed)?;
    ensure_fits(args, parts, &network, &task)?;
    Ok((Started { store, task, checkpoints, member: None }, parts))
}

fn train(
    args: &Args,
    Started { store, task, checkpoints, member }: Started,
    place: &Place,
    link: Link,
    threads: usize,
) -> Result<()> {
    let batch = per_rank(args.batch, place.world, BATCH)?;
    let batches = batches(&store, place, batch, args.seed)?;
    let validation = held_out(&store, place, Split::Validation, batch)?;
    let test = held_out(&store, place, Split::Test, batch)?;
    let (exchange, steps) = (exchange(args, &batches), u64::from(batches.steps()));
    let settings = settings(args, draw(args, &store)?, threads);
    let mut group = Group::new(link).with_timeout(args.link.timeout);
    let lock = checkpoints.hold(place.rank, &mut group)?;
    let mut trainer = Trainer::start(group, task, batches, settings, exchange)?;
    if place.rank == 0 {
        dealt(&store, place.world).into_iter().for_each(say);
        let link = args.link.describe(args.link.limit(), place);
        say(format!("training {}, link: {link}", title(args, place, &trainer)));
    }
    let (rank, member) = (place.rank, member.as_deref());
    let console = Console { args, rank, steps, member, passes: RefCell::default() };
    let title = title(args, place, &trainer);
    let mut session = GraphSession {
        trainer: &mut trainer,
        passes: args.passes,
        validation: validation.as_ref(),
        resume: checkpoints.resumed.as_ref(),
        policy: checkpoints.policy.as_ref(),
        lock: &lock,
        observer: &console,
    };
    session.run()?;
    if let Some(path) = args.output.as_ref().filter(|_| place.rank == 0) {
        file::replace(path, &trainer.to_safetensors()?)?;
        say(format!("wrote {}", path.display()));
    }
    let tested = test.as_ref().map(|batches| trainer.evaluate(batches)).transpose()?;
    if args.served.are_given() {
        // The first rank to leave ends the job and its servers: wait until no other one needs them.
        trainer.gather(&[0.0])?;
    }
    if place.rank > 0 {
        return Ok(());
    }
    let test_accuracy = tested.as_ref().map(Figures::accuracy);
    let passes = console.passes.into_inner();
    write_report(args, place, &GraphTraining { title, passes, test_accuracy })?;
    test_accuracy.map_or(Ok(()), |test_accuracy| match args.json {
        true => print_json(&Tested { test_accuracy }),
        false => print(format!("test accuracy {}\n", percent(test_accuracy))),
    })
}

fn settings(args: &Args, draw: Draw, threads: usize) -> Settings {
    Settings {
        model: args.model,
        hidden: args.hidden as usize,
        heads: args.heads.map_or(HEADS, |heads| heads as usize),
        fan_outs: args.fan_outs.iter().map(fan_out).collect(),
        draw,
        passes: args.passes,
        learning_rate: args.lr,
        weight_decay: args.weight_decay,
        dropout: args.dropout,
        seed: args.seed,
        threads,
    }
}

/// Returns the options of the exchange.
fn exchange(args: &Args, batches: &Batches) -> thinwire_sync::Options {
    let policy = args.codec.policy.clone();
    let steps = args.passes * u64::from(batches.steps());
    thinwire_sync::Options {
        warm_up_steps: usual_warm_up_steps(&policy, steps),
        policy,
        seed: args.seed,
        timeout: args.link.timeout,
        unchecked: args.unchecked,
        ..thinwire_sync::Options::default()
    }
}

fn title(args: &Args, place: &Place, trainer: &Trainer) -> String {
    let (model, codec, elements) = (args.model, &args.codec.typed, count(trainer.elements()));
    let ranks = counted(place.world as usize, "rank");
    format!("{model} of {elements} parameters with codec {codec} on {ranks}")
}

/// Returns the figures of a pass.
fn figures(pass: &Pass) -> PassFigures {
    let Pass { number: pass, trained, validated, seconds, loading_s, wait_s, sent_bytes } = *pass;
    let (loss, training_accuracy) = (trained.mean_loss(), trained.accuracy());
    let validation_accuracy = validated.as_ref().map(Figures::accuracy);
    PassFigures {
        pass,
        loss,
        training_accuracy,
        validation_accuracy,
        seconds,
        loading_s,
        wait_s,
        sent_bytes,
    }
}

fn show(args: &Args, figures: &PassFigures) -> Result<()> {
    if args.json {
        return print_json(figures);
    }
    let PassFigures { pass, loss, seconds: taken_s, sent_bytes, .. } = *figures;
    let validation = figures.validation_accuracy.map(|it| format!(", validation {}", percent(it)));
    let (validation, training) =
        (validation.unwrap_or_default(), percent(figures.training_accuracy));
    let (time, sent) = (seconds(taken_s), bytes(sent_bytes as f64));
    print(format!(
        "pass {pass}: loss {loss:.4}, accuracy in training {training}{validation}, {time}, sent {sent}\n"
    ))
}

/// Writes the report of a training if one was requested.
fn write_report(args: &Args, place: &Place, training: &GraphTraining) -> Result<()> {
    let Some(path) = &args.report.0 else { return Ok(()) };
    let fan_outs = args.fan_outs.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    let settings = [
        ("graph", args.file.display().to_string()),
        ("model", args.model.to_string()),
        ("hidden", args.hidden.to_string()),
        ("fan-outs", fan_outs),
        ("batch", per_rank(args.batch, place.world, BATCH)?.to_string() + " seeds per rank"),
        ("lr", args.lr.to_string()),
        ("codec", args.codec.typed.clone()),
        ("seed", args.seed.to_string()),
    ];
    let report = Report {
        command: command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        date: date(),
        machine: machine_name(),
        ranks: place.world,
        link: args.link.describe(args.link.limit(), place),
        settings: settings.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        ..Report::default()
    };
    file::replace(path, graph_page(&report, training).as_bytes())?;
    say(format!("report: {}", path.display()));
    Ok(())
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn parse_model(text: &str) -> Result<Model, String> {
    let found = Model::ALL.into_iter().find(|model| model.to_string() == text);
    found.ok_or_else(|| format!("model '{text}', expected sage, gcn or gat"))
}
