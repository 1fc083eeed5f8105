//! The gradient noise scale, estimated from norms of gradients of two batch sizes.

use crate::sketch::Sketch;

/// Part of an average that is kept from one sketch to the next.
const KEPT: f64 = 0.95;
/// Number of sketches from which on averages are meaningful.
const TELLING_SKETCHES: u64 = 10;

/// Signal and noise of gradients: the squared norm of the true gradient, and the sum over its elements
/// of their variances over single rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Squared norm of the gradient of the expected loss.
    pub signal: f64,
    /// Trace of the covariance of the gradient of one row.
    pub variance: f64,
}

impl Noise {
    /// Returns the simple noise scale in rows: far smaller batches waste steps, far larger ones waste
    /// rows. Infinite if no signal is left above the noise.
    pub fn scale(&self) -> f64 {
        if self.signal > 0.0 { self.variance / self.signal } else { f64::INFINITY }
    }

    /// Returns the progress of a step of `batch` rows, divided by the progress of a step of `first` rows;
    /// the result is at most `batch / first`. This is the gain of AdaScale (Johnson et al., "AdaScale
    /// SGD: A User-Friendly Algorithm for Distributed Training").
    pub fn gain(&self, batch: f64, first: f64) -> f64 {
        let (variance, scale) = (self.variance / first, batch / first);
        let signal = self.signal.max(0.0);
        (variance + signal) / (variance / scale + signal)
    }
}

/// Estimator of [`Noise`] from sketched steps of several ranks.
///
/// With b rows on each of several ranks and B rows together, E|g|² = |G|² + S/b for a rank's gradient g
/// and E|ḡ|² = |G|² + S/B for the mean ḡ of all. The solutions for |G|² and S are averaged over
/// sketched steps, since those of a single step are mostly noise (McCandlish et al., "An Empirical
/// Model of Large-Batch Training", appendix A.1).
#[derive(Clone, Debug, Default)]
pub struct NoiseScale {
    signal: f64,
    variance: f64,
    sketches: u64,
}

/// One rank's part of a step: its rows of the batch, and the row of the [`Sketch`] of their mean gradient.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Rows of the batch.
    pub rows: usize,
    /// The row that [`Sketch::row`] returned.
    pub sketch: &'a [f32],
}

impl NoiseScale {
    /// Records a step by the sketches of all ranks. Squared norms are averaged with the ranks' rows as
    /// weights; the result is the expected squared norm of a rank with the mean number of rows.
    pub fn take<'a>(&mut self, parts: impl Iterator<Item = Part<'a>> + Clone) {
        let batch = parts.clone().map(|part| part.rows).sum::<usize>() as f64;
        let mut mean = [0.0_f32; Sketch::ROW];
        let mut ranks = 0.0;
        for Part { rows, sketch } in parts {
            let share = (rows as f64 / batch) as f32;
            mean.iter_mut().zip(sketch).for_each(|(sum, one)| *sum += share * one);
            ranks += 1.0;
        }
        self.observe(f64::from(mean[0]), batch / ranks, Sketch::squared_norm(&mean), batch);
    }

    /// Records a step from `of_ranks`, the mean over ranks of squared norms of their gradients, each of
    /// `rows` rows, and from `of_mean`, the squared norm of the mean of all gradients, of `batch` rows.
    /// Steps without information are left out: steps of a single rank, and steps with norms that are not
    /// finite.
    pub fn observe(&mut self, of_ranks: f64, rows: f64, of_mean: f64, batch: f64) {
        if batch <= rows || !(of_ranks + of_mean).is_finite() {
            return;
        }
        let signal = (batch * of_mean - rows * of_ranks) / (batch - rows);
        let variance = (of_ranks - of_mean) / (1.0 / rows - 1.0 / batch);
        self.signal = KEPT * self.signal + (1.0 - KEPT) * signal;
        self.variance = KEPT * self.variance + (1.0 - KEPT) * variance;
        self.sketches += 1;
    }

    /// Returns the recent noise; `None` before ten sketches, or if ranks' gradients do not differ.
    pub fn noise(&self) -> Option<Noise> {
        // Averages begin at zero.
        let weight = 1.0 - KEPT.powi(self.sketches.min(1 << 20) as i32);
        let noise = Noise { signal: self.signal / weight, variance: self.variance / weight };
        (self.sketches >= TELLING_SKETCHES && noise.variance > 0.0).then_some(noise)
    }
}

#[cfg(test)]
mod tests {
    use thinwire_wire::random::Key;

    use super::*;

    #[test]
    fn the_noise_of_known_gradients_is_found() {
        // Rows' gradients are normal around 0.05 in each of 2,000 elements: |G|² = 5, S = 2,000.
        let (ranks, rows, elements) = (4, 8, 2_000);
        let mut scale = NoiseScale::default();
        for step in 0..200 {
            let key = Key { seed: 11, step, tensor: 0 };
            let gradient = |rank: u32| -> Vec<f32> {
                let key = key.for_rank(rank);
                let deviation = 1.0 / (rows as f32).sqrt();
                (0..elements).map(|at| 0.05 + deviation * key.normal(at)).collect()
            };
            let row = |rank: u32| {
                let mut sketch = Sketch::new(step);
                sketch.add(0, &gradient(rank));
                sketch.row()
            };
            let all: Vec<_> = (0..ranks).map(row).collect();
            scale.take(all.iter().map(|sketch| Part { rows, sketch }));
            assert_eq!(scale.noise().is_some(), step >= 9);
        }
        let noise = scale.noise().unwrap();
        assert!((noise.variance / 2_000.0 - 1.0).abs() < 0.2, "{noise:?}");
        assert!(noise.signal > 0.0 && noise.signal < 25.0, "{noise:?}");
    }

    #[test]
    fn exact_norms_give_exact_noise() {
        let (signal, variance) = (3.0, 48.0);
        let mut scale = NoiseScale::default();
        for step in 0..30_u64 {
            // The estimate does not depend on the batch.
            let (rows, batch) = if step < 15 { (4.0, 16.0) } else { (8.0, 32.0) };
            scale.observe(signal + variance / rows, rows, signal + variance / batch, batch);
        }
        scale.observe(f64::NAN, 4.0, 1.0, 16.0);
        scale.observe(1e9, 4.0, 1.0, 4.0);
        let noise = scale.noise().unwrap();
        assert!((noise.signal - signal).abs() < 1e-9 && (noise.variance - variance).abs() < 1e-9);
        assert!((noise.scale() - 16.0).abs() < 1e-9);
        // At the noise scale, twice the batch is worth 4/3 of the progress.
        assert!((noise.gain(32.0, 16.0) - 4.0 / 3.0).abs() < 1e-9);
        assert_eq!(Noise { signal: -1.0, variance: 1.0 }.scale(), f64::INFINITY);
        assert_eq!(Noise { signal: -1.0, variance: 1.0 }.gain(32.0, 16.0), 2.0);
    }
}
