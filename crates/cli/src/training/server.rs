//! Training whose parameters live on the servers of a parameter server.
//!
//! Every rank computes the gradients of its rows of the batch, pushes them, and pulls the parameters for its next
//! step. Ranks exchange nothing with each other: the servers decide how far one may be ahead of another.
//!
//! Law: with `--consistency sync`, losses are those of a training by all-reduce with the same optimiser, but for
//! the order in which sums are formed.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value};
use thinwire_collective::Group;
use thinwire_job::Place;
use thinwire_job::elastic::{self, Operator, Presence};
use thinwire_link::mem;
use thinwire_member::{Authority, Epoch, Options};
use thinwire_model::{Graph, Initial, Role};
use thinwire_server::{Client, Gradient};
use thinwire_sync::{Channel, Policy};
use thinwire_train::rows;
use thinwire_train::spmd::{Machine, Remote};
use thinwire_wire::WORLD_SIZE_MAX;

use super::by_hand;
use super::engine::Engine;
use super::folder;
use super::interrupt::Interrupt;
use super::job::TrainingJob;
use super::plan::{Built, Parallelism};
use super::seat::{self, Seat};
use super::server_flags::{ServerMode, Tabled};
use super::session::Session;
use super::trace::Trace;
use super::{Trained, conclude};

/// Interval at which a process that waits for the others looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Interval at which a rank that is done asks whether the others are.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// Figure of a rank that has done its steps.
const DONE: &str = "done";
/// Values per row of a parameter of one dimension.
const VECTOR_WIDTH: usize = 1024;

/// Trains against servers; the rank that is first in the first epoch prints. Returns the code to exit with.
///
/// # Errors
/// If the job or its servers refuse this process, or a shard is lost.
pub fn train(job: &TrainingJob, mode: &ServerMode, seat: &elastic::Seat) -> Result<u8> {
    let settings = &job.settings;
    let place = seat::of_member(seat);
    let interrupt = Interrupt::listen()?;
    let links = settings.link.of_job(settings.limit(&place))?;
    let options = Options::new(Authority::Saved, 1, WORLD_SIZE_MAX);
    let facts = job.facts().into_iter().chain(mode.facts()).collect();
    let presence = Presence::join(seat, &links, options, facts)?;
    by_hand::waiting(&seat.coordinator);
    let epoch = first_epoch(&presence, settings.link.timeout())?;
    let world = epoch.world(presence.id()).context("an epoch without this process")?;
    interrupt.remember();
    let place = Place { rank: world.rank().0, world: world.size() as u32, ..place };
    let (first, presence) = (epoch.number, &presence);
    let worker = Worker { job, mode, seat, presence, interrupt: &interrupt, first };
    let trained = thinwire_train::threads::run(settings.threads(&place), || worker.train(&place))?;
    let is_done = trained.is_ok() && interrupt.signal().is_none();
    let code = conclude(job, &place, trained, &interrupt)?;
    match is_done {
        true => worker.finish(),
        false => presence.leave(),
    }
    Ok(code)
}

/// Waits for the first epoch with this process.
fn first_epoch(presence: &Presence, timeout: Duration) -> Result<Epoch> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(epoch) = presence.wait(0, LOOK_EVERY) {
            return Ok(epoch);
        }
        if let Some(reason) = presence.refusal() {
            return Err(anyhow!("the coordinator refuses this rank: {reason}"));
        }
        if presence.is_over() {
            return Err(anyhow!("the job is over"));
        }
        if Instant::now() >= deadline {
            let seconds = timeout.as_secs_f64().ceil();
            return Err(anyhow!("no epoch of the job began within {seconds:.0} s"));
        }
    }
}

/// A rank that trains against servers.
struct Worker<'a> {
    job: &'a TrainingJob,
    mode: &'a ServerMode,
    seat: &'a elastic::Seat,
    presence: &'a Presence,
    interrupt: &'a Interrupt,
    /// Number of the epoch in which this rank began.
    first: u32,
}

