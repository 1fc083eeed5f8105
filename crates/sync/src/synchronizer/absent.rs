//! Parameters without a gradient: who says so, and when ranks agree on it.

use thinwire_collective::Address;

use crate::absence::Absence;
use crate::bucket::state::BucketState;
use crate::exchange::choose;
use crate::{Error, Parameter, Policy, Synchronizer};

impl Synchronizer {
    /// Says before a parameter's gradient is given that there is none in this step on this rank, whatever is
    /// given for it: a framework may have that of an earlier step still. A gradient of zeros is absent without
    /// this call. What is kept of a parameter stays as it is where its gradient is absent on all ranks.
    ///
    /// # Errors
    /// If there is no such parameter.
    pub fn absent(&mut self, parameter: usize) -> Result<(), Error> {
        let (bucket, range) = self.place(parameter)?;
        self.buckets[bucket].mark_absent(&range);
        Ok(())
    }

    /// Whether no rank had a gradient of the parameter in the last step, so that its average is zero and
    /// everything that is kept of it is as it was; false where nothing is kept from step to step.
    pub fn is_absent(&self, parameter: usize) -> bool {
        self.absence.everywhere().get(parameter).is_some_and(|absent| *absent)
    }

    /// Whether something is kept of parameters from step to step, so that it matters whether they have a
    /// gradient: residuals, momenta, factors.
    pub fn keeps(&self) -> bool {
        self.options.momentum.is_some()
            || match &self.options.policy {
                Policy::Fixed(choice) => choose::keeps(choice),
                auto @ Policy::Auto(_) => auto.leaves_a_residual(),
            }
            || self.has_transports_that_keep(&self.parameters)
    }

    fn has_transports_that_keep(&self, parameters: &[Parameter]) -> bool {
        let mut transports = parameters.iter().filter_map(|parameter| parameter.transport.as_ref());
        transports.any(|transport| choose::keeps(&transport.codec))
    }

    /// Prepares the agreements of the steps to come, once buckets were made.
    pub(super) fn prepare_absence(&mut self) {
        // Nothing is owed while everything travels raw.
        let raw = self.warm_up.is_in_force() && self.options.momentum.is_none();
        let keeps = self.keeps() && (!raw || self.has_transports_that_keep(&self.parameters));
        self.absence = match self.worker.channel.ranks(&[]) {
            Some(ranks) if keeps => Absence::among(&ranks, self.parameters.len()),
            _ => Absence::default(),
        };
    }

    /// Lets the agreement set out with the last bucket.
    pub(super) fn agree_on_absence(&mut self) {
        let mut absent = vec![false; self.parameters.len()];
        let all = self.buckets.iter().flat_map(BucketState::absent);
        all.for_each(|parameter| absent[parameter] = true);
        let Some((program, counts)) = self.absence.departure(&absent) else { return };
        // Behind both messages of the last bucket.
        let (step, tensor, seed) = (self.step, self.buckets.len() as u32 * 2, self.options.seed);
        let address = Address { step, tensor, seed, operation: "all_reduce" };
        self.absence.expect(self.worker.sum(program, address, counts));
    }
}
