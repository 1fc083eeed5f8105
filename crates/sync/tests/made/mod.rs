//! Made-up parameters and gradients, and synchronisers of them over links in memory.

#![allow(dead_code, reason = "every test uses some of it")]

use thinwire_sync::{Options, Outcome, Parameter, Synchronizer};
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::random::Key;

pub fn parameters() -> Vec<Parameter> {
    vec![
        Parameter::new("head.weight", &[96, 70]),
        Parameter::new("head.bias", &[96]),
        Parameter::new("hidden.weight", &[70, 33]),
        Parameter::new("thin.weight", &[3, 2]),
        Parameter::new("hidden.bias", &[70]),
        Parameter::new("input.weight", &[33, 130]),
    ]
}

pub fn options(policy: &str) -> Options {
    Options { policy: policy.parse().unwrap(), bucket_bytes: 12_000, seed: 7, ..Options::default() }
}

pub fn gradient(rank: u32, step: u64, parameter: usize, elements: usize) -> Vec<f32> {
    let key = Key { seed: 100 + u64::from(rank), step, tensor: parameter as u32 };
    (0..elements as u64)
        .map(|i| key.normal(i) * if i.is_multiple_of(50) { 3.0 } else { 0.1 })
        .collect()
}

/// Normal numbers around 0.3.
pub fn normal(rank: u32, step: u64, parameter: usize, elements: usize) -> Vec<f32> {
    let key = Key { seed: 10 + u64::from(rank), step, tensor: parameter as u32 };
    (0..elements as u64).map(|i| key.normal(i) + 0.3).collect()
}

/// Runs `body` on every rank of a world in memory; the results in rank order.
pub fn spawn<T: Send>(
    size: usize,
    policy: &str,
    body: impl Fn(Synchronizer) -> T + Sync,
) -> Vec<T> {
    spawn_with(size, &parameters(), &options(policy), body)
}

/// Runs `body` on every rank of a world in memory that trains some parameters.
pub fn spawn_with<T: Send>(
    size: usize,
    parameters: &[Parameter],
    options: &Options,
    body: impl Fn(Synchronizer) -> T + Sync,
) -> Vec<T> {
    testkit::spawn(Network::Mem, size, |link| {
        body(Synchronizer::start(link, parameters.to_vec(), options.clone()).unwrap())
    })
}

/// The averages of all parameters.
pub fn averages(sync: &Synchronizer) -> Vec<Vec<f32>> {
    (0..sync.parameters().len()).map(|index| sync.gradient(index).to_vec()).collect()
}

pub fn give(sync: &mut Synchronizer, step: u64, spoil: bool) -> Outcome {
    let rank = sync.world().rank().0;
    sync.begin(step).unwrap();
    for (index, parameter) in parameters().iter().enumerate() {
        let mut gradient = gradient(rank, step, index, parameter.elements());
        if spoil && rank == 1 && index == 2 {
            gradient[17] = f32::NAN;
        }
        sync.ready(index, &gradient).unwrap();
    }
    sync.finish().unwrap()
}
