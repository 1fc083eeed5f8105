//! Optimiser of other processes, such as the servers of a parameter server, for some parameters or all.

use std::borrow::Cow;
use std::fmt;

use crate::error::Error;

/// Step of one rank, as it is handed to the optimiser of other processes. Items are the parameters of
/// `ExchangeOptions::remote`, in the order of the program.
#[derive(Debug)]
pub struct Handover<'a> {
    /// Gradients; `None` for a step that is skipped because they are not finite.
    pub gradients: Option<&'a [Cow<'a, [f32]>]>,
    /// Factor of the gradients.
    pub scale: f32,
    /// Mean loss of the ranks that exchange with this one; the optimiser may replace it by that of all ranks.
    pub loss: &'a mut f64,
    /// Values, which the optimiser replaces by those of the next step.
    pub values: &'a mut [Vec<f32>],
}

/// Function that takes a step, and returns the bytes that it sent.
type Update<'a> = dyn FnMut(Handover<'_>) -> Result<u64, Error> + 'a;

/// Optimiser of other processes, as one rank calls it after its backward pass.
pub struct Remote<'a>(Box<Update<'a>>);

impl<'a> Remote<'a> {
    /// Wraps the function that is called in every step.
    pub fn new(update: impl FnMut(Handover<'_>) -> Result<u64, Error> + 'a) -> Remote<'a> {
        Remote(Box::new(update))
    }

    pub(super) fn update(&mut self, step: Handover<'_>) -> Result<u64, Error> {
        (self.0)(step)
    }
}

impl fmt::Debug for Remote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remote")
    }
}
