//! Console of a training: the output of the command while a session trains.

use std::cell::RefCell;

use anyhow::Result;
use thinwire_job::Place;
use thinwire_plan::report::{counted, devices};
use thinwire_report::figures::digits;
use thinwire_sync::{Mode, Policy};
use thinwire_train::Error;
use thinwire_train::session::{Computation, Event, Observer, Step};
use thinwire_wire::{Rank, World};

use super::job::TrainingJob;
use super::messages;
use super::progress::Progress;
use super::trace::Trace;
use crate::failure;
use crate::memory::Growth;
use crate::metrics::{Exchanged, Taken};
use crate::output::say;

/// Receiver of a session's events. It shows progress on the terminal, and writes the trace and the
/// metrics.
pub struct Console<'a> {
    /// The training.
    pub job: &'a TrainingJob,
    /// Codec of gradients; `None` if a plan determines the codecs.
    pub codec: Option<&'a Policy>,
    /// Place of this process.
    pub place: &'a Place,
    /// The trace, if one is written.
    pub trace: RefCell<Trace>,
    /// Function that returns the lines about parameters on servers, given the bytes of these parameters.
    pub of_servers: &'a dyn Fn(u64) -> Vec<String>,
    progress: RefCell<Progress>,
    /// Growth of the process since the start.
    growth: RefCell<Option<Growth>>,
}

impl<'a> Console<'a> {
    /// Returns a console without a trace.
    pub fn new(job: &'a TrainingJob, codec: Option<&'a Policy>, place: &'a Place) -> Console<'a> {
        Console {
            job,
            codec,
            place,
            trace: RefCell::default(),
            of_servers: &|_| Vec::new(),
            progress: RefCell::default(),
            growth: RefCell::default(),
        }
    }

    fn take(&self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Line(line) => say(line),
            Event::OfProcess(line) => messages::tell(&line),
            Event::Warning(error) => {
                let (message, hint) = failure::lines(&error.into());
                let hint = hint.map_or(String::new(), |hint| format!(" (hint: {hint})"));
                say(format!("warning: {message}{hint}"));
            }
            Event::Resumed { computation, ranks } => {
                self.job.said_of_resuming(computation, ranks)?.into_iter().for_each(say);
            }
            Event::Served { raw_bytes } => (self.of_servers)(raw_bytes).into_iter().for_each(say),
            Event::Begun { world, computation, done, steps, is_first } => {
                self.growth.replace(Some(Growth::from_now()));
                if world.rank() == Rank(0) {
                    if is_first {
                        self.warn(computation);
                        say(self.title(computation, world));
                    }
                    self.progress.replace(Progress::new(done, steps));
                }
            }
            Event::Step { step, passes } => {
                self.trace.borrow_mut().step(step, passes)?;
                let planning = step.record.planning.iter();
                planning.for_each(|planning| self.progress.borrow_mut().planned(planning));
                let Step { number, loss, step_s, wait_s, sent_bytes, skipped, adapted, .. } = *step;
                let loss = Some(loss);
                self.job.metrics.step(Taken { step: number + 1, loss, step_s, adapted });
                let raw_bytes = step.record.total(|bucket| bucket.raw_bytes);
                self.job.metrics.exchange(Exchanged { wait_s, sent_bytes, raw_bytes, skipped });
            }
            Event::Changed(change) => self.progress.borrow().say(&change.to_string()),
            Event::Adjusted(adjusted) => self.progress.borrow().say(&adjusted.to_string()),
            Event::Reached { step, step_s, sent_bytes, validation } => {
                self.progress.borrow().tell(step, [step_s, sent_bytes], validation);
            }
            Event::Ended => drop(self.progress.take()),
            Event::Pass(_) => {}
        }
        Ok(())
    }

    /// Warns of effects that the codec may have in this training.
    fn warn(&self, computation: &Computation) {
        let parameters = computation.training.graph.parameters();
        let names: Vec<&str> = parameters.map(|(_, tensor)| tensor.name.as_str()).collect();
        let warnings = self.codec.map_or(Vec::new(), |codec| codec.warnings(&names));
        warnings.into_iter().for_each(|warning| say(format!("warning: {warning}")));
    }

    /// Returns a description of the training for its first line.
    fn title(&self, computation: &Computation, world: World) -> String {
        let ranks = counted(world.size(), "rank");
        let codec = self.codec.map_or(String::new(), |codec| format!(" with codec {codec}"));
        let codec = match self.job.exchange.mode {
            Mode::Step => codec,
            mode => format!("{codec} in mode {mode}"),
        };
        let Some(file) = &computation.file else {
            let parameters = computation.training.graph.parameters();
            let elements: usize = parameters.map(|(_, tensor)| tensor.elements()).sum();
            let (millions, data) = (digits(elements as f64 / 1e6), &self.job.data);
            let place = Place { world: world.size() as u32, ..self.place.clone() };
            let settings = &self.job.settings;
            let link = settings.link.describe(settings.limit(&place), &place);
            return format!(
                "training {millions} M parameters on {data}{codec}, {ranks}, link: {link}"
            );
        };
        let stages = counted(file.stage.len(), "stage");
        let (mesh, micro_batches) =
            (devices(&file.mesh), counted(file.micro_batches, "micro-batch"));
        format!("training {}{codec} on {ranks}: {stages} of {mesh}, {micro_batches}", file.model)
    }
}

impl Observer for Console<'_> {
    fn on(&self, event: Event<'_>) -> Result<(), Error> {
        self.take(event).map_err(Error::caller)
    }

    fn memory_bytes(&self) -> u64 {
        self.growth.borrow().as_ref().and_then(Growth::bytes).unwrap_or(0)
    }
}
