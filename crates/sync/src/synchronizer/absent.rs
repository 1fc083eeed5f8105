//! Parameters without a gradient: how callers report them, and the steps in which ranks agree on them.

use crate::absence::Absence;
use crate::bucket::state::BucketState;
use crate::exchange::choose;
use crate::{Error, Parameter, Policy, Synchronizer};

impl Synchronizer {
    /// Declares that this rank has no gradient of a parameter in this step. Call it before `ready`, whose
    /// values for the parameter are then ignored: a framework may still have those of an earlier step. A
    /// gradient of zeros in host memory counts as absent without this call; one in the memory of a device does
    /// not, since its values are known too late. A parameter that is absent on all ranks keeps
    /// its residual, momentum and factors.
    ///
    /// # Errors
    /// If there is no such parameter, or no step has begun.
    pub fn absent(&mut self, parameter: usize) -> Result<(), Error> {
        let (bucket, range) = self.place(parameter)?;
        self.check_begun(format_args!("absence of {}", self.parameters[parameter].name))?;
        self.buckets[bucket].mark_absent(&range);
        Ok(())
    }

    /// Returns whether no rank had a gradient of the parameter in the last step, so that its average is
    /// zero and its residual, momentum and factors are unchanged. Returns false if nothing is kept from
    /// step to step.
    pub fn is_absent(&self, parameter: usize) -> bool {
        self.absence.everywhere().get(parameter).is_some_and(|absent| *absent)
    }

    /// Returns whether residuals, momenta or factors are kept from step to step, so that it matters whether a
    /// parameter has a gradient.
    pub fn keeps(&self) -> bool {
        self.options.momentum.is_some()
            || match &self.options.policy {
                auto @ Policy::Auto(_) => auto.leaves_a_residual(),
                named => named.choices().any(choose::keeps),
            }
            || self.has_transports_that_keep(&self.parameters)
    }

    fn has_transports_that_keep(&self, parameters: &[Parameter]) -> bool {
        let mut transports = parameters.iter().filter_map(|parameter| parameter.transport.as_ref());
        transports.any(|transport| choose::keeps(&transport.codec))
    }

    /// Prepares the agreement of each step, after the buckets were made.
    pub(super) fn prepare_absence(&mut self) {
        // There are no residuals while everything travels raw.
        let raw = self.warm_up.is_in_force() && self.options.momentum.is_none();
        let keeps = self.keeps() && (!raw || self.has_transports_that_keep(&self.parameters));
        self.absence = match self.worker.channel.ranks(&[]) {
            Some(ranks) if keeps => Absence::among(&ranks, self.parameters.len()),
            _ => Absence::default(),
        };
    }

    /// Sends this rank's counts with the last bucket.
    pub(super) fn agree_on_absence(&mut self) {
        let mut absent = vec![false; self.parameters.len()];
        let all = self.buckets.iter().flat_map(BucketState::absent);
        all.for_each(|parameter| absent[parameter] = true);
        let Some((program, counts)) = self.absence.departure(&absent) else { return };
        // The two tensors of each bucket have smaller numbers.
        let address = self.address(self.buckets.len() as u32 * 2);
        self.absence.expect(self.worker.sum(program, address, counts));
    }
}
