//! Training as a member of an elastic job, from epoch to epoch.
//!
//! Each epoch is a [`Session`] among its members. It ends after a step that all agree on, or with the loss of
//! a peer; this process keeps its [`Course`] and its replica as a [`Carried`]. The next epoch begins with the
//! state of its holders, who re-form their exchange; joiners take the state over. Without holders all begin
//! with the last checkpoint, or from the start.
//!
//! Law: the members of the next epoch repeat a step in which a peer was lost, with the same rows of data.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde_json::json;
use thinwire_collective::Group;
use thinwire_job::elastic::{self, Membership, Next, Run as EpochRun};
use thinwire_job::{Form, Host, Place, Source};
use thinwire_member::{Authority, Epoch, Id, Options};
use thinwire_sync::{Channel, Policy};
use thinwire_train::checkpoint::{Checkpoint, latest};
use thinwire_train::spmd::{Carried, Snapshot};
use thinwire_train::{Parameter, rows};
use thinwire_wire::Rank;

use super::engine::Engine;
use super::interrupt::Interrupt;
use super::job::{FIRST_STEP, TrainingJob};
use super::plan::{Built, Parallelism};
use super::seat::Seat;
use super::session::{About, Course, End, Session};
use super::trace::Trace;
use super::{Trained, checkpoints, folder, shared};
use crate::failure::{self, hinted};
use crate::report::Change;

/// Longest wait to hear from the coordinator who leaves, after another rank has said that the epoch ends.
const NOTICE: Duration = Duration::from_secs(2);

/// Trains as a member of an elastic job; rank 0 of the last epoch prints. Returns the code to exit with.
///
/// # Errors
/// If the job cannot be elastic or refuses this process, or this process fails by itself.
pub fn train(job: &TrainingJob, codecs: &[Option<&Policy>], seat: &elastic::Seat) -> Result<u8> {
    let settings = &job.settings;
    let place = Place {
        coordinator: seat.coordinator.clone(),
        host: Host::Launcher,
        source: Source::Thinwire,
        local_world: thinwire_job::local_ranks(&thinwire_job::process),
        ..Place::alone(Form::Flags)
    };
    let [codec] = codecs else {
        return Err(anyhow!("{} codecs in an elastic job, expected one", codecs.len()));
    };
    if let Some(path) = &settings.trace {
        let error = anyhow!("--trace {} in an elastic job", path.display());
        return Err(hinted(error, "leave it out: the steps of a trace are those of one rank 0"));
    }
    job.check(codecs)?;
    let interrupt = Interrupt::listen()?;
    // Who joins later finds a newer checkpoint, and takes the state of the others over anyway.
    let mut facts = job.facts();
    facts.retain(|(name, _)| name != FIRST_STEP);
    let exchange = job.exchange.described().into_iter();
    facts.extend(exchange.map(|(name, value)| (name.to_owned(), value)));
    let (min, max) = (1, thinwire_wire::WORLD_SIZE_MAX);
    let options = Options::new(Authority::Saved, min, max);
    let links = settings.link.of_job(settings.limit(&place))?;
    // The others do not wait for what this process can do before it joins.
    if let (Some(policy), Parallelism::Replicas(model)) = (codec, &job.parallelism) {
        let model = model.smallest()?;
        let elements = model.parameters().iter().map(Parameter::elements);
        thinwire_sync::measure_codecs(policy, elements.max().unwrap_or(0));
    }
    let mut membership = Membership::join(seat, &links, options, facts)?;
    let elastic = Elastic::new(job, *codec, &place, &interrupt);
    let threads = settings.threads(&place);
    let ended = thinwire_train::threads::run(threads, || elastic.train(&mut membership))?;
    match ended? {
        Ended::Left => Ok(0),
        Ended::Over(place, trained) => super::conclude(job, &place, Ok(*trained), &interrupt),
    }
}

/// A process of an elastic job, which trains a replica.
struct Elastic<'a> {
    job: &'a TrainingJob,
    codec: Option<&'a Policy>,
    place: &'a Place,
    interrupt: &'a Interrupt,
    /// State of the training in this process; none before its first epoch.
    kept: Option<(Course, Carried)>,
}

/// End of an elastic training for one process.
enum Ended {
    /// The training is over; the place is that in the last epoch.
    Over(Place, Box<Trained>),
    /// The process has left a training that goes on.
    Left,
}

