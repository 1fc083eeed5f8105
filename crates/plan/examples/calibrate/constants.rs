//! The constants of a device kind and its links, and how they are fitted.

use rayon::prelude::*;
use thinwire_plan::Cluster;
use thinwire_plan::cluster::{Device, Efficiency, Handling, Level};

use crate::case::Case;

/// How often every constant is tried larger and smaller.
const ROUNDS: usize = 14;

/// One set for all measurements on A100s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Values, in the order of [`Constants::NAMES`].
    pub values: [f64; 8],
}

impl Constants {
    /// What the values are.
    pub const NAMES: [&str; 8] = [
        "best efficiency of a product",
        "Gflop at half of it",
        "efficiency of memory",
        "overhead of an operator, us",
        "NVLink, GB/s",
        "NVLink latency, us",
        "network of a node, GB/s",
        "network latency, us",
    ];
    /// Where fitting begins, and how large a value may become.
    pub const START: Constants =
        Constants { values: [0.7, 3.0, 0.7, 10.0, 200.0, 10.0, 80.0, 15.0] };
    const MOST: [f64; 8] = [1.0, 50.0, 1.0, 100.0, 300.0, 200.0, 100.0, 500.0];

    /// A cluster of A100s with 80 GB in nodes of eight; memory does not limit, because these
    /// steps did fit.
    pub fn cluster(&self, devices: usize) -> Cluster {
        let [best, half, memory, overhead, inside, inside_us, outside, outside_us] = self.values;
        let device = Device {
            name: "a100".to_owned(),
            flops_per_s: 312e12,
            memory_bytes: 1e18,
            fixed_bytes: 0.0,
            slack: 0.0,
            memory_bytes_per_s: 2039e9,
            memory_efficiency: memory,
            codec_bytes_per_s: 5e11,
            overhead_s: 1e-6 * overhead,
            efficiency: saturating(best, 1e9 * half),
            handling: Handling::default(),
            operators: Default::default(),
        };
        let level = |name: &str, size, latency_us: f64, gbyte: f64| Level {
            name: name.to_owned(),
            size,
            latency_s: 1e-6 * latency_us,
            bytes_per_s: 1e9 * gbyte,
            links: None,
        };
        let mut levels = vec![level("node", devices.min(8), inside_us, inside)];
        if devices > 8 {
            levels.push(level("pod", devices / 8, outside_us, outside));
        }
        Cluster { devices: vec![device], levels, kinds: Vec::new() }
    }

    /// The constants with the least mean logarithm of predicted over measured, every set of cases
    /// with its weight: one constant after the other is made larger or smaller while that helps.
    pub fn fit(sets: &[(f64, Vec<&Case>)]) -> Constants {
        let mut best = Constants::START;
        let mut least = best.loss(sets);
        let mut steps = [0.3; 8];
        for _ in 0..ROUNDS {
            for place in 0..steps.len() {
                let factors = [1.0 + steps[place], 1.0 / (1.0 + steps[place])];
                let tried = factors.map(|factor| {
                    let mut values = best.values;
                    values[place] = (values[place] * factor).min(Constants::MOST[place]);
                    let constants = Constants { values };
                    (constants.loss(sets), constants)
                });
                let [larger, smaller] = tried;
                let (loss, constants) = if larger.0 < smaller.0 { larger } else { smaller };
                if loss < least {
                    (least, best) = (loss, constants);
                    steps[place] *= 1.2;
                } else {
                    steps[place] *= 0.5;
                }
            }
        }
        best
    }

    fn loss(&self, sets: &[(f64, Vec<&Case>)]) -> f64 {
        let of = |cases: &[&Case]| {
            let error = |case: &&Case| (self.predict(case) / case.row.seconds).ln().abs();
            cases.par_iter().map(error).sum::<f64>() / cases.len() as f64
        };
        sets.iter().map(|(weight, cases)| weight * of(cases)).sum()
    }

    /// Seconds of a case.
    pub fn predict(&self, case: &Case) -> f64 {
        case.seconds(&self.cluster(case.row.devices))
    }
}

/// A curve that reaches `best` for large operators and half of it at `half_flops`, as if every
/// operator had so much additional work.
fn saturating(best: f64, half_flops: f64) -> Efficiency {
    let sizes = (-24..=24).map(|step| half_flops * 2_f64.powf(f64::from(step) / 2.0));
    Efficiency::through(sizes.map(|size| (size, best * size / (size + half_flops))).collect())
}
