//! Training under a plan for the whole model: by a planner's file, or planned on the spot.

mod build;
mod calibrate;
mod checkpoints;
mod figures;
mod footprint;
mod kept;
mod links;
mod machines;
mod make;
mod memory;
mod request;
mod session;

pub use calibrate::cluster as calibrate;
pub use kept::KeptPlan;
pub use make::{Asked, Parallel};
pub use request::Request;

use std::collections::BTreeMap;

use anyhow::Result;
use thinwire_collective::Group;
use thinwire_job::{Meeting, Place};
use thinwire_link::Bandwidth;
use thinwire_sync::Policy;
use thinwire_wire::Rank;

use super::folder::FolderLock;
use super::interrupt::Interrupt;
use super::trace::{self, Trace};
use super::{Done, folder, machine, rank, shared};
use crate::failure;
use crate::file;
use crate::output::say;
use crate::ranks::{self, Start};
use crate::report::{self, Report, Run};
use build::Built;
use request::Source;
use session::Session;
use thinwire_plan::output::{Numbers, PlanFile};

/// Name of runs under a plan, in the place of a codec's.
pub const NAME: &str = "plan";

/// Trains under a plan, in all ranks.
///
/// # Errors
/// If the plan cannot be run as asked, or a rank is lost.
pub fn train(request: &Request) -> Result<Done> {
    let settings = &request.settings;
    let (place, lock) = match ranks::prepared(&settings.place, || start(request))? {
        Start::Rank(started) => started,
        Start::Done(code) => return Ok(Done::Elsewhere(code)),
    };
    let interrupt = Interrupt::listen()?;
    let link = settings.link.with_bulk();
    let meeting = link.meet(&place, &settings.place, settings.limit(&place))?;
    let threads = settings.threads(&place);
    let ran = thinwire_train::threads::run(threads, || {
        run(request, (&place, &meeting), (&interrupt, &lock))
    })?;
    let resume_hint = |error| {
        failure::or_resume_hint(error, || {
            folder::resume_hint(request.policy.as_ref(), request.resume.as_ref())
        })
    };
    let (run, planned, kept) = ran.map_err(resume_hint)?;
    let kept = kept.map_err(resume_hint);
    let code = kept.map(|()| interrupt.exit_code());
    if place.rank > 0 {
        return Ok(Done::Silent(code?));
    }
    let report = report(request, &place, (run, &planned));
    if let Some(path) = &settings.report.0 {
        file::replace(path, report::page(&report).as_bytes())?;
        say(format!("report: {}", path.display()));
    }
    Ok(Done::Here(Box::new(report), code))
}

/// This rank, with the folder of its checkpoints, or the code of ranks that have run elsewhere.
fn start(request: &Request) -> Result<Start<(Place, FolderLock)>> {
    let settings = &request.settings;
    let found = settings.place.find()?;
    match settings.ranks {
        Some(ranks) => request.check_world(ranks, "--ranks says")?,
        None if found.is_none() => {
            request.check_world(request.usual_ranks(), "one machine starts at most")?;
        }
        None => {}
    }
    if found.is_none_or(|place| place.rank == 0) {
        if let Some(path) = &settings.report.0 {
            file::ensure_place(path, "the report", "--report, or none")?;
        }
        trace::ensure(settings.trace.as_deref())?;
    }
    if let Some(policy) = &request.policy {
        machine::ensure_writable(&policy.folder)?;
    }
    let place = match ranks::start(&settings.place, settings.ranks, request.usual_ranks())? {
        Start::Rank(place) => place,
        Start::Done(code) => return Ok(Start::Done(code)),
    };
    request.check_world(place.world, "the job has")?;
    let lock = folder::hold(request.policy.as_ref(), place.rank, request.resume.as_ref())?;
    Ok(Start::Rank((place, lock)))
}

