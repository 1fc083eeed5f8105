//! Devices: their rates, memory and overheads.

use std::collections::BTreeMap;

/// Name of the optimiser among a device's measured operators.
pub(crate) const UPDATE: &str = "update";
/// Name of adding a micro-batch to the sum of gradients among them.
pub(crate) const ADD: &str = "add";
/// Name of copying values between their layout and the wire's among them.
pub(crate) const LAYOUT: &str = "layout";

/// Kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Name in the cluster file.
    pub name: String,
    /// Nominal floating-point operations per second, in the dtype of training.
    pub flops_per_s: f64,
    /// Memory in bytes.
    pub memory_bytes: f64,
    /// Memory that a training takes whatever its size, in bytes: program, threads, the allocator's
    /// own.
    pub fixed_bytes: f64,
    /// Bytes taken beyond every byte that a plan counts, as by an allocator.
    pub slack: f64,
    /// Bytes per second between memory and processors.
    pub memory_bytes_per_s: f64,
    /// Part of that rate that operators reach.
    pub memory_efficiency: f64,
    /// Bytes of f32 per second that are encoded, or decoded and added.
    pub codec_bytes_per_s: f64,
    /// Time from the request of an operator to its start, where nothing hides it, in seconds.
    pub overhead_s: f64,
    /// Part of `flops_per_s` that operators reach.
    pub efficiency: Efficiency,
    /// Device time of moving bytes.
    pub handling: Handling,
    /// Speed of operators that were measured by themselves, relative to others of their kind.
    pub operators: BTreeMap<String, f64>,
}

impl Device {
    /// Returns the bytes that a plan may count on a device with this memory, of which a part stays
    /// free.
    pub fn capacity(&self, memory_bytes: f64, reserve: f64) -> f64 {
        ((1.0 - reserve) * memory_bytes - self.fixed_bytes) / (1.0 + self.slack)
    }

    /// Returns the bytes that a training takes of which a plan counts `counted_bytes`.
    pub fn taken(&self, counted_bytes: f64) -> f64 {
        self.fixed_bytes + (1.0 + self.slack) * counted_bytes
    }

    /// Returns the speed of an operator relative to others of its kind, if it was measured.
    pub fn pace(&self, operator: &str) -> Option<f64> {
        self.operators.get(operator).copied()
    }
}

/// Device time of moving bytes, while the device computes: copies, checksums, and the thread that
/// does them. Zero where other hardware does it, as beside accelerators.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Handling {
    /// Seconds per byte that is sent while another is received.
    pub byte_s: f64,
    /// Seconds per message that is sent while another is received.
    pub message_s: f64,
    /// Seconds by which a change of layout takes longer than its transfer where nothing is computed
    /// meanwhile: it begins with the last device, and waking up takes time.
    pub exchange_s: f64,
}

impl Handling {
    /// Returns the seconds of a number of messages with `bytes` together.
    pub fn seconds(&self, messages: f64, bytes: f64) -> f64 {
        messages * self.message_s + bytes * self.byte_s
    }
}

/// Part of a device's rate that an operator reaches, by its size.
///
/// The curve is piecewise linear over the logarithm of the size, and constant outside its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Efficiency(Vec<(f64, f64)>);

impl Efficiency {
    /// Returns a curve with one part for every size.
    pub fn constant(fraction: f64) -> Efficiency {
        Efficiency(vec![(1.0, fraction)])
    }

    /// Returns a curve through pairs of floating-point operations and part, in order of size.
    ///
    /// # Panics
    /// Panics if there is no pair.
    pub fn through(points: Vec<(f64, f64)>) -> Efficiency {
        assert!(!points.is_empty(), "an efficiency curve without a point");
        Efficiency(points)
    }

    /// Returns the part for an operator of `flops` floating-point operations.
    pub fn at(&self, flops: f64) -> f64 {
        let above = self.0.partition_point(|(size, _)| *size <= flops);
        if above == 0 {
            return self.0[0].1;
        }
        let (size, fraction) = self.0[above - 1];
        let Some((next_size, next_fraction)) = self.0.get(above) else { return fraction };
        let part = (flops / size).ln() / (next_size / size).ln();
        fraction + part * (next_fraction - fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_through_its_points() {
        let curve = Efficiency::through(vec![(1e9, 0.2), (1e11, 0.6)]);
        for (flops, fraction) in [(0.0, 0.2), (1e9, 0.2), (1e10, 0.4), (1e11, 0.6), (1e15, 0.6)] {
            assert!((curve.at(flops) - fraction).abs() < 1e-12, "{flops}");
        }
        assert_eq!(Efficiency::constant(0.5).at(3.0), 0.5);
    }
}
