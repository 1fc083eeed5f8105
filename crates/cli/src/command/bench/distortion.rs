//! `thinwire bench distortion`: rate and distortion of codecs on recorded gradients (bits per element and
//! relative squared error), beside the entropy of the best uniform quantiser that has the same error.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use thinwire_codec::{Choice, Trial};
use thinwire_wire::random::Key;

use crate::output::print_lines;

/// Bits per element and relative squared errors of codecs on recorded gradients.
#[derive(clap::Args)]
pub struct Args {
    /// Files of f32, little-endian, without a header
    #[arg(required = true, value_name = "FILE")]
    gradients: Vec<PathBuf>,
    /// The codecs to try [default: one of every kind that encodes to bytes]
    #[arg(long, value_delimiter = ',')]
    codecs: Vec<Choice>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    gradients: String,
    elements: usize,
    codec: String,
    bits: f64,
    error: f64,
    bound_bits: f64,
}

/// Tries every codec on every file.
///
/// # Errors
/// If a file cannot be read or holds no finite f32, or standard output is closed.
pub fn run(args: &Args) -> Result<u8> {
    let mut lines = Vec::new();
    for path in &args.gradients {
        let bytes =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (words, rest) = bytes.as_chunks();
        let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        ensure!(
            rest.is_empty() && !values.is_empty() && values.iter().all(|x| x.is_finite()),
            "{}: {} bytes, expected finite f32 of 4 bytes each",
            path.display(),
            bytes.len()
        );
        let codecs =
            if args.codecs.is_empty() { thinwire_codec::all() } else { args.codecs.clone() };
        for choice in codecs {
            let Choice::Bytes(codec) = &choice else { continue };
            let Trial { error, bytes, .. } = Trial::of(codec.as_ref(), &values, KEY);
            lines.push(Line {
                gradients: path.display().to_string(),
                elements: values.len(),
                codec: choice.to_string(),
                bits: 8.0 * bytes as f64 / values.len() as f64,
                error,
                bound_bits: bound(&values, error),
            });
        }
    }
    let head = ["gradients", "codec", "bits", "error", "uniform bound"];
    print_lines((&lines, args.json), head, |line| {
        let (bits, bound) = (format!("{:.2}", line.bits), format!("{:.2}", line.bound_bits));
        [line.gradients.clone(), line.codec.clone(), bits, format!("{:.2e}", line.error), bound]
    })?;
    Ok(0)
}

const KEY: Key = Key { seed: 0, step: 0, tensor: 0 };

/// Values that share a step.
const SECTION: usize = 1 << 16;

/// Levels on either side of 0.
const LEVEL_MAX: usize = 4096;

/// Dead zones among which the best is taken, in steps.
const DEAD_ZONES: [f64; 4] = [0.0, 0.1, 0.2, 0.3];

/// Returns the least entropy, in bits per element, of uniform quantisers with a relative squared error of
/// `error`: one step per section, a multiple of its root mean square, and values at the centroids of levels.
///
/// The bisection takes for granted that the error grows with the step. Where values lie beyond
/// [`LEVEL_MAX`] small steps, it does not.
fn bound(values: &[f32], error: f64) -> f64 {
    if !(1e-9..1.0).contains(&error) {
        return f64::NAN;
    }
    let of_zone = |zone: f64| {
        let (mut low, mut high) = (1e-4_f64, 1e3_f64);
        while high / low > 1.005 {
            let step = (low * high).sqrt();
            match quantised(values, step, zone).0 <= error {
                true => low = step,
                false => high = step,
            }
        }
        quantised(values, low, zone).1
    };
    DEAD_ZONES.map(of_zone).into_iter().fold(f64::INFINITY, f64::min)
}

/// Returns the relative squared error and the entropy of levels.
fn quantised(values: &[f32], step: f64, zone: f64) -> (f64, f64) {
    // Of every level: how many values have it, the squares of their steps, and these times the values and
    // their squares, in steps.
    let mut levels = vec![[0.0_f64; 4]; 2 * LEVEL_MAX + 1];
    let mut length = 0.0;
    for section in values.chunks(SECTION) {
        let squares: f64 = section.iter().map(|x| f64::from(*x).powi(2)).sum();
        let step = step * (squares / section.len() as f64).sqrt();
        length += squares;
        for x in section {
            let steps = if step > 0.0 { f64::from(*x) / step } else { 0.0 };
            let level = (steps.abs() + 0.5 - zone).floor().clamp(0.0, LEVEL_MAX as f64);
            let place = (LEVEL_MAX as f64 + level.copysign(steps)) as usize;
            let weight = step * step;
            let terms = [1.0, weight, weight * steps, weight * steps * steps];
            levels[place].iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
    }
    levels.retain(|[count, ..]| *count > 0.0);
    let lost = levels.iter().map(|[_, weight, sum, squares]| {
        squares - if *weight > 0.0 { sum * sum / weight } else { 0.0 }
    });
    let count = values.len() as f64;
    let entropy = levels.iter().map(|[n, ..]| -n / count * (n / count).log2()).sum::<f64>();
    (lost.sum::<f64>() / length.max(f64::MIN_POSITIVE), entropy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_values_need_what_the_literature_says() {
        let values: Vec<f32> = (0..1 << 15).map(|i| KEY.normal(i)).collect();
        // At high rates a quarter of a bit above the rate-distortion function: 1.53 dB.
        let above = bound(&values, 1e-3) - 0.5 * 1e3_f64.log2();
        assert!((above - 0.254).abs() < 0.02, "{above}");
        assert!(bound(&values, 0.3) < bound(&values, 0.1));
        assert!(bound(&values, 0.0).is_nan());
    }
}
