//! Training as the command does it: what was typed becomes a training job, which every rank follows,
//! and what rank 0 saw becomes a report.

mod checkpoints;
mod corpus;
mod exchange;
mod folder;
mod interrupt;
mod job;
mod log;
mod machine;
mod model;
pub mod planned;
mod progress;
mod rank;
mod settings;
mod shared;
pub mod trace;

pub use job::{CheckpointPolicy, TrainingJob, kept_writer};
pub use machine::command_line;
pub use settings::{Codec, PathFlag, Settings};

use anyhow::{Result, anyhow};
use thinwire_job::Place;
use thinwire_sync::{Feedback, Policy};

use crate::failure::{self, hinted};
use crate::file;
use crate::output::say;
use crate::ranks::{self, Start};
use crate::report::{self, Report, Run};
use folder::FolderLock;
use interrupt::Interrupt;
use trace::Trace;

/// Result of a command's trainings.
pub enum Done {
    /// The ranks that were started have done everything; exit with this code.
    Elsewhere(u8),
    /// This is rank 0 with what it saw, and the code to exit with, or why the last checkpoint could
    /// not be written.
    Here(Box<Report>, Result<u8>),
    /// This is another rank.
    Silent(u8),
}

/// Trains under each codec, in all ranks.
///
/// # Errors
/// If the settings cannot be followed, or a rank is lost.
pub fn train(job: &TrainingJob, codecs: &[Policy]) -> Result<Done> {
    let settings = &job.settings;
    let (place, lock) = match ranks::prepared(&settings.place, || start(job, codecs))? {
        Start::Rank(started) => started,
        Start::Done(code) => return Ok(Done::Elsewhere(code)),
    };
    let interrupt = Interrupt::listen()?;
    let meeting = settings.link.meet(&place, &settings.place, job.settings.limit(&place))?;
    let threads = job.settings.threads(&place);
    let ran = thinwire_train::threads::run(threads, || -> Result<(Vec<Run>, _)> {
        let (mut runs, mut kept) = (Vec::new(), Ok(()));
        for codec in codecs {
            let trace = trace(job, codec, &place, runs.is_empty())?;
            let (run, saved) =
                rank::train(job, codec, (&place, &meeting), (&interrupt, &lock), trace)?;
            runs.push(run);
            kept = saved;
            if kept.is_err() || interrupt.signal().is_some() {
                break;
            }
        }
        Ok((runs, kept))
    })?;
    let resume_hint = |error| {
        failure::or_resume_hint(error, || {
            folder::resume_hint(job.policy.as_ref(), job.resume.as_ref())
        })
    };
    let (runs, kept) = ran.map_err(resume_hint)?;
    let kept = kept.map_err(resume_hint);
    let code = kept.map(|()| interrupt.exit_code());
    if place.rank > 0 {
        return Ok(Done::Silent(code?));
    }
    let report = job.report(&place, runs);
    if let Some(path) = &settings.report.0 {
        file::replace(path, report::page(&report).as_bytes())?;
        say(format!("report: {}", path.display()));
    }
    Ok(Done::Here(Box::new(report), code))
}

/// This rank, with the folder of its checkpoints, or the code of ranks that have run elsewhere.
fn start(job: &TrainingJob, codecs: &[Policy]) -> Result<Start<(Place, FolderLock)>> {
    let settings = &job.settings;
    if let Some(ranks) = job.ranks() {
        job.check_world(ranks)?;
    }
    check_outputs(job)?;
    check_budget(settings.error_budget, codecs)?;
    check_feedback(settings.feedback, codecs)?;
    check_warm_up(settings.warmup_steps, codecs)?;
    let place = match ranks::start(&settings.place, settings.ranks, job.ranks().unwrap_or(2))? {
        Start::Rank(place) => place,
        Start::Done(code) => return Ok(Start::Done(code)),
    };
    job.check_world(place.world)?;
    let lock = folder::hold(job.policy.as_ref(), place.rank, job.resume.as_ref())?;
    Ok(Start::Rank((place, lock)))
}

/// Rank 0 writes the trace, if anybody does.
fn trace(job: &TrainingJob, codec: &Policy, place: &Place, first: bool) -> Result<Trace> {
    let path = job.settings.trace.as_deref().filter(|_| place.rank == 0);
    Trace::open(path, &codec.to_string(), first)
}

/// Refuses a feedback for codecs that leave nothing to feed back.
fn check_feedback(feedback: Option<Feedback>, codecs: &[Policy]) -> Result<()> {
    let Some(feedback) = feedback.filter(|given| *given != Feedback::default()) else {
        return Ok(());
    };
    if codecs.iter().any(Policy::leaves_a_residual) {
        return Ok(());
    }
    let named = codecs.iter().map(Policy::to_string).collect::<Vec<_>>().join(",");
    let error =
        anyhow!("--feedback {feedback} with codec {named}, which leaves nothing to feed back");
    Err(hinted(error, "int8, topk:0.01 and powersgd:4 leave residuals, for instance"))
}

/// Refuses a warm-up together with `auto`.
fn check_warm_up(steps: Option<u64>, codecs: &[Policy]) -> Result<()> {
    let Some(steps) = steps.filter(|steps| *steps > 0) else { return Ok(()) };
    if codecs.iter().any(|codec| matches!(codec, Policy::Fixed(_))) {
        return Ok(());
    }
    let named = codecs.iter().map(Policy::to_string).collect::<Vec<_>>().join(",");
    let error =
        anyhow!("--warmup-steps {steps} with codec {named}, which measures its codecs instead");
    Err(hinted(error, "leave it out, or name one codec: --codec powersgd:4"))
}

/// Refuses an error budget that nobody keeps.
fn check_budget(budget: Option<f64>, codecs: &[Policy]) -> Result<()> {
    let usual = thinwire_sync::Options::default().error_budget;
    let Some(budget) = budget.filter(|given| *given != usual) else { return Ok(()) };
    if codecs.iter().any(Policy::keeps_a_budget) {
        return Ok(());
    }
    let named = codecs.iter().map(Policy::to_string).collect::<Vec<_>>().join(",");
    let error = anyhow!("--error-budget {budget} with codec {named}, which keeps to none");
    Err(hinted(error, "only --codec auto, without names, keeps to an error budget"))
}

/// Finds what cannot be written before hours of training are lost. All ranks write checkpoints,
/// rank 0 alone writes the report and the trace.
fn check_outputs(job: &TrainingJob) -> Result<()> {
    if let Some(policy) = &job.policy {
        machine::ensure_writable(&policy.folder)?;
    }
    if job.settings.place.find()?.is_some_and(|place| place.rank > 0) {
        return Ok(());
    }
    if let Some(path) = &job.settings.report.0 {
        file::ensure_place(path, "the report", "--report, or none")?;
    }
    trace::ensure(job.settings.trace.as_deref())
}
