//! Devices: their rates, memory and overheads.

use std::collections::BTreeMap;

/// Name of the optimiser in a device's table of measured operators.
pub(crate) const UPDATE: &str = "update";
/// Name, in a device's table of measured operators, of adding a micro-batch to the sum of gradients.
pub(crate) const ADD: &str = "add";
/// Name, in a device's table of measured operators, of copying values between their layout and the wire's.
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
    /// Memory that a training takes whatever its size, in bytes: for the program, its threads, and the
    /// allocator itself.
    pub fixed_bytes: f64,
    /// Extra memory per byte that a plan counts, such as what an allocator keeps: 0.1 means 10 %.
    pub slack: f64,
    /// Bytes per second between memory and processors.
    pub memory_bytes_per_s: f64,
    /// Part of `memory_bytes_per_s` that operators reach.
    pub memory_efficiency: f64,
    /// Bytes of f32 per second that a device encodes, or decodes and adds.
    pub codec_bytes_per_s: f64,
    /// Time from the request of an operator to its start, if nothing hides it, in seconds.
    pub overhead_s: f64,
    /// Part of `flops_per_s` that operators reach.
    pub efficiency: Efficiency,
    /// Device time of moving bytes.
    pub handling: Handling,
    /// Speed of operators that were measured individually, relative to others of their kind.
    pub operators: BTreeMap<String, f64>,
}

impl Device {
    /// Returns the bytes that a plan may count on a device with `memory_bytes` of memory, if the
    /// fraction `reserve` of this memory must stay free.
    pub fn capacity(&self, memory_bytes: f64, reserve: f64) -> f64 {
        ((1.0 - reserve) * memory_bytes - self.fixed_bytes) / (1.0 + self.slack)
    }

    /// Returns the bytes that a training takes if a plan counts `counted_bytes`.
    pub fn taken(&self, counted_bytes: f64) -> f64 {
        self.fixed_bytes + (1.0 + self.slack) * counted_bytes
    }

    /// Returns the speed of an operator relative to others of its kind, if it was measured.
    pub fn pace(&self, operator: &str) -> Option<f64> {
        self.operators.get(operator).copied()
    }
}

/// Time of the device itself for moving bytes, in which it cannot compute: copies, checksums, and the thread
/// that does them. Zero if other hardware does this, as with accelerators.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Handling {
    /// Seconds per byte that is sent while another is received.
    pub byte_s: f64,
    /// Seconds per message that is sent while another is received.
    pub message_s: f64,
    /// Seconds by which a change of layout takes longer than its transfer if nothing is computed
    /// meanwhile: it begins only when the last device is ready, and waking up takes time.
    pub exchange_s: f64,
}

impl Handling {
    /// Returns the seconds for a number of messages that have `bytes` in total.
    pub fn seconds(&self, messages: f64, bytes: f64) -> f64 {
        messages * self.message_s + bytes * self.byte_s
    }
}

/// Curve of the part of a device's rate that an operator reaches, over the operator's number of
/// floating-point operations.
///
/// The curve is piecewise linear over the logarithm of that number, and constant outside its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Efficiency(Vec<(f64, f64)>);

impl Efficiency {
    /// Returns a curve with the same part for every size.
    pub fn constant(fraction: f64) -> Efficiency {
        Efficiency(vec![(1.0, fraction)])
    }

    /// Returns a curve through pairs of a number of floating-point operations and a part, in order of size.
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
