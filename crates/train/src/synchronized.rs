//! The exchange that `sync` does over links.

use thinwire_sync::Synchronizer;

use crate::exchange::{Exchange, Failure, Outcome};
use crate::model;

impl Exchange for Synchronizer {
    fn begin(&mut self, step: u64) -> Result<(), Failure> {
        Ok(Synchronizer::begin(self, step)?)
    }

    fn ready(&mut self, parameter: usize, gradient: &[f32]) -> Result<(), Failure> {
        Ok(Synchronizer::ready(self, parameter, gradient)?)
    }

    fn finish(&mut self) -> Result<Outcome, Failure> {
        Ok(match Synchronizer::finish(self)? {
            thinwire_sync::Outcome::Averaged => Outcome::Averaged,
            thinwire_sync::Outcome::Skipped => Outcome::Skipped,
        })
    }

    fn gradient(&self, parameter: usize) -> &[f32] {
        Synchronizer::gradient(self, parameter)
    }
}

/// The parameters of a model as `sync` wants to know them.
pub fn parameters(of_model: &[model::Parameter]) -> Vec<thinwire_sync::Parameter> {
    of_model.iter().map(|p| thinwire_sync::Parameter::new(&p.name, &p.shape)).collect()
}
