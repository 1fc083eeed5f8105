//! Training as the command runs it: makes a training job for every rank from the flags, and a report
//! from the results on rank 0.

pub mod checkpoints;
mod console;
mod elastic;
mod exchange;
mod first_epoch;
mod job;
mod machine;
mod messages;
mod model;
mod outcome;
pub mod plan;
mod policies;
mod progress;
mod recipe;
mod server;
mod server_flags;
mod settings;
mod snapshots;
mod timeline;
pub mod trace;

pub use exchange::usual_warm_up_steps;
pub use first_epoch::first_epoch;
pub use job::TrainingJob;
pub use machine::{command_line, date, describe as machine_name, ensure_writable};
pub use model::Model;
pub use server_flags::{ServerFlags, ServerMode, StoreFlags};
pub use settings::{CHECKPOINTS, Codec, GRADIENTS, OUTPUT, RANKS, TRAINING};
pub use settings::{PathFlag, PlanFlags, Settings, Typed, folder as checkpoint_folder};
pub use snapshots::{PATIENCE as SNAPSHOT_PATIENCE, ensure_writable as ensure_snapshots};

use anyhow::{Context, Result};
use thinwire_checkpoint::FolderLock;
use thinwire_collective::Group;
use thinwire_job::{Interrupt, Meeting, Place};
use thinwire_plan::report::{Numbers, PlanFile};
use thinwire_sync::{Channel, Policy};
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::session::{Ended, OF_PLAN, Ranks, Replicas, Session, check_folder};

use crate::output::say;
use crate::ranks::{self, Start};
use crate::size::Size;
use console::Console;
use outcome::Trained;
use plan::{Built, Parallelism};
use trace::Trace;

const MIXED: &str = "warning: the plan was made for mixed precision, but training uses single precision: \
                     the predicted step time and memory do not apply";

/// One process of a training, with its rank and the state shared by its runs.
struct Process<'a> {
    place: &'a Place,
    interrupt: &'a Interrupt,
    lock: &'a FolderLock,
}

/// Trains with each codec, or by a plan, on all ranks. Rank 0 prints the results. Returns the exit code.
///
/// # Errors
/// If the job cannot be done, or a rank is lost.
pub fn train(job: &TrainingJob, codecs: &[Option<&Policy>]) -> Result<u8> {
    let settings = &job.settings;
    if let Some(seat) = settings.place.member()? {
        return elastic::train(job, codecs, &seat);
    }
    let (place, lock) = match ranks::prepared(&settings.place, || start(job, codecs))? {
        Start::Rank(started) => started,
        Start::Done(code) => return Ok(code),
    };
    let interrupt = Interrupt::listen()?;
    let link = if job.parallelism.is_planned() {
        settings.link.with_bulk()
    } else {
        settings.link.clone()
    };
    let meeting = link.meet(&place, &settings.place, settings.limit(&place))?;
    let trained = thinwire_train::with_threads(settings.threads(&place), || {
        let process = Process { place: &place, interrupt: &interrupt, lock: &lock };
        runs(job, codecs, &process, &meeting)
    })?;
    outcome::conclude(job, &place, trained, &interrupt)
}

/// Refuses patterns for parameters on servers that match none of the model's parameters, or all of them.
///
/// # Errors
/// If the patterns are refused, or the model is not valid.
pub fn check_served(job: &TrainingJob, mode: &ServerMode) -> Result<()> {
    match &job.parallelism {
        Parallelism::Replicas(model) => {
            let model = model.smallest()?;
            let names: Vec<String> = model.parameters().iter().map(|it| it.name.clone()).collect();
            mode.served(&names).map(drop)
        }
        _ => Ok(()),
    }
}

/// Trains with the servers of a parameter server. Returns the exit code.
///
/// # Errors
/// If this process is not a member of a job with servers, or the training fails.
pub fn train_with_servers(job: &TrainingJob, mode: &ServerMode) -> Result<u8> {
    let seat = job.settings.place.member()?.context("a rank of a job with servers has no seat")?;
    server::train(job, mode, &seat)
}

