//! Optimiser of other processes, such as the servers of a parameter server, for some parameters or all.

use std::borrow::Cow;
use std::fmt;

use crate::error::Error;

/// Function that hands the gradients of a step over, times a scale, and puts the values of the next step in the
/// place of the old ones, parameter by parameter of `ExchangeOptions::remote` in the order of the program. It
/// returns the bytes that it sent.
type Update<'a> = dyn FnMut(&[Cow<'_, [f32]>], f32, &mut [Vec<f32>]) -> Result<u64, Error> + 'a;

/// Optimiser of other processes, as one rank calls it after its backward pass.
pub struct Remote<'a>(Box<Update<'a>>);

impl<'a> Remote<'a> {
    /// Wraps the function that is called in every step whose gradients are finite.
    pub fn new(
        update: impl FnMut(&[Cow<'_, [f32]>], f32, &mut [Vec<f32>]) -> Result<u64, Error> + 'a,
    ) -> Remote<'a> {
        Remote(Box::new(update))
    }

    pub(super) fn update(
        &mut self,
        gradients: &[Cow<'_, [f32]>],
        scale: f32,
        values: &mut [Vec<f32>],
    ) -> Result<u64, Error> {
        (self.0)(gradients, scale, values)
    }
}

impl fmt::Debug for Remote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remote")
    }
}
