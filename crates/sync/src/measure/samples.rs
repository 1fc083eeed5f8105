//! Samples of gradients, on which codec errors are measured.
//!
//! The codec error of one encoding is that of a sample of this rank's gradients, before any residual.
//! Error feedback has to make it good later; without feedback it is lost.

/// Elements of all samples of a rank together, and of one bucket's at least and at most.
const ALL_MAX: usize = 1 << 19;
const BUCKET_MIN: usize = 1 << 12;
const BUCKET_MAX: usize = 1 << 16;

/// A sample is made of pieces of so many neighbouring elements: blocks of codecs stay whole.
const PIECE: usize = 1 << 12;

/// Pieces of `values`, evenly spread, where `buckets` buckets are sampled.
pub(crate) fn sample(values: &[f32], buckets: usize) -> Vec<f32> {
    let wanted = (ALL_MAX / buckets.max(1)).clamp(BUCKET_MIN, BUCKET_MAX);
    if values.len() <= wanted {
        return values.to_vec();
    }
    let pieces = wanted / PIECE;
    let place = |piece: usize| piece * (values.len() - PIECE) / (pieces - 1).max(1);
    (0..pieces).flat_map(|piece| &values[place(piece)..][..PIECE]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_over_all_values() {
        let values: Vec<f32> = (0..1 << 18).map(|i| i as f32).collect();
        let sampled = sample(&values, 1);
        assert_eq!((sampled.len(), sampled[0]), (BUCKET_MAX, 0.0));
        assert_eq!(sampled.last(), values.last());
        assert_eq!(sample(&values, 1000).len(), BUCKET_MIN);
        assert_eq!(sample(&values[..5000], 1).len(), 5000);
    }
}
