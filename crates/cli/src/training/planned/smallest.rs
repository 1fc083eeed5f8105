//! The memory of the smallest training: what a rank needs besides the model's own.

use anyhow::Result;
use thinwire_collective::Group;
use thinwire_model::{Array, backward, named};
use thinwire_train::spmd::{Inputs, Machine, Plan, initial};
use thinwire_train::{AdamWOptions, Pace};

use super::memory::Growth;

/// A model that has every operator of larger ones.
const MODEL: &str = "gpt:layers=1,width=32,heads=2,vocabulary=256,positions=16";
const SEQUENCE: usize = 16;
/// Steps after which nothing grows any more.
const STEPS: usize = 3;

/// By how many bytes this process grows for it; 0 where the system does not say.
///
/// # Errors
/// If its rank cannot work.
pub fn grown_bytes() -> Result<u64> {
    let growth = Growth::from_now();
    let link = thinwire_link::mem::mesh(1).remove(0);
    let graph = named(MODEL, 1, SEQUENCE)?;
    let training = backward(&graph)?;
    let start = initial(&graph, 1);
    let group = Group::new(Box::new(link));
    let mut machine = Machine::new(&training, &Plan::alone(&graph), group, &start)?;
    let inputs = graph.tensors.iter().enumerate();
    let inputs = inputs.filter(|(_, tensor)| tensor.role == thinwire_model::Role::Input);
    let zeros = |shape: &[usize]| Array::from_fn(shape.to_vec(), |_| 0.0);
    let inputs: Inputs = inputs.map(|(id, tensor)| (id, zeros(&tensor.shape))).collect();
    let pace = Pace { learning_rate: 1e-3, gradient_scale: 1.0 };
    for _ in 0..STEPS {
        machine.step(std::slice::from_ref(&inputs), pace, &AdamWOptions::default())?;
    }
    Ok(growth.bytes().unwrap_or(0))
}