fn run(
    request: &Request,
    (place, meeting): (&Place, &Meeting),
    (interrupt, lock): (&Interrupt, &FolderLock),
) -> Result<(Run, PlanFile, Result<()>)> {
    let path = request.settings.trace.as_deref().filter(|_| place.rank == 0);
    let trace = Trace::open(path, NAME, true)?;
    let mut group = Group::new(meeting.link()?).with_timeout(request.settings.link.timeout());
    thinwire_sync::agree(&mut group, &request.facts())?;
    shared::check_folder(request.policy.as_ref(), place.rank, |mine| {
        Ok(thinwire_collective::all_gather(&mut group, mine)?)
    })?;
    interrupt.remember();
    if let (Source::Made(wish), 0) = (&request.source, place.rank) {
        let limit = request.settings.limit(place);
        wish.cluster
            .as_ref()
            .and_then(|machines| machines.warning(limit))
            .into_iter()
            .for_each(say);
    }
    let made;
    let built = match &request.source {
        Source::File(_, built, _) => built.as_ref(),
        Source::Made(wish) => {
            let (file, same) = wish.plan(group)?;
            group = same;
            let tokens = request.settings.recipe.input.as_ref();
            made = Built::of(file, tokens.map(|tokens| &tokens.0[..]))?;
            &made
        }
    };
    if built.file.precision == Numbers::Mixed && place.rank == 0 {
        say(
            "warning: the plan was made for mixed precision, and training is in single: step and memory are predicted for something else",
        );
    }
    let mut session = Session::start((request, built), group, (interrupt, lock), trace)?;
    let planned = session.run()?;
    let raw_bytes = session.raw_bytes();
    let writes = place.rank == 0 && interrupt.signal().is_none();
    let whole = if writes { session.whole()? } else { None };
    let (log, saved) = session.finish();
    if let Some(warning) = log.warning("none").filter(|_| place.rank == 0) {
        say(warning);
    }
    let tokens = (built.file.batch * built.file.sequence) as f64;
    let rate = request.settings.limit(place).map(Bandwidth::bytes_per_s);
    let mut run = log.run(NAME.to_owned(), tokens, rate);
    let mine = planned.ranks.iter().find(|rank| rank.rank == Rank(place.rank).index());
    run.sent_bytes = mine.map_or(0.0, |rank| rank.counted_bytes as f64 / planned.steps as f64);
    run.raw_bytes = raw_bytes;
    run.floors.wire_s = rate.map(|rate| run.sent_bytes / rate);
    run.floors.compute_s = planned.ranks.iter().map(|rank| rank.busy_s).fold(0.0, f64::max);
    let (saved, kept) = match saved {
        Ok(path) => (path, Ok(())),
        Err(error) => (None, Err(error)),
    };
    run.checkpoint = saved.map(|path| path.display().to_string());
    run.planned = Some(planned);
    match (whole, &run.checkpoint) {
        (Some(whole), _) => {
            let bytes = usize::from(request.settings.sample_bytes);
            run.sample = sample(built, whole, (bytes, request.recipe.seed))?;
        }
        (None, Some(path)) if writes => {
            say(format!("the model lies in parts: thinwire sample {path} lets it write"));
        }
        _ => {}
    }
    Ok((run, built.file.clone(), kept))
}

/// So many bytes of text of a model that this rank has as a whole, drawn by a seed, if it can write
/// any.
fn sample(
    built: &Built,
    mut whole: BTreeMap<String, Vec<f32>>,
    (bytes, seed): (usize, u64),
) -> Result<String> {
    let writer = built.writer(bytes)?;
    let values = writer.parameters().iter().map(|parameter| whole.remove(&parameter.name));
    let values: Option<Vec<Vec<f32>>> = values.collect();
    Ok(values.map_or(String::new(), |values| rank::sample(&writer, &values, (bytes, seed))))
}

fn report(request: &Request, place: &Place, (run, file): (Run, &PlanFile)) -> Report {
    request.settings.report(place, request.described(file), vec![run])
}

/// Refuses a codec: what gradients are encoded with is the plan's to say.
///
/// # Errors
/// If one was asked for.
pub fn check_codec(codec: Option<&Policy>) -> Result<()> {
    match codec {
        None => Ok(()),
        Some(codec) => Err(crate::failure::hinted(
            anyhow::anyhow!("--codec {codec} with a plan, which says itself how gradients travel"),
            "leave --codec out",
        )),
    }
}
