//! One process of a training: what it is told, and how it ends.

use std::collections::BTreeMap;

use thinwire_job::{Interrupt, Place};
use thinwire_report::training::Run;
use thinwire_wire::World;

use super::adaptation::Resizer;
use super::observer::{Event, Observer};
use super::settings::Settings;
use crate::error::Error;
use crate::spmd::Modality;

/// Training of one process.
pub struct Session<'a> {
    /// Settings of all ranks.
    pub settings: &'a Settings<'a>,
    /// Place of this process; those whose number of ranks changes have their rank from their epochs.
    pub place: &'a Place,
    /// Signals.
    pub interrupt: &'a Interrupt,
    /// Sink of what a user sees.
    pub observer: &'a dyn Observer,
    /// Way to change the number of ranks; none where it is fixed.
    pub resizer: Option<&'a dyn Resizer>,
}

/// End of a training for one process.
#[derive(Debug)]
pub enum Ended {
    /// The training is over; the place is that in the last epoch.
    Over(Place, Box<Outcome>),
    /// The process has left a training that continues.
    Left,
    /// Nobody continues with the training, and this process has saved what it had.
    Alone,
}

/// Result of a training, complete on rank 0 only.
#[derive(Debug)]
pub struct Outcome {
    /// Figures of all steps.
    pub run: Run,
    /// Whether the last checkpoint, where one was asked for, could be written.
    pub saved: Result<(), Error>,
    /// The trained model.
    pub model: TrainedModel,
    /// Text or images, and how the model reads them on this rank.
    pub modality: Modality,
}

/// Values of a model after the last step.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainedModel {
    /// Rank 0 has them, or the training was stopped.
    Elsewhere,
    /// Ranks have parts of them.
    InParts,
    /// All parameters by name.
    Whole(BTreeMap<String, Vec<f32>>),
}

impl Session<'_> {
    /// Says a line to the user.
    pub(super) fn say(&self, line: impl Into<String>) -> Result<(), Error> {
        self.observer.on(Event::Line(line.into()))
    }

    /// Says a line about this process.
    pub(super) fn say_of_process(&self, line: impl Into<String>) -> Result<(), Error> {
        self.observer.on(Event::OfProcess(line.into()))
    }

    /// Returns the place of this process in an epoch.
    pub(super) fn place_in(&self, world: World) -> Place {
        Place { rank: world.rank().0, world: world.size() as u32, ..self.place.clone() }
    }
}
