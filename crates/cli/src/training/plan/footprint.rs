//! Memory of a rank in a training beyond the bytes that a plan counts.

use anyhow::Result;
use thinwire_collective::Group;
use thinwire_model::{Array, Role, backward, named};
use thinwire_plan::cost::{Division, Precision, Sharding};
use thinwire_plan::report::{PlanFile, plan_file};
use thinwire_plan::search::{Candidate, Planner, Rule, Settings};
use thinwire_plan::{Cluster, Error};
use thinwire_program::Plan;
use thinwire_train::spmd::{ExchangeOptions, Executor, Inputs, initial};
use thinwire_train::{AdamWOptions, Pace};

use crate::memory::Growth;

/// A small model that has every operator of larger ones.
const SMALL: &str = "gpt:layers=1,width=32,heads=2,vocabulary=256,positions=16";
/// A model with the same operators that needs much more memory than the rest of the process.
const LARGE: &str = "gpt:layers=4,width=128,heads=4,vocabulary=256,positions=128";
/// Number of sequences in a step, which has [`MICRO_BATCHES`] micro-batches.
const BATCH: usize = 8;
const MICRO_BATCHES: usize = 2;
/// Number of steps after which memory no longer grows.
const STEPS: usize = 3;
/// A cluster of one device with enough memory. Its speed does not matter.
const ALONE: &str = "[[device]]\nname = \"rank\"\ntflops = 1\nmemory_gib = 1024\n\
                     memory_gbyte_per_s = 1\n\n\
                     [[level]]\nname = \"none\"\nsize = 1\nlatency_us = 0\ngbit = 1\n";

/// Memory of a process for a training, given the bytes that a plan counts: a fixed number of bytes, plus the
/// counted bytes times one plus the slack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Footprint {
    /// Bytes that do not depend on the size of the training.
    pub fixed_bytes: f64,
    /// Additional bytes per counted byte.
    pub slack: f64,
}

/// Bytes that a plan counts for a training, and the growth of the process, if the system reports it.
struct Sample {
    counted: f64,
    grown: Option<u64>,
}

impl Footprint {
    /// Trains a small model and a larger one on this rank alone. Returns zeros if the system does not report
    /// the size of a process.
    ///
    /// # Errors
    /// If the training fails.
    pub fn measure() -> Result<Footprint> {
        let growth = Growth::from_now();
        let small = Sample { counted: train(SMALL, 16)?, grown: growth.bytes() };
        let large = Sample { counted: train(LARGE, 128)?, grown: growth.bytes() };
        Ok(Footprint::through(&small, &large).unwrap_or_default())
    }

    /// Returns the footprint that matches the growth of a small and of a larger training.
    fn through(small: &Sample, large: &Sample) -> Option<Footprint> {
        let (less, more) = (small.grown? as f64, large.grown? as f64);
        let slack = ((more - less) / (large.counted - small.counted) - 1.0).max(0.0);
        Some(Footprint { fixed_bytes: (less - (1.0 + slack) * small.counted).max(0.0), slack })
    }
}

/// Trains the model for a few steps, and returns the bytes that a plan counts for it.
fn train(model: &'static str, sequence: usize) -> Result<f64> {
    let file = planned(model, sequence)?;
    let graph = named(model, BATCH / MICRO_BATCHES, sequence)?;
    let training = backward(&graph)?;
    let start = initial(&graph, 1);
    let group = Group::new(thinwire_link::mem::mesh(1).remove(0));
    let mut executor = Executor::new(
        &training,
        &Plan::of_file(&file, &graph)?,
        group,
        &start,
        ExchangeOptions::default(),
    )?;
    let inputs = graph.tensors.iter().enumerate();
    let inputs = inputs.filter(|(_, tensor)| tensor.role == Role::Input);
    let zeros = |shape: &[usize]| Array::from_fn(shape.to_vec(), |_| 0.0);
    let inputs: Inputs = inputs.map(|(id, tensor)| (id, zeros(&tensor.shape))).collect();
    let pace = Pace { learning_rate: 1e-3, gradient_scale: 1.0 };
    for _ in 0..STEPS {
        executor.step(&vec![inputs.clone(); MICRO_BATCHES], pace, &AdamWOptions::default())?;
    }
    Ok(file.stage[0].memory_bytes as f64)
}

/// Returns the plan for the model on one device.
fn planned(model: &'static str, sequence: usize) -> Result<PlanFile> {
    let build =
        move |batch| named(model, batch, sequence).map_err(|error| Error::from_model(&error));
    let settings = Settings { precision: Precision::SINGLE, ..Settings::default() };
    let cluster = Cluster::parse(ALONE)?;
    let candidate = pure_data(1, MICRO_BATCHES);
    let mut planner = Planner::new(BATCH, settings, build);
    let found = planner.plan_for(&cluster, &candidate)?;
    Ok(plan_file(model, sequence, &planner, &cluster, &found)?)
}

/// Returns the plan that cuts only the batch.
pub fn pure_data(ranks: usize, micro_batches: usize) -> Candidate {
    Candidate {
        stages: 1,
        mesh: vec![ranks],
        micro_batches,
        division: Division::Alike(Sharding::None),
        rule: Rule::Data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_trainings_tell_what_is_fixed_from_what_grows() {
        let through = |[less, more]: [f64; 2], [small, large]: [u64; 2]| {
            let small = Sample { counted: less, grown: Some(small) };
            Footprint::through(&small, &Sample { counted: more, grown: Some(large) }).unwrap()
        };
        let found = through([10.0, 110.0], [25, 145]);
        assert!((found.slack - 0.2).abs() < 1e-12 && (found.fixed_bytes - 13.0).abs() < 1e-12);
        let small = through([10.0, 110.0], [5, 55]);
        assert_eq!(small, Footprint { fixed_bytes: 0.0, slack: 0.0 });
    }
}