impl<'a> Elastic<'a> {
    /// A process before its first epoch; `place` has all but its rank and the size of the world.
    fn new(
        job: &'a TrainingJob,
        codec: Option<&'a Policy>,
        place: &'a Place,
        interrupt: &'a Interrupt,
    ) -> Elastic<'a> {
        Elastic { job, codec, place, interrupt, kept: None }
    }

    /// Trains in one epoch after another until the training is over, or this process has left.
    ///
    /// # Errors
    /// If the job refuses this process, or it fails by itself. The loss of a peer is no error.
    fn train(mut self, membership: &mut Membership) -> Result<Ended> {
        loop {
            // Nobody depends on a process between epochs.
            self.interrupt.end_at_once();
            let run = match membership.next()? {
                Next::Run(run) => run,
                Next::Left => return Ok(Ended::Left),
            };
            self.interrupt.remember();
            match self.epoch(membership, *run) {
                Ok(Some(ended)) => return Ok(ended),
                Ok(None) => {}
                Err(error) => match failure::lost_rank(&error) {
                    Some(rank) => rank.into_iter().for_each(|rank| membership.lost(rank)),
                    None => return Err(error),
                },
            }
            membership.halted();
        }
    }

    /// Trains in one epoch; returns the end of the training if it is over.
    fn epoch(&mut self, membership: &Membership, run: EpochRun) -> Result<Option<Ended>> {
        let EpochRun { epoch, world, link } = run;
        let place =
            Place { rank: world.rank().0, world: world.size() as u32, ..self.place.clone() };
        let policy = self.job.policy.as_ref();
        let lock = match epoch.holders {
            0 => folder::hold(policy, place.rank, self.job.resume.as_ref())?,
            _ => folder::hold_again(policy, place.rank)?,
        };
        let seat = Seat { place: &place, interrupt: self.interrupt, lock: &lock };
        let (job, timeout) = (self.job, self.job.settings.link.timeout());
        let mut group = Group::new(link).with_timeout(timeout);
        shared::check_folder(job.policy.as_ref(), place.rank, &mut group)?;
        let channel = Channel::new(group);
        let stop = channel.stop();
        membership.on_abort(move || stop.stop("the members of the job change"));
        let Parallelism::Replicas(model) = &job.parallelism else {
            return Err(anyhow!("an elastic training of parts of a plan"));
        };
        let rows = rows(job.recipe.batch, model.unit()?, world);
        let built = Built::replica(model, rows.len())?;
        let place_of = (&seat, channel.clone());
        let (engine, course) = self.begin(membership, &epoch, place_of, &built)?;
        membership.synced(course.done());
        let title = (epoch.holders == 0).then(|| engine.title(job, self.codec, &seat));
        let (ranks, holders) = (epoch.members.len(), epoch.holders as usize);
        let change =
            Change { epoch: epoch.number, ranks, joined: ranks - holders, ..Change::default() };
        let session = Session::resume((job, title.as_deref()), engine, &seat, course)?;
        let mut session = session.of_epoch(membership, (holders > 0).then_some(change));
        match session.steps().and_then(|end| session.meet(end)) {
            Ok(End::Over) => {
                membership.complete();
                let (run, kept) = session.finish()?;
                let trained = Trained { runs: vec![run], file: None, kept };
                Ok(Some(Ended::Over(place, Box::new(trained))))
            }
            ended => {
                let (course, mut carried) = session.leave();
                let handed = match ended {
                    Ok(_) => hand_on(membership, &epoch, &channel, &mut carried)
                        .inspect(|()| carried.release()),
                    Err(error) => Err(error),
                };
                self.kept = Some((course, carried));
                handed.map(|()| None)
            }
        }
    }

    /// The replica with the newest state, and the course up to it. Where this fails with a peer, what this
    /// process has is kept for the next epoch.
    fn begin<'b>(
        &mut self,
        membership: &Membership,
        epoch: &Epoch,
        (seat, channel): (&Seat<'_>, Channel),
        built: &'b Built,
    ) -> Result<(Engine<'b>, Course)> {
        if epoch.holders == 0 {
            self.kept = None;
            return self.found(epoch, (seat, channel), built);
        }
        // The residuals of a rank belong to the others' state only if it lacks at most the last step.
        self.kept.take_if(|(_, carried)| {
            !(epoch.done.saturating_sub(1)..=epoch.done).contains(&carried.step())
        });
        let holds = epoch.holds(membership.id());
        let mut state = None;
        if let Some((course, carried)) = &mut self.kept {
            carried.settle(epoch.done)?;
            if holds && (epoch.holders as usize) < epoch.members.len() {
                state = Some(carried.snapshot(&json!(course.about()).to_string())?);
            }
        } else if holds {
            return Err(anyhow!("the job counts on a state that this process does not have"));
        }
        if (epoch.holders as usize) < epoch.members.len() {
            state = Some(channel.hand_over(epoch.holders, state)?);
        }
        if let Some((_, carried)) = &mut self.kept {
            carried.reform(&channel)?;
        }
        let (mut engine, mut course) = match self.kept.take() {
            Some((course, carried)) => {
                let place = (seat, channel);
                (Engine::resume(self.job, self.codec, place, (built, carried))?, course)
            }
            None => {
                let engine = Engine::start(self.job, self.codec, (seat, channel), built)?;
                (engine, self.course(epoch, 0))
            }
        };
        if let Some(state) = state.filter(|_| !holds) {
            let snapshot = Snapshot::parse(&state)?;
            let about = serde_json::from_str(&snapshot.about)
                .context("the position in the data that another rank has sent")?;
            course.seek(snapshot.step, about);
            engine.machine.take_over(snapshot)?;
        }
        Ok((engine, course))
    }

    /// The replica of an epoch of which nobody has the state: it begins with a checkpoint, or at the
    /// beginning.
    fn found<'b>(
        &self,
        epoch: &Epoch,
        (seat, channel): (&Seat<'_>, Channel),
        built: &'b Built,
    ) -> Result<(Engine<'b>, Course)> {
        let world = channel.world();
        let mut engine = Engine::start(self.job, self.codec, (seat, channel), built)?;
        let newest = if epoch.number > 1 { self.newest(epoch)? } else { None };
        let step_of = |found: &Checkpoint| found.manifest().progress.step;
        let checkpoint =
            newest.as_ref().into_iter().chain(&self.job.resume).max_by_key(|it| step_of(it));
        let step = checkpoint.map_or(0, step_of);
        let steps = engine.machine.gather(&[step as f32])?;
        if let Some(other) = steps.iter().find(|other| **other != step as f32) {
            let error =
                anyhow!("this rank finds a checkpoint of step {step}, another one of step {other}");
            return Err(hinted(
                error,
                "--checkpoint-dir must be a folder that all ranks share, or none",
            ));
        }
        let mut course = self.course(epoch, step);
        if let Some(checkpoint) = checkpoint {
            let position = checkpoints::load(self.job, checkpoint, &mut engine, world)?;
            course.seek(step, About { first: step, position });
        }
        Ok((engine, course))
    }

    fn course(&self, epoch: &Epoch, first: u64) -> Course {
        Course::new(self.codec, Trace::default(), first).of_job(epoch.coordinator.to_string())
    }

    /// The newest checkpoint, if this job has written it.
    fn newest(&self, epoch: &Epoch) -> Result<Option<Checkpoint>> {
        let Some(policy) = &self.job.policy else { return Ok(None) };
        let newest = latest(&policy.folder)?.map(|path| Checkpoint::open(&path)).transpose()?;
        let job = epoch.coordinator.to_string();
        Ok(newest.filter(|it| it.manifest().progress.config[checkpoints::JOB] == job))
    }
}

/// Hands on what leavers owe, each to a rank that stays, at the end of an epoch.
fn hand_on(
    membership: &Membership,
    epoch: &Epoch,
    channel: &Channel,
    carried: &mut Carried,
) -> Result<()> {
    let leavers = leavers(membership);
    let ranks = (0..).map(Rank).zip(&epoch.members);
    let (going, staying): (Vec<_>, Vec<_>) = ranks.partition(|(_, id)| leavers.contains(id));
    let me = channel.world().rank();
    for ((leaver, _), (heir, _)) in going.iter().zip(staying.iter().cycle()) {
        let Some(pair) = channel.among(&[*leaver, *heir]) else { continue };
        let owed = (me == *leaver).then(|| carried.owed()).transpose()?;
        let owed = pair.hand_over(1, owed)?;
        if me == *heir {
            carried.take_on(&owed)?;
        }
    }
    Ok(())
}

/// Returns the leavers once the coordinator has named them, or none if it does not: another rank may have
/// said first that the epoch ends.
fn leavers(membership: &Membership) -> Vec<Id> {
    let deadline = Instant::now() + NOTICE;
    loop {
        match membership.finishing() {
            Some(leavers) => return leavers,
            None if Instant::now() >= deadline => return Vec::new(),
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}
