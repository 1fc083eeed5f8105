//! What one device can do.

use std::collections::BTreeMap;

/// A kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// What the user calls it.
    pub name: String,
    /// Floating-point operations per second that it is sold with, in the dtype of training.
    pub flops_per_s: f64,
    /// Bytes of its memory.
    pub memory_bytes: f64,
    /// Bytes that a training takes of it whatever its size: program, threads, the allocator's own.
    pub fixed_bytes: f64,
    /// Bytes that are taken beyond every byte that a plan counts: what an allocator keeps.
    pub slack: f64,
    /// Bytes per second between its memory and its processors.
    pub memory_bytes_per_s: f64,
    /// The fraction of that rate that operators reach.
    pub memory_efficiency: f64,
    /// Bytes of f32 per second that are encoded, or decoded and added.
    pub codec_bytes_per_s: f64,
    /// Seconds from asking for an operator to its start, where nothing hides it.
    pub overhead_s: f64,
    /// Which fraction of `flops_per_s` operators reach.
    pub efficiency: Efficiency,
    /// What moving bytes takes of the device's own time.
    pub handling: Handling,
    /// For operators that were measured by themselves, by what factor they are faster than all
    /// others of their kind.
    pub operators: BTreeMap<String, f64>,
}

impl Device {
    /// Bytes that a plan may count on a device with so much memory, of which a part stays free.
    pub fn capacity(&self, memory_bytes: f64, reserve: f64) -> f64 {
        ((1.0 - reserve) * memory_bytes - self.fixed_bytes) / (1.0 + self.slack)
    }

    /// Bytes that a training takes of which a plan counts so many.
    pub fn taken(&self, counted_bytes: f64) -> f64 {
        self.fixed_bytes + (1.0 + self.slack) * counted_bytes
    }

    /// By what factor an operator is faster than others of its kind, if it was measured.
    pub fn pace(&self, operator: &str) -> Option<f64> {
        self.operators.get(operator).copied()
    }
}

/// What moving bytes takes of a device's own time, while it computes: copies, checksums, and the
/// thread that does it. Nothing where others do it, as beside accelerators.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Handling {
    /// Seconds of a byte that is sent, and of one that is received meanwhile.
    pub byte_s: f64,
    /// Seconds of a message that is sent, and of one that is received.
    pub message_s: f64,
    /// Seconds by which a tensor's change of layout takes longer than what travels, where nothing is
    /// computed meanwhile: it begins with the last device, and waking up takes its time.
    pub exchange_s: f64,
}

impl Handling {
    /// Seconds of so many messages with so many bytes together.
    pub fn seconds(&self, messages: f64, bytes: f64) -> f64 {
        messages * self.message_s + bytes * self.byte_s
    }
}

/// The fraction of a device's rate that an operator reaches, by its size.
///
/// Between the points it is a straight line over the logarithm of the size, outside of them it is
/// constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Efficiency(Vec<(f64, f64)>);

impl Efficiency {
    /// The same fraction for every size.
    pub fn constant(fraction: f64) -> Efficiency {
        Efficiency(vec![(1.0, fraction)])
    }

    /// From pairs of floating-point operations and the fraction at that size, in order of size.
    ///
    /// # Panics
    /// If there is no pair.
    pub fn through(points: Vec<(f64, f64)>) -> Efficiency {
        assert!(!points.is_empty(), "an efficiency curve without a point");
        Efficiency(points)
    }

    /// The fraction `best` for large operators, half of it for one of `half_flops`: as if every
    /// operator had to do so much besides.
    ///
    /// # Panics
    /// If `half_flops` is not above 0.
    pub fn saturating(best: f64, half_flops: f64) -> Efficiency {
        assert!(half_flops > 0.0, "half the rate at {half_flops} flops");
        let sizes = (-24..=24).map(|step| half_flops * 2_f64.powf(f64::from(step) / 2.0));
        Efficiency(sizes.map(|size| (size, best * size / (size + half_flops))).collect())
    }

    /// The fraction for an operator of so many floating-point operations.
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

    /// The largest fraction that any size reaches.
    pub fn best(&self) -> f64 {
        self.0.iter().map(|(_, fraction)| *fraction).fold(0.0, f64::max)
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
        assert_eq!(curve.best(), 0.6);
        assert_eq!(Efficiency::constant(0.5).at(3.0), 0.5);
    }
}
