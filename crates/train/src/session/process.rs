//! One process of a training: its inputs and its outcome.

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
    /// Rank, world and hosts of this process. In a job whose number of ranks changes, each epoch
    /// determines the rank.
    pub place: &'a Place,
    /// Signals.
    pub interrupt: &'a Interrupt,
    /// Receiver of the events that a user sees.
    pub observer: &'a dyn Observer,
    /// Interface for changing the number of ranks; `None` if that number is fixed.
    pub resizer: Option<&'a dyn Resizer>,
}

/// Way in which a training ends for one process.
#[derive(Debug)]
pub enum Ended {
    /// The training is over; the place is this process's rank and world in the last epoch.
    Over(Place, Box<Outcome>),
    /// The process has left a training that continues.
    Left,
    /// No other process continues the training, and this process has saved its state.
    Alone,
}

/// Result of a training, complete on rank 0 only.
#[derive(Debug)]
pub struct Outcome {
    /// Figures of all steps.
    pub run: Run,
    /// Whether the last checkpoint, if one was requested, could be written.
    pub saved: Result<(), Error>,
    /// The trained model.
    pub model: TrainedModel,
    /// Text or images, and the way in which the model reads them on this rank.
    pub modality: Modality,
}

/// Parameters of a model after the last step.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainedModel {
    /// This rank has no parameters: they are on rank 0, or the training was stopped.
    Elsewhere,
    /// Each rank has a part of the parameters.
    InParts,
    /// All parameters, by name.
    Whole(BTreeMap<String, Vec<f32>>),
}

impl Session<'_> {
    /// Reports a line to the user.
    pub(super) fn say(&self, line: impl Into<String>) -> Result<(), Error> {
        self.observer.on(Event::Line(line.into()))
    }

    /// Reports a line about this process.
    pub(super) fn say_of_process(&self, line: impl Into<String>) -> Result<(), Error> {
        self.observer.on(Event::OfProcess(line.into()))
    }

    /// Returns the place of this process in an epoch.
    pub(super) fn place_in(&self, world: World) -> Place {
        Place { rank: world.rank().0, world: world.size() as u32, ..self.place.clone() }
    }
}
