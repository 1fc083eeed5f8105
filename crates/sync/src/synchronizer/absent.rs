//! Agreement on the parameters that no rank has a gradient of: what is kept of them stays as it is.
//!
//! A network that is not trained in a step still has a place in its bucket. What its codec owes must not
//! leave then: its average is given to nobody, since a framework leaves parameters without gradients as
//! they are. Every rank counts the parameters of which it has a gradient, several counts to a number, and
//! the sums travel beside the last bucket. Exchanges that keep nothing from step to step need no
//! agreement, and have none.
//!
//! Law: a parameter whose gradient is absent on all ranks has the same residual, momentum, memory of
//! feedback and factors after a step as before it, bit for bit, and an average of zero.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use thinwire_collective::{Address, Program};
use thinwire_schedule::Algorithm;

use crate::bucket::state::BucketState;
use crate::exchange::choose;
use crate::exchange::route::Ranks;
use crate::{Error, Parameter, Policy, Synchronizer};

/// Bits of whole numbers that f32 adds up exactly.
const EXACT_BITS: u32 = 24;

/// The agreement of a step.
#[derive(Debug, Default)]
pub(crate) struct Absence {
    /// None where nothing is kept from step to step.
    program: Option<Arc<Program>>,
    /// Parameters, and the bits of a count of ranks.
    parameters: usize,
    bits: u32,
    answer: Option<Receiver<Result<Vec<f32>, Error>>>,
    /// For every parameter whether it is absent on all ranks, once that is known.
    found: Option<Vec<bool>>,
}

impl Absence {
    /// Counts of so many ranks for so many parameters.
    fn of(ranks: usize, parameters: usize) -> Absence {
        Absence { parameters, bits: usize::BITS - ranks.leading_zeros(), ..Absence::default() }
    }

    /// The agreement of some ranks on so many parameters.
    fn among(ranks: &Ranks, parameters: usize) -> Absence {
        let absence = Absence::of(ranks.world.size(), parameters);
        // One hop: latency is all that counts for so few bytes.
        let program = ranks.sum(Algorithm::Gather.into(), absence.words());
        Absence { program: Some(program), ..absence }
    }

    /// Counts to a number.
    fn per_word(&self) -> usize {
        (EXACT_BITS / self.bits).max(1) as usize
    }

    fn words(&self) -> usize {
        self.parameters.div_ceil(self.per_word())
    }

    /// Returns a count of one for each parameter that is there on this rank.
    fn counts(&self, absent: &[bool]) -> Vec<f32> {
        let word = |absent: &[bool]| {
            let here = absent.iter().enumerate().filter(|(_, absent)| !**absent);
            here.map(|(place, _)| 1_u32 << (place as u32 * self.bits)).sum::<u32>() as f32
        };
        absent.chunks(self.per_word()).map(word).collect()
    }

    /// Returns for every parameter whether its count is zero.
    fn zeros(&self, sums: &[f32]) -> Vec<bool> {
        let mask = (1_u32 << self.bits) - 1;
        let is_zero = |parameter: usize| {
            let (word, place) = (parameter / self.per_word(), parameter % self.per_word());
            (sums[word] as u32 >> (place as u32 * self.bits)) & mask == 0
        };
        (0..self.parameters).map(is_zero).collect()
    }

    /// Waits for the answer, if one is on its way.
    pub(super) fn wait(&mut self) -> Result<(), Error> {
        if let Some(answer) = self.answer.take() {
            let sums = answer.recv().unwrap_or(Err(Error::Stopped))?;
            self.found = Some(self.zeros(&sums));
        }
        Ok(())
    }

    /// Forgets the answer of a step.
    pub(super) fn clear(&mut self) {
        (self.answer, self.found) = (None, None);
    }

    /// Whether an answer is on its way.
    pub(super) fn is_underway(&self) -> bool {
        self.answer.is_some()
    }

    /// Whether nothing has to be known any more to end the step.
    pub(super) fn is_settled(&self) -> bool {
        self.program.is_none() || self.found.is_some()
    }

    /// Returns for every parameter whether it is absent on all ranks; nothing where that is not known.
    pub(super) fn everywhere(&self) -> &[bool] {
        self.found.as_deref().unwrap_or_default()
    }
}

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
        let Some(program) = self.absence.program.clone() else { return };
        let mut absent = vec![false; self.parameters.len()];
        let all = self.buckets.iter().flat_map(BucketState::absent);
        all.for_each(|parameter| absent[parameter] = true);
        // Behind both messages of the last bucket.
        let (step, tensor, seed) = (self.step, self.buckets.len() as u32 * 2, self.options.seed);
        let address = Address { step, tensor, seed, operation: "all_reduce" };
        let counts = self.absence.counts(&absent);
        self.absence.answer = Some(self.worker.sum(program, address, counts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_counts_say_who_is_absent_everywhere() {
        for size in [1_u32, 2, 3, 4, 7, 8, 100, 1000] {
            let absence = Absence::of(size as usize, 61);
            let absent =
                |rank: u32, parameter: usize| (parameter as u32 * 7 + rank) % 5 < 4 - rank % 2;
            let mut sums = vec![0.0; absence.words()];
            for rank in 0..size {
                let mine: Vec<bool> = (0..61).map(|parameter| absent(rank, parameter)).collect();
                sums.iter_mut().zip(absence.counts(&mine)).for_each(|(sum, count)| *sum += count);
            }
            let expected: Vec<bool> =
                (0..61).map(|each| (0..size).all(|rank| absent(rank, each))).collect();
            assert_eq!(absence.zeros(&sums), expected, "{size} ranks");
        }
    }
}
