//! End of a training: a sample of the model, which is a text that it writes or the part of images that it
//! classifies correctly, and the output of rank 0.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use thinwire_job::{Interrupt, Place};
use thinwire_plan::report::PlanFile;
use thinwire_report::training::{self as report, Report, Run};
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::session::{Ended, Outcome, Ranks, Session, TrainedModel};
use thinwire_train::spmd::{GraphModel, Modality, Sampled};
use thinwire_train::{Sampling, validation_batches};
use thinwire_wire::World;

use super::checkpoints;
use super::job::TrainingJob;
use super::model::Model;
use super::settings::Settings;
use crate::output::{harmless, print, print_json, say};
use crate::{failure, file};

const SAMPLE_TEMPERATURE: f32 = 0.7;

/// Values of all parameters by name.
type Values = BTreeMap<String, Vec<f32>>;

/// Results of a training so far.
pub struct Trained {
    /// Completed runs.
    pub runs: Vec<Run>,
    /// Plan of the runs.
    pub file: Option<PlanFile>,
    /// Result of writing the last checkpoint.
    pub kept: Result<()>,
}

impl From<Outcome> for Trained {
    fn from(outcome: Outcome) -> Trained {
        let kept = outcome.saved.map_err(Into::into);
        Trained { runs: vec![outcome.run], file: None, kept }
    }
}

/// Runs a session, and adds a sample of its model.
///
/// # Errors
/// If the session fails, or the model's file has changed.
pub fn run(
    session: &Session<'_>,
    job: &TrainingJob,
    model: &Model,
    ranks: Ranks<'_>,
) -> Result<Ended> {
    let mut ended = session.run(ranks)?;
    if let Ended::Over(_, outcome) = &mut ended {
        judge(outcome, job, model)?;
    }
    Ok(ended)
}

/// Ends a training. Rank 0 writes the report and prints the results.
///
/// # Errors
/// If the training failed, or its last checkpoint or its report could not be written.
pub fn conclude(
    job: &TrainingJob,
    place: &Place,
    trained: Result<Trained>,
    interrupt: &Interrupt,
) -> Result<u8> {
    let settings = &job.settings;
    let resume_hint = |error| {
        failure::or_resume_hint(error, || {
            checkpoints::resume_hint(job.policy.as_ref(), job.resume.as_ref())
        })
    };
    let Trained { runs, file, kept } = trained.map_err(resume_hint)?;
    let code = kept.map_err(resume_hint).map(|()| interrupt.exit_code());
    if place.rank > 0 {
        return code;
    }
    let report = job.report(place, file.as_ref(), runs);
    if let Some(path) = &settings.report.0 {
        file::replace(path, report::page(&report).as_bytes())?;
        say(format!("report: {}", path.display()));
    }
    show(&report, settings)?;
    code
}

/// Prints the report. For a single training, this includes the text that its model writes.
fn show(report: &Report, settings: &Settings) -> Result<()> {
    if settings.json {
        return report::lines(report).iter().try_for_each(print_json);
    }
    if let [run] = &report.runs[..]
        && !run.sample.is_empty()
    {
        print(format!("{}\n\n", run.sample.trim_end()))?;
    }
    print(report::summary(report))
}

/// Adds to the run of a training the text that its model writes, or the number of held-out images classified
/// correctly.
///
/// If rank 0 has only a part of the model, the whole model is read from the last checkpoint.
fn judge(outcome: &mut Outcome, job: &TrainingJob, model: &Model) -> Result<()> {
    let Outcome { run, model: trained, modality, .. } = outcome;
    let whole = match std::mem::replace(trained, TrainedModel::Elsewhere) {
        TrainedModel::Elsewhere => return Ok(()),
        TrainedModel::InParts => None,
        TrainedModel::Whole(whole) => Some(whole),
    };
    match (modality, whole) {
        (Modality::Text(_), Some(whole)) => run.sample = sample(job, model, whole)?,
        (Modality::Text(_), None) => {
            if let Some(path) = &run.checkpoint {
                say(format!(
                    "each rank has only a part of the model: thinwire sample {path} writes text with it"
                ));
            }
        }
        (modality @ Modality::Images(_), whole) => {
            let [rows, _] = modality.sizes();
            run.accuracy = accuracy(run, job, model, rows, whole)?;
        }
    }
    Ok(())
}

/// Returns a text written by the model. The text is empty if the model cannot write, which does not make the
/// training fail.
fn sample(job: &TrainingJob, model: &Model, whole: Values) -> Result<String> {
    let bytes = usize::from(job.settings.sample_bytes);
    let writer = model.writer(bytes)?;
    let options = Sampled { bytes, temperature: SAMPLE_TEMPERATURE, seed: job.recipe.seed };
    let text =
        in_order(&writer, whole).and_then(|values| writer.sample(&values, b"", &options).ok());
    Ok(text.map_or(String::new(), |text| harmless(&text)))
}

/// Returns the part of held-out images classified correctly, over as many as in a validation, in batches of
/// `rows`. Returns `None` without such images.
fn accuracy(
    run: &Run,
    job: &TrainingJob,
    model: &Model,
    rows: usize,
    whole: Option<Values>,
) -> Result<Option<f64>> {
    let batches = usize::from(job.settings.validation_batches) * job.recipe.batch / rows.max(1);
    let world = World::alone();
    let sampling = Sampling { context: 1, global_batch: rows, unit: rows, world, seed: 0 };
    let batches = validation_batches(&job.dataset, &sampling, batches);
    let (graph, _) = model.graph(rows)?;
    let model = GraphModel::new(&graph, model.tokens())?;
    let values = match (whole, &run.checkpoint) {
        (Some(whole), _) => in_order(&model, whole),
        (None, Some(path)) => {
            // Files of other machines may not be here.
            Checkpoint::open(Path::new(path)).and_then(|it| it.values(model.parameters())).ok()
        }
        (None, None) => None,
    };
    let Some(values) = values.filter(|_| !batches.is_empty()) else { return Ok(None) };
    let right: usize = batches.iter().map(|batch| model.count_right(&values, batch)).sum();
    Ok(Some(right as f64 / (batches.len() * rows) as f64))
}

/// Returns the values in the order of a model's parameters, if there is one for each.
fn in_order(model: &GraphModel, mut whole: Values) -> Option<Vec<Vec<f32>>> {
    model.parameters().iter().map(|parameter| whole.remove(&parameter.name)).collect()
}
