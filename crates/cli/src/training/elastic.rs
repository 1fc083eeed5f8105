//! Training as a member of an elastic job: joins the job that the flags describe, and runs a session in
//! it.

use anyhow::{Result, anyhow};
use thinwire_checkpoint::mark;
use thinwire_job::Interrupt;
use thinwire_job::elastic::{JobAddress, Membership};
use thinwire_member::{CoordinatorMode, Options};
use thinwire_sync::Policy;
use thinwire_train::Parameter;
use thinwire_train::session::{Ended, Members, Ranks, Replicas, Resizer, Session};

use super::console::Console;
use super::job::{CHECKPOINT_DIR, FIRST_STEP, TrainingJob};
use super::plan::Built;
use super::policies::JobResizer;
use super::{checkpoints, messages, outcome};
use crate::place::of_member;

/// Trains as a member of an elastic job. Rank 0 of the last epoch prints the results. Returns the exit code.
///
/// # Errors
/// If the job cannot be elastic or refuses this process, or this process fails on its own.
pub fn train(job: &TrainingJob, codecs: &[Option<&Policy>], address: &JobAddress) -> Result<u8> {
    let settings = &job.settings;
    let place = of_member(address);
    let [codec] = codecs else {
        return Err(anyhow!("{} codecs in an elastic job, expected one", codecs.len()));
    };
    job.check(codecs)?;
    // A rank without a row would end the training of all once it joins.
    let here = thinwire_job::process("LOCAL_WORLD_SIZE").and_then(|text| text.parse().ok());
    here.map_or(Ok(()), |ranks| job.check_world(ranks, "the launcher starts"))?;
    job.export_metrics(&place)?;
    let model = job.parallelism.model()?;
    let interrupt = Interrupt::listen()?;
    let mut facts = job.facts();
    // A process that joins later finds a newer checkpoint, and takes over the state of the others anyway.
    facts.retain(|(name, _)| name != FIRST_STEP);
    // A bucket has one name everywhere, and a process may join while it is away.
    let folder = job.policy.as_ref().filter(|policy| !policy.is_in_bucket());
    let mark = folder.map(|policy| mark(&policy.folder)).transpose()?;
    if let Some(mark) = &mark {
        facts.retain(|(name, _)| name != CHECKPOINT_DIR);
        facts.push((CHECKPOINT_DIR.to_owned(), format!("the folder with the mark {mark}")));
    }
    let exchange = job.exchange.resolved(*codec, job.recipe.steps).described().into_iter();
    facts.extend(exchange.map(|(name, value)| (name.to_owned(), value)));
    let (min, max) = (1, thinwire_wire::WORLD_SIZE_MAX);
    let options = Options::new(CoordinatorMode::Saved, min, max);
    let links = settings.link.of_job(settings.limit(&place))?;
    // The others do not wait for what this process can do before it joins.
    if let Some(policy) = codec {
        let smallest = model.smallest()?;
        let elements = smallest.parameters().iter().map(Parameter::elements);
        thinwire_sync::measure_codecs(policy, elements.max().unwrap_or(0), None);
    }
    let join = || Membership::join(address, &links, options, facts);
    let mut membership = messages::join(address, join)?;
    let config = checkpoints::config(job, model, None)?;
    let ended = thinwire_train::with_threads(settings.threads(&place), || {
        let settings = &job.session(*codec, &place, config);
        let observer = &Console::new(job, *codec, &place);
        let resizer = JobResizer::new(address);
        let (place, interrupt) = (&place, &interrupt);
        let resizer: Option<&dyn Resizer> = Some(&resizer);
        let session = Session { settings, place, interrupt, observer, resizer };
        let (of_rows, membership) = (|rows| Built::computation(model, rows), &mut membership);
        let replicas = Replicas { unit: model.unit()?, of_rows: &of_rows };
        outcome::run(&session, job, model, Ranks::Elastic(Members { replicas, membership, mark }))
    })??;
    match ended {
        Ended::Left => Ok(0),
        Ended::Alone => Ok(interrupt.exit_code()),
        Ended::Over(place, outcome) => {
            if place.rank > 0 {
                messages::over(place.rank);
            }
            outcome::conclude(job, &place, Ok((*outcome).into()), &interrupt)
        }
    }
}