/// Returns this rank and the lock of its checkpoint folder, or the exit code of ranks that have run
/// elsewhere.
fn start(job: &TrainingJob, codecs: &[Option<&Policy>]) -> Result<Start<(Place, FolderLock)>> {
    let settings = &job.settings;
    job.check(codecs)?;
    let place = match ranks::start(
        &settings.place,
        settings.ranks.and_then(Size::fixed),
        job.usual_ranks(),
    )? {
        Start::Rank(place) => place,
        Start::Done(code) => return Ok(Start::Done(code)),
    };
    job.check_world(place.world, "the job has")?;
    job.export_metrics(&place)?;
    let resumed = job.resume.as_ref().map(Checkpoint::path);
    let lock = FolderLock::hold(job.policy.as_ref(), place.rank, resumed)?;
    Ok(Start::Rank((place, lock)))
}

fn runs(
    job: &TrainingJob,
    codecs: &[Option<&Policy>],
    process: &Process<'_>,
    meeting: &Meeting,
) -> Result<Trained> {
    let Process { place, interrupt, lock } = *process;
    let mut trained = Trained { runs: Vec::new(), file: None, kept: Ok(()) };
    for &codec in codecs {
        // Rank 0 writes the trace, if anybody does.
        let path = job.settings.trace.as_deref().filter(|_| place.rank == 0);
        let name = codec.map_or(OF_PLAN.to_owned(), Policy::to_string);
        let trace = Trace::open(path, &name, trained.runs.len())?;
        let (made, group) = agreed(job, process, meeting)?;
        let built =
            made.as_ref().or(job.parallelism.built()).context("a training without a plan")?;
        let Built { computation, model } = built;
        trained.file = computation.file.clone();
        let is_mixed = |file: &PlanFile| file.precision == Numbers::Mixed;
        if computation.file.as_ref().is_some_and(is_mixed) && place.rank == 0 {
            say(MIXED);
        }
        job.resume.as_ref().map_or(Ok(()), |checkpoint| built.check_resumes(checkpoint))?;
        let config = checkpoints::config(job, model, computation.file.as_ref())?;
        let settings = &job.session(codec, place, config);
        let mut console = Console::new(job, codec, place);
        console.trace = trace.into();
        let session = Session { settings, place, interrupt, observer: &console, resizer: None };
        let of_rows = |rows| Built::computation(model, rows);
        let replicas = Replicas { unit: computation.unit, of_rows: &of_rows };
        let replicas = Some(replicas).filter(|_| computation.file.is_none());
        let ranks = Ranks::Fixed { channel: Channel::new(group), computation, replicas, lock };
        let Ended::Over(_, outcome) = outcome::run(&session, job, model, ranks)? else { break };
        let Trained { runs, kept, .. } = (*outcome).into();
        trained.runs.extend(runs);
        trained.kept = kept;
        if trained.kept.is_err() || interrupt.signal().is_some() {
            break;
        }
    }
    Ok(trained)
}

/// Returns the group of all ranks once they agree on the job, and the plan or model made at that time.
fn agreed(
    job: &TrainingJob,
    process: &Process<'_>,
    meeting: &Meeting,
) -> Result<(Option<Built>, Group)> {
    let Process { place, interrupt, .. } = *process;
    interrupt.end_at_once();
    let mut group = Group::new(meeting.link()?).with_timeout(job.settings.link.timeout);
    thinwire_sync::agree(&mut group, &job.facts())?;
    check_folder(job.policy.as_ref(), &mut group)?;
    interrupt.remember();
    if place.rank == 0 {
        let limit = job.settings.limit(place);
        job.parallelism.warning(limit).into_iter().for_each(say);
    }
    job.parallelism.make(group, &job.settings, job.recipe.batch)
}
