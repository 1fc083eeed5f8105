//! Agreement on absent parameters: those without a gradient on any rank, whose state must not change.
//!
//! Parameters of a network that is not trained in a step still have a place in their bucket. Their
//! residual must not be sent then: the framework does not apply averages of parameters without
//! gradients, and the residual would be lost. Each rank counts 1 for every parameter of which it has a
//! gradient. Several counts share one f32, and the counts are summed together with the last bucket.
//! Exchanges that keep nothing from step to step need no agreement.
//!
//! Law: a parameter whose gradient is absent on all ranks has the same residual, momentum, memory of
//! feedback and factors after a step as before it, bit for bit, and an average of zero.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use thinwire_collective::Program;
use thinwire_schedule::Algorithm;

use crate::Error;
use crate::exchange::route::Ranks;

/// Number of bits of the integers that f32 adds exactly.
const EXACT_BITS: u32 = 24;

/// The agreement of a step.
#[derive(Debug, Default)]
pub(crate) struct Absence {
    /// `None` if nothing is kept from step to step.
    program: Option<Arc<Program>>,
    /// Number of parameters, and of bits in a count of ranks.
    parameters: usize,
    bits: u32,
    answer: Option<Receiver<Result<Vec<f32>, Error>>>,
    /// Whether each parameter is absent on all ranks, once that is known.
    found: Option<Vec<bool>>,
}

impl Absence {
    /// Returns counts for this number of ranks and parameters, without a program that sums them.
    fn of(ranks: usize, parameters: usize) -> Absence {
        Absence { parameters, bits: usize::BITS - ranks.leading_zeros(), ..Absence::default() }
    }

    /// Returns the agreement of these ranks on this number of parameters.
    pub(crate) fn among(ranks: &Ranks, parameters: usize) -> Absence {
        let absence = Absence::of(ranks.world.size(), parameters);
        // One hop: latency is all that counts for so few bytes.
        let program = ranks.sum(Algorithm::Gather.into(), absence.words());
        Absence { program: Some(program), ..absence }
    }

    /// Returns the number of counts in one f32.
    fn per_word(&self) -> usize {
        (EXACT_BITS / self.bits).max(1) as usize
    }

    fn words(&self) -> usize {
        self.parameters.div_ceil(self.per_word())
    }

    /// Returns the counts of this rank: 1 for each parameter that is not absent here.
    fn counts(&self, absent: &[bool]) -> Vec<f32> {
        let word = |absent: &[bool]| {
            let here = absent.iter().enumerate().filter(|(_, absent)| !**absent);
            here.map(|(place, _)| 1_u32 << (place as u32 * self.bits)).sum::<u32>() as f32
        };
        absent.chunks(self.per_word()).map(word).collect()
    }

    /// Returns whether the count of each parameter is zero.
    fn zeros(&self, sums: &[f32]) -> Vec<bool> {
        let mask = (1_u32 << self.bits) - 1;
        let is_zero = |parameter: usize| {
            let (word, place) = (parameter / self.per_word(), parameter % self.per_word());
            (sums[word] as u32 >> (place as u32 * self.bits)) & mask == 0
        };
        (0..self.parameters).map(is_zero).collect()
    }

    /// Waits for the answer, if one is on its way.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        if let Some(answer) = self.answer.take() {
            let sums = answer.recv().unwrap_or(Err(Error::Stopped))?;
            self.found = Some(self.zeros(&sums));
        }
        Ok(())
    }

    /// Returns the program that sums the counts over all ranks, and the counts of this rank; `None` if
    /// nothing is kept from step to step.
    pub(crate) fn departure(&self, absent: &[bool]) -> Option<(Arc<Program>, Vec<f32>)> {
        Some((Arc::clone(self.program.as_ref()?), self.counts(absent)))
    }

    /// Takes the channel on which the sums will arrive.
    pub(crate) fn expect(&mut self, answer: Receiver<Result<Vec<f32>, Error>>) {
        self.answer = Some(answer);
    }

    /// Forgets the answer of a step.
    pub(crate) fn clear(&mut self) {
        (self.answer, self.found) = (None, None);
    }

    /// Returns whether an answer is on its way.
    pub(crate) fn is_underway(&self) -> bool {
        self.answer.is_some()
    }

    /// Returns whether the step can end: the answer is known, or none is needed.
    pub(crate) fn is_settled(&self) -> bool {
        self.program.is_none() || self.found.is_some()
    }

    /// Returns whether each parameter is absent on all ranks; an empty slice if that is not known.
    pub(crate) fn everywhere(&self) -> &[bool] {
        self.found.as_deref().unwrap_or_default()
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
