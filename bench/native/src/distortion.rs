//! `thinwire-bench distortion`: rate and distortion of codecs on recorded gradients (bits per element and
//! relative squared error), beside the entropy of the best uniform quantiser that has the same error.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use thinwire_codec::{Choice, Codec, Distortion};
use thinwire_wire::random::Key;

use crate::print_json;

/// Bits per element and relative squared errors of codecs on recorded gradients.
#[derive(clap::Args)]
pub struct Args {
    /// Files of f32, little-endian, without a header
    #[arg(required = true, value_name = "FILE")]
    gradients: Vec<PathBuf>,
    /// The codecs to try [default: one of every kind that encodes to bytes]
    #[arg(long, value_delimiter = ',')]
    codecs: Vec<Choice>,
}

#[derive(Serialize)]
struct Line {
    gradients: String,
    elements: usize,
    codec: String,
    bits: f64,
    error: f64,
    /// None if no quantiser of bounded size has this error, such as 0.
    bound_bits: Option<f64>,
}

/// Beginnings of files that are no plain f32, and their formats.
const FORMATS: [(&[u8], &str); 2] =
    [(b"\x93NUMPY", "a .npy file"), (b"PK\x03\x04", "a zip archive")];

/// Tries every codec on every file.
///
/// # Errors
/// If a codec does not encode elements, a file cannot be read or holds no finite f32, or standard output is
/// closed.
pub fn run(args: &Args) -> Result<()> {
    let codecs = codecs(&args.codecs)?;
    for path in &args.gradients {
        let values = values(path)?;
        let mut lines = codecs.iter().map(|codec| line(path, &values, codec.as_ref()));
        lines.try_for_each(|line| print_json(&line))?;
    }
    Ok(())
}

/// Returns the codecs that were asked for, or all that encode elements.
fn codecs(asked: &[Choice]) -> Result<Vec<Arc<dyn Codec>>> {
    let is_asked = !asked.is_empty();
    let among = if is_asked { asked.to_vec() } else { thinwire_codec::all() };
    let codec = |choice: Choice| match choice {
        Choice::Bytes(codec) => Some(Ok(codec)),
        other => is_asked.then(|| Err(no_elements(&other))),
    };
    among.into_iter().filter_map(codec).collect()
}

fn no_elements(choice: &Choice) -> anyhow::Error {
    anyhow!("codec {choice} has no element-wise encodings: it sends sums over ranks")
}

/// Reads finite f32, at least one.
fn values(path: &Path) -> Result<Vec<f32>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let refused = |found: &str| {
        let expected = "expected finite f32 of 4 bytes each, without a header";
        Err(anyhow!("{} {found}, {expected}", path.display()))
    };
    if let Some((_, format)) = FORMATS.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return refused(&format!("is {format}"));
    }
    let (words, rest) = bytes.as_chunks();
    if words.is_empty() || !rest.is_empty() {
        return refused(&format!("has {} bytes", bytes.len()));
    }
    let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    match values.iter().position(|x| !x.is_finite()) {
        Some(at) => refused(&format!("has {} at element {at}", values[at])),
        None => Ok(values),
    }
}

fn line(path: &Path, values: &[f32], codec: &dyn Codec) -> Line {
    let Distortion { error, bytes, .. } = Distortion::of(codec, values, KEY);
    Line {
        gradients: path.display().to_string(),
        elements: values.len(),
        codec: codec.to_string(),
        bits: 8.0 * bytes as f64 / values.len() as f64,
        error,
        bound_bits: bound(values, error),
    }
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
/// There is none of an exact codec, nor of one that loses everything, nor where values lie beyond [`LEVEL_MAX`] of
/// the steps that the error asks for.
fn bound(values: &[f32], error: f64) -> Option<f64> {
    if !(1e-9..1.0).contains(&error) {
        return None;
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
        let (lost, entropy) = quantised(values, low, zone);
        (lost <= error).then_some(entropy)
    };
    DEAD_ZONES.map(of_zone).into_iter().flatten().reduce(f64::min)
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
        let bound = |error| bound(&values, error);
        // At high rates a quarter of a bit above the rate-distortion function: 1.53 dB.
        let above = bound(1e-3).unwrap() - 0.5 * 1e3_f64.log2();
        assert!((above - 0.254).abs() < 0.02, "{above}");
        assert!(bound(0.3) < bound(0.1));
        assert_eq!(bound(0.0), None);
        // Two values are beyond all levels of the steps that the others need.
        let mut tailed = values.clone();
        (tailed[0], tailed[1]) = (1e4, 2e4);
        assert_eq!(super::bound(&tailed, 1e-8), None);
    }

    #[test]
    fn only_short_files_of_finite_values_are_read() {
        let path = std::env::temp_dir().join(format!("thinwire-gradients-{}", std::process::id()));
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            values(&path).map_err(|error| error.to_string().replace(&*path.to_string_lossy(), "it"))
        };
        assert_eq!(read(&[0, 0, 128, 63, 0, 0, 0, 192]).unwrap(), [1.0, -2.0]);
        let expected = "expected finite f32 of 4 bytes each, without a header";
        for (bytes, found) in [
            (&b"\x93NUMPY\x01\x00"[..], "is a .npy file"),
            (b"PK\x03\x04", "is a zip archive"),
            (b"", "has 0 bytes"),
            (b"12345", "has 5 bytes"),
            (&[0, 0, 0, 0, 0, 0, 192, 127], "has NaN at element 1"),
        ] {
            assert_eq!(read(bytes).unwrap_err(), format!("it {found}, {expected}"));
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn codecs_without_encodings_of_elements_are_refused_by_name() {
        let asked = |names: &[&str]| {
            let asked: Vec<Choice> =
                names.iter().map(|name| Choice::parse(name).unwrap()).collect();
            codecs(&asked).map(|codecs| codecs.len()).map_err(|error| error.to_string())
        };
        assert!(asked(&[]).unwrap() > 10);
        assert_eq!(asked(&["int8", "ecsq:1"]), Ok(2));
        let error = asked(&["int8", "powersgd:4"]).unwrap_err();
        let expected = "codec powersgd:4 has no element-wise encodings: it sends sums over ranks";
        assert_eq!(error, expected);
    }
}
