//! Survey: passes that are sampled before the training, to learn which rows it will use.

use std::ops::Range;

use super::counts::{Counts, blend};
use super::forecast::Forecast;
use super::inclusion::inclusion;
use super::rows::Order;
use crate::adjacency::Adjacency;
use crate::batches::{Batches, Position};
use crate::error::Error;
use crate::sample::{Sample, Sampler, Sampling};

/// Passes that [`Order::automatic`] counts unless told otherwise.
pub const PASSES: u32 = 3;

/// What is sampled in advance.
#[derive(Clone, Debug)]
pub struct Survey<'a> {
    /// Graph of the training.
    pub graph: &'a Adjacency,
    /// Options of its samples.
    pub sampling: &'a Sampling,
    /// Its batches.
    pub batches: &'a Batches,
    /// Rank whose batches are counted.
    pub rank: u32,
    /// Number of threads.
    pub threads: usize,
}

/// Counts the batches of passes, exactly as the training will sample them.
///
/// # Errors
/// If a batch cannot be sampled.
pub fn survey(survey: &Survey<'_>, passes: Range<u64>) -> Result<Counts, Error> {
    let mut counts = Counts::new(survey.graph.vertices());
    let threads = survey.threads.max(1) as u32;
    std::thread::scope(|scope| {
        let passes = || passes.clone();
        let work = |first| scope.spawn(move || count(survey, passes(), (first, threads)));
        let workers: Vec<_> = (0..threads).map(work).collect();
        for worker in workers {
            counts.merge(&worker.join().expect("a thread that counts does not panic")?);
        }
        Ok(counts)
    })
}

/// Counts every `stride`-th batch, from the one with number `first` in its pass.
fn count(
    survey: &Survey<'_>,
    passes: Range<u64>,
    (first, stride): (u32, u32),
) -> Result<Counts, Error> {
    let mut counts = Counts::new(survey.graph.vertices());
    let mut sampler = Sampler::new(survey.graph, survey.sampling.clone())?;
    let mut sample = Sample::new();
    for number in passes {
        let pass = survey.batches.shuffle(number);
        for step in (first..survey.batches.steps()).step_by(stride as usize) {
            let key = survey.batches.key(Position { pass: number, step }, survey.rank);
            let seeds = pass.seeds(step, survey.rank);
            sampler.sample(survey.graph, seeds, key, &mut sample)?;
            counts.add(&sample.vertices);
        }
    }
    Ok(counts)
}

impl Order {
    /// Orders rows by [`blend`], from counts of the first `passes` passes. The forecast counts the hits of
    /// the last of them in an order of those before, so it is no better than later passes will be.
    ///
    /// The cost is the time to sample the passes, which the training will sample again.
    ///
    /// # Errors
    /// If a batch cannot be sampled.
    ///
    /// # Panics
    /// If `passes` is 0.
    pub fn automatic(plan: &Survey<'_>, passes: u32) -> Result<(Order, Forecast), Error> {
        assert!(passes > 0, "an order needs a pass");
        let last = u64::from(passes) - 1;
        let part = plan.batches.part(plan.rank);
        let seeds = plan.batches.training(plan.rank).div_ceil(plan.batches.steps() as usize);
        let inclusion = inclusion(plan.graph, plan.sampling, part, seeds as u32);
        let mut counts = survey(plan, 0..last)?;
        let held_out = survey(plan, last..last + 1)?;
        let before = Order::by_score(&blend(&counts, &inclusion));
        let forecast = Forecast::new(&before, &held_out);
        counts.merge(&held_out);
        Ok((Order::by_score(&blend(&counts, &inclusion)), forecast))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_do_not_depend_on_the_number_of_threads() {
        let edges: Vec<_> = (0..600_u32).map(|at| (at * at % 97, at * 7 % 100)).collect();
        let graph = Adjacency::from_edges(100, &edges).unwrap();
        let sampling = Sampling::new(&[3, 2]);
        let batches = Batches::global((0..50).collect(), 2, 5, 9).unwrap();
        let with = |threads| {
            let plan =
                Survey { graph: &graph, sampling: &sampling, batches: &batches, rank: 1, threads };
            let counts = survey(&plan, 1..4).unwrap();
            assert_eq!(counts.batches(), 15);
            (counts, Order::automatic(&plan, 2).unwrap())
        };
        assert_eq!(with(1), with(3));
    }
}
