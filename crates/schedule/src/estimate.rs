//! The cost of an all-reduce in a world of any size.
//!
//! Small worlds are simulated. In larger ones one rank's own load is exact. The waiting time is taken
//! from a small world, plus the latency of the further messages in sequence. Estimates are within a
//! quarter of the simulation.

use thinwire_wire::World;

use crate::closed_form::in_sequence;
use crate::cost::everyone;
use crate::{
    Algorithm, Cost, Levels, Shape, Speeds, Summation, all_reduce, cost, cost_in_units, load_of,
};

/// Worlds of more ranks are not simulated.
const SIMULATED_MAX: usize = 4;

/// Estimates the cost of an all-reduce among `world_size` ranks. For up to four ranks, and over trees,
/// it equals [`cost`].
///
/// # Panics
/// As [`cost`].
pub fn estimate(
    algorithm: Algorithm,
    world_size: usize,
    shape: &Shape,
    encoded_len: &dyn Fn(usize) -> usize,
    speeds: &Speeds,
) -> Cost {
    let size = simulated(world_size);
    if size == world_size || !algorithm.suits(size) {
        return cost(algorithm, world_size, shape, encoded_len, speeds);
    }
    let load = |size: usize| {
        let first = World::new(0, size as u32).expect("a world has a first rank");
        load_of(&all_reduce(algorithm, first, shape), encoded_len, speeds)
    };
    let (few, many) = (load(size), load(world_size));
    let busy = |cost: &Cost| cost.cpu_seconds.max(cost.egress_seconds).max(cost.ingress_seconds);
    let simulated = cost(algorithm, size, shape, encoded_len, speeds);
    let more = in_sequence(algorithm, world_size) - in_sequence(algorithm, size);
    let seconds = (simulated.seconds - busy(&few)).max(0.0) + busy(&many) + more * speeds.latency_s;
    // Gathers encode everything before the first message, others the first rank's piece.
    let piece = if algorithm.gathers() { 1.0 } else { size as f64 / world_size as f64 };
    Cost { seconds, lead_seconds: simulated.lead_seconds * piece, ..many }
}

/// Returns the number of ranks, or units, that are simulated for a larger world.
fn simulated(size: usize) -> usize {
    match size {
        0..=SIMULATED_MAX => size,
        // Halving has hosts and guests unless the number of ranks is a power of two.
        _ if size.is_power_of_two() => SIMULATED_MAX,
        _ => SIMULATED_MAX - 1,
    }
}

impl Summation {
    /// Estimates the cost of this all-reduce among `world_size` ranks. Up to four units are simulated;
    /// for more, the flat algorithm between them is estimated. The cost is exact if encodings are
    /// gathered, and over trees.
    ///
    /// # Panics
    /// If the world does not divide into units, or `shape.block` or `shape.partitions` is 0.
    pub fn estimate(
        self,
        world_size: usize,
        shape: &Shape,
        encoded_len: &dyn Fn(usize) -> usize,
        [within, between]: [&Speeds; 2],
    ) -> Cost {
        let units = world_size / self.unit;
        // What is forwarded within a unit grows with the units where every encoding is.
        let is_whole = self.algorithm.gathers() || !self.algorithm.suits(simulated(units));
        let few = if is_whole { units } else { simulated(units) };
        let schedules = everyone(few * self.unit, |world| self.all_reduce(world, shape));
        let levels = Levels { unit: self.unit, within, between, rates: None };
        let cost = cost_in_units(&schedules, encoded_len, &levels);
        if few == units {
            return cost;
        }
        let part = Shape { length: shape.length.div_ceil(self.unit), ..shape.clone() };
        let flat = |units| estimate(self.algorithm, units, &part, encoded_len, between);
        let (of_few, of_all) = (flat(few), flat(units));
        Cost {
            seconds: cost.seconds + of_all.seconds - of_few.seconds,
            lead_seconds: cost.lead_seconds,
            cpu_seconds: cost.cpu_seconds + of_all.cpu_seconds - of_few.cpu_seconds,
            egress_seconds: cost.egress_seconds + of_all.egress_seconds - of_few.egress_seconds,
            ingress_seconds: cost.ingress_seconds + of_all.ingress_seconds - of_few.ingress_seconds,
            sent_bytes: cost.sent_bytes + of_all.sent_bytes - of_few.sent_bytes,
            received_bytes: cost.received_bytes + of_all.received_bytes - of_few.received_bytes,
            messages: cost.messages + of_all.messages - of_few.messages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds(latency_s: f64, bytes_per_s: f64) -> Speeds {
        let (encode_per_s, decode_per_s, merge_per_s) = (1e9, 2e9, 2e9);
        let task_overhead_s = 2e-6;
        Speeds { latency_s, bytes_per_s, encode_per_s, decode_per_s, merge_per_s, task_overhead_s }
    }

    #[test]
    fn large_worlds_cost_about_what_simulating_them_says() {
        for speeds in [2e-5, 2e-2].map(|latency_s| speeds(latency_s, 1.25e7)) {
            for algorithm in Algorithm::ALL {
                for (size, partitions) in [(5, 1), (8, 2), (12, 1), (16, 4), (24, 2)] {
                    let shape = Shape { length: 1 << 18, block: 1, partitions };
                    let simulated = cost(algorithm, size, &shape, &|count| 4 * count, &speeds);
                    let found = estimate(algorithm, size, &shape, &|count| 4 * count, &speeds);
                    let ratio = found.seconds / simulated.seconds;
                    assert!((0.8..1.25).contains(&ratio), "{algorithm}, {size} ranks: {ratio}");
                    // Chunks differ by an element.
                    let bytes = found.sent_bytes as f64 / simulated.sent_bytes as f64;
                    assert!((0.99..1.01).contains(&bytes), "{algorithm}: {bytes}");
                }
            }
        }
    }

    #[test]
    fn many_units_cost_about_what_simulating_them_says() {
        let (within, between) = (speeds(1e-6, 1e9), speeds(1e-3, 1.25e7));
        for algorithm in Algorithm::ALL {
            for (unit, units) in [(2, 2), (2, 5), (4, 6), (2, 8)] {
                let hierarchy = Summation { unit, algorithm };
                let shape = Shape { length: 1 << 18, block: 1, partitions: 2 };
                let schedules = everyone(unit * units, |world| hierarchy.all_reduce(world, &shape));
                let levels = Levels { unit, within: &within, between: &between, rates: None };
                let simulated = cost_in_units(&schedules, &|count| 4 * count, &levels);
                let found = hierarchy.estimate(
                    unit * units,
                    &shape,
                    &|count| 4 * count,
                    [&within, &between],
                );
                let ratio = found.seconds / simulated.seconds;
                assert!((0.75..1.33).contains(&ratio), "{hierarchy}, {units} units: {ratio}");
            }
        }
    }
}
