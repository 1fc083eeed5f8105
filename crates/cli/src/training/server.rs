//! Training with all or some parameters on servers: joins the job that the flags describe, and runs a
//! session in it.

use anyhow::{Result, anyhow};
use thinwire_job::Interrupt;
use thinwire_job::elastic::{JobAddress, Presence};
use thinwire_member::{CoordinatorMode, Options};
use thinwire_report::figures;
use thinwire_sync::Policy;
use thinwire_train::session::{Ended, Ranks, Replicas, Session, Workers};
use thinwire_wire::WORLD_SIZE_MAX;

use super::console::Console;
use super::first_epoch::first_epoch;
use super::job::TrainingJob;
use super::outcome::{self, Trained};
use super::plan::Built;
use super::server_flags::{self, ServerMode};
use super::{checkpoints, messages, snapshots};
use crate::place::of_member;

/// Trains with servers. The lowest rank that remains at the end prints the results. Returns the exit
/// code.
///
/// # Errors
/// If the job or its servers refuse this process, a shard is lost, or another rank is lost in hybrid mode.
pub fn train(job: &TrainingJob, mode: &ServerMode, address: &JobAddress) -> Result<u8> {
    let settings = &job.settings;
    let place = of_member(address);
    job.export_metrics(&place)?;
    let model = job.parallelism.model()?;
    let smallest = model.smallest()?;
    let names: Vec<String> = smallest.parameters().iter().map(|it| it.name.clone()).collect();
    let served = mode.served(&names)?;
    let interrupt = Interrupt::listen()?;
    let links = settings.link.of_job(settings.limit(&place))?;
    let options = Options::new(CoordinatorMode::Saved, 1, WORLD_SIZE_MAX);
    let mut facts = job.facts();
    facts.extend(mode.facts());
    if mode.is_hybrid() {
        let exchange = job.exchange.described().into_iter();
        facts.extend(exchange.map(|(name, value)| (name.to_owned(), value)));
    }
    let origin = mode.snapshots.origin()?;
    let join = || Presence::join(address, &links, options, facts);
    let presence = messages::join(address, join)?;
    let ranks = mode.is_hybrid().then_some(mode.ranks);
    let epoch = first_epoch(&presence, address, ranks, settings.link.timeout)?;
    interrupt.remember();
    let codec = job.codec.clone().filter(|_| mode.is_hybrid());
    let codec: &Policy = &codec.map_or_else(|| "none".parse(), Ok)?;
    let (presence, origin) = (&presence, origin.as_ref());
    let config = checkpoints::config(job, model, None)?;
    let ended = thinwire_train::with_threads(settings.threads(&place), || {
        let settings = job.session(Some(codec), &place, config);
        let others = names.len() - served.len();
        let of_servers = |bytes| {
            let partial = snapshots::warning(origin, others);
            let warning = partial.map(|it| format!("warning: {it}"));
            let mut lines: Vec<_> = warning.into_iter().collect();
            lines.extend(origin.map(snapshots::beginning));
            if mode.is_hybrid() {
                let (on, all) = (served.len(), names.len());
                let (bytes, shown) = (figures::bytes(bytes as f64), server_flags::shown(&served));
                lines.push(format!("{on} of {all} parameters are on servers ({bytes}): {shown}"));
            }
            lines
        };
        let mut console = Console::new(job, Some(codec), &place);
        console.of_servers = &of_servers;
        let (settings, observer) = (&settings, &console);
        let session =
            Session { settings, place: &place, interrupt: &interrupt, observer, resizer: None };
        let of_rows = |rows| Built::computation(model, rows);
        let workers = Workers {
            replicas: Replicas { unit: model.unit()?, of_rows: &of_rows },
            servers: &mode.settings,
            served: &served,
            origin,
            address,
            presence,
            epoch,
            after_push: &|| mode.snapshots.asker(address),
        };
        outcome::run(&session, job, model, Ranks::Workers(workers))
    })?;
    let (place, trained) = match ended {
        Ok(Ended::Over(place, outcome)) => (place, Ok(Trained::from(*outcome))),
        Ok(Ended::Left | Ended::Alone) => (place, Err(anyhow!("a worker has left"))),
        Err(error) => (place, Err(error)),
    };
    let code = outcome::conclude(job, &place, trained, &interrupt)?;
    if interrupt.signal().is_some() {
        presence.leave();
    }
    Ok(code)
}