impl Worker<'_> {
    fn train(&self, place: &Place) -> Result<Trained> {
        let job = self.job;
        let Parallelism::Replicas(model) = &job.parallelism else {
            return Err(anyhow!("a training of parts of a plan with --mode server"));
        };
        let world = thinwire_wire::World::new(place.rank, place.world)?;
        let policy = job.policy.as_ref().filter(|_| place.rank == 0);
        let lock = folder::hold(policy, 0, None)?;
        let seat = Seat { place, interrupt: self.interrupt, lock: &lock };
        let mine = rows(job.recipe.batch, model.unit()?, world).len();
        let built = Built::replica(model, mine)?;
        let channel =
            Channel::new(Group::new(mem::alone()).with_timeout(job.settings.link.timeout()));
        let raw: Policy = "none".parse()?;
        let mut engine = Engine::start(job, Some(&raw), (&seat, channel), &built)?;
        let parameters = tables_of(&engine.machine, &built.training.graph);
        let definition = self.mode.definition(&parameters, job.recipe.seed);
        let client = Client::open(self.seat, &definition, job.settings.link.timeout())?;
        let share = mine as f32 / job.recipe.batch as f32;
        let bytes = parameters.iter().map(|table| 4.0 * (table.rows * table.width) as f64).sum();
        engine.machine = engine.machine.with_remote(remote(client, parameters, share));
        let trace =
            Trace::open(job.settings.trace.as_deref().filter(|_| place.rank == 0), "server", true)?;
        let (mut run, kept) = Session::start((job, Some(&raw)), engine, &seat, trace)?.run()?;
        (run.raw_bytes, run.sent_bytes) = (bytes, bytes);
        Ok(Trained { runs: vec![run], file: None, kept })
    }

    /// Waits until all ranks have done their steps: then the job is over. A signal ends the wait. Where ranks have
    /// come or gone meanwhile, others may have more steps to do, in which servers are not to wait for this one:
    /// then it leaves, unless it is the last.
    fn finish(&self) {
        while !self.presence.is_over() && self.presence.refusal().is_none() {
            let epoch = self.presence.epoch();
            let goes_on = epoch.is_some_and(|it| it.number > self.first && it.members.len() > 1);
            if (goes_on && !self.all_are_done()) || self.interrupt.signal().is_some() {
                return self.presence.leave();
            }
            let done = Map::from_iter([(DONE.to_owned(), Value::Bool(true))]);
            self.presence.tell(done);
            if self.all_are_done() {
                // Another rank may have told it already.
                let _ = self.presence.complete();
                return;
            }
            std::thread::sleep(ASK_EVERY);
        }
    }

    /// Whether all ranks have told the coordinator that they have done their steps; no if it is away.
    fn all_are_done(&self) -> bool {
        let (coordinator, token) = (&self.seat.coordinator, &self.seat.token);
        let status =
            Operator::connect(coordinator, token, ASK_EVERY).and_then(|mut it| it.status());
        let status = status.ok().and_then(|json| serde_json::from_str::<Value>(&json).ok());
        let members = status.as_ref().and_then(|status| status["members"].as_array());
        members.is_some_and(|all| all.iter().all(|it| it["figures"][DONE] == true))
    }
}

/// Returns the parameters of a replica as tables, in the order in which the executor has them.
fn tables_of(machine: &Machine<'_>, graph: &Graph) -> Vec<Tabled> {
    let tabled = |parameter: &thinwire_program::Parameter| {
        let tensor = &graph.tensors[parameter.tensor];
        let length = tensor.elements();
        // A vector has rows, too, so that no shard has all of a long one.
        let width = match tensor.shape.len() {
            0 | 1 => length.min(VECTOR_WIDTH),
            _ => length / tensor.shape[0],
        };
        let initial = match tensor.role {
            Role::Parameter(Initial::Normal(deviation)) => format!("normal:{}", deviation as f32),
            Role::Parameter(Initial::Ones) => "constant:1".to_owned(),
            _ => "zeros".to_owned(),
        };
        Tabled {
            name: tensor.name.clone(),
            rows: length.div_ceil(width),
            width,
            length,
            is_matrix: tensor.shape.len() > 1,
            initial,
            stream: parameter.tensor as u32,
        }
    };
    machine.program().parameters.iter().map(tabled).collect()
}

/// Returns the optimiser of an executor whose parameters the servers have.
fn remote<'a>(mut client: Client, tables: Vec<Tabled>, share: f32) -> Remote<'a> {
    let all: Vec<Vec<u64>> = tables.iter().map(|table| (0..table.rows as u64).collect()).collect();
    let mut pulled = vec![0.0; tables.iter().map(|table| table.rows * table.width).sum()];
    let failed = |error: thinwire_server::Error| thinwire_train::Error::exchange(error);
    Remote::new(move |gradients, scale, values| {
        let scaled = |(gradient, table): (&Cow<'_, [f32]>, &Tabled)| {
            let mut row: Vec<f32> = gradient.iter().map(|value| value * scale * share).collect();
            row.resize(table.rows * table.width, 0.0);
            row
        };
        let scaled: Vec<Vec<f32>> = gradients.iter().zip(&tables).map(scaled).collect();
        let pushed = scaled.iter().zip(&all).enumerate().map(|(number, (values, rows))| Gradient {
            table: number as u32,
            rows,
            values,
        });
        client.push(&pushed.collect::<Vec<_>>()).map_err(failed)?;
        let sent_bytes = 4 * pulled.len() as u64;
        let rows = all.iter().enumerate().map(|(number, rows)| (number as u32, &rows[..]));
        client.pull(&rows.collect::<Vec<_>>(), &mut pulled).map_err(failed)?;
        let mut rest = &pulled[..];
        for (values, table) in values.iter_mut().zip(&tables) {
            let (mine, after) = rest.split_at(table.rows * table.width);
            values.copy_from_slice(&mine[..table.length]);
            rest = after;
        }
        Ok(sent_bytes)
    })
}
