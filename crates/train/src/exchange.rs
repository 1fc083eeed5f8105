//! Exchange of gradients between ranks, as the trainer sees it.
//!
//! The trainer hands over gradients one by one while backward still runs, then waits for their
//! averages. `sync` does this over links; [`Alone`] does it for one rank. Law: after `finish`
//! every rank reads the same bits from `gradient`, or every rank got [`Outcome::Skipped`].

use std::error;

/// Why an exchange failed, as the implementation reports it.
pub type Failure = Box<dyn error::Error + Send + Sync>;

/// End of a step's exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Outcome {
    /// Every rank holds the same averaged gradients.
    Averaged,
    /// Some rank had a NaN or an infinity: no rank may change its parameters in this step.
    Skipped,
}

/// The exchange of one model's gradients.
pub trait Exchange {
    /// Starts a step. Ranks agree on `step`, which rises from step to step.
    ///
    /// # Errors
    /// If `step` is not higher than the last one.
    fn begin(&mut self, step: u64) -> Result<(), Failure>;

    /// Hands over the gradient of one parameter, an index into the model's parameters. Returns
    /// at once.
    ///
    /// # Errors
    /// If the group is broken.
    fn ready(&mut self, parameter: usize, gradient: &[f32]) -> Result<(), Failure>;

    /// Waits until every gradient is averaged.
    ///
    /// # Errors
    /// If a rank was lost or disagrees.
    fn finish(&mut self) -> Result<Outcome, Failure>;

    /// The averaged gradient of one parameter, after `finish`.
    fn gradient(&self, parameter: usize) -> &[f32];
}

/// The exchange of a single rank: what goes in comes out.
#[derive(Debug, Default)]
pub struct Alone {
    gradients: Vec<Vec<f32>>,
}

impl Alone {
    /// An exchange with nobody.
    pub fn new() -> Alone {
        Alone::default()
    }
}

impl Exchange for Alone {
    fn begin(&mut self, _step: u64) -> Result<(), Failure> {
        Ok(())
    }

    fn ready(&mut self, parameter: usize, gradient: &[f32]) -> Result<(), Failure> {
        if self.gradients.len() <= parameter {
            self.gradients.resize_with(parameter + 1, Vec::new);
        }
        let buffer = &mut self.gradients[parameter];
        buffer.clear();
        buffer.extend_from_slice(gradient);
        Ok(())
    }

    fn finish(&mut self) -> Result<Outcome, Failure> {
        // A product with zero is NaN exactly for what is not finite, and sums without a branch.
        let probe: f32 = self.gradients.iter().flatten().map(|value| value * 0.0).sum();
        Ok(if probe == 0.0 { Outcome::Averaged } else { Outcome::Skipped })
    }

    fn gradient(&self, parameter: usize) -> &[f32] {
        &self.gradients[parameter]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_that_is_not_finite_skips_the_step() {
        let mut exchange = Alone::new();
        for (bad, outcome) in [
            (1.0, Outcome::Averaged),
            (f32::NAN, Outcome::Skipped),
            (f32::NEG_INFINITY, Outcome::Skipped),
            (-0.0, Outcome::Averaged),
        ] {
            exchange.begin(0).unwrap();
            exchange.ready(1, &[0.5, bad, -2.0]).unwrap();
            exchange.ready(0, &[f32::MAX]).unwrap();
            assert_eq!(exchange.finish().unwrap(), outcome, "{bad}");
            assert_eq!(exchange.gradient(0), [f32::MAX]);
        }
    }
}
