//! Bytes, errors and speeds of the largest elements of every block, compared with the recipe of
//! SparseLoCo.
//!
//! `cargo run --release -p thinwire-codec --example deltas [FILE…]`: normal values, heavy-tailed ones (Student's
//! t with three degrees of freedom), and files of f32, little-endian. The recipe, as deployed, sends 12 bits for
//! a position and two bits for a value, in bins of 1.5 standard deviations whose means are decoded; at its
//! positions and values no code of the same sets takes less than `log2 C(4096, 64) + 128` bits per block.

use std::error::Error;

use thinwire_codec::{Choice, Distortion, speed};
use thinwire_wire::random::Key;

const KEY: Key = Key { seed: 1, step: 2, tensor: 3 };
const BLOCK: usize = 4096;
const KEPT: usize = 64;
const ELEMENTS: usize = 1 << 22;
const CODECS: [&str; 8] = [
    "blocktopk:64/4096:lloyd:2",
    "blocktopk:64/4096:ecsq:0.5",
    "blocktopk:64/4096",
    "blocktopk:64/4096:lloyd:1",
    "blocktopk:64/4096:lloyd:3",
    "blocktopk:64/4096:int2",
    "blocktopk:64/4096:int8",
    "topk:0.015625",
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut kinds = vec![("normal".to_owned(), normal()), ("heavy-tailed".to_owned(), heavy())];
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path)?;
        let values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        kinds.push((path, values));
    }
    println!("{:34} {:>14} {:>8} {:>10}", "", "bits per block", "ratio", "error");
    for (kind, values) in &kinds {
        println!("{kind}, {} values", values.len());
        let (error, bits) = (recipe(values), (KEPT * 14) as f64);
        line("SparseLoCo's recipe", bits, &format!("{error:.4}"));
        for name in CODECS {
            let Choice::Bytes(codec) = name.parse()? else { continue };
            let Distortion { error, bytes, .. } = Distortion::of(codec.as_ref(), values, KEY);
            let bits = 8.0 * (bytes * BLOCK) as f64 / values.len() as f64;
            line(name, bits, &format!("{error:.4}"));
        }
        line("least for values of two bits", sets() + 2.0 * KEPT as f64, "");
    }
    for name in &CODECS[..3] {
        for row in speed::measure(&name.parse()?, ELEMENTS, 9) {
            println!("{name:34} {:20} {:8.0} MB/s", row.operation, row.bytes_per_s / 1e6);
        }
    }
    Ok(())
}

fn line(name: &str, bits: f64, error: &str) {
    println!("  {name:32} {bits:14.1} {:8.1} {error:>10}", 32.0 * BLOCK as f64 / bits);
}

fn normal() -> Vec<f32> {
    (0..ELEMENTS as u64).map(|at| KEY.normal(at)).collect()
}

fn heavy() -> Vec<f32> {
    let value = |at: u64| {
        let [x, a, b, c] = [0, 1, 2, 3].map(|part| KEY.normal(4 * at + part));
        x / ((a * a + b * b + c * c) / 3.0).sqrt()
    };
    (0..ELEMENTS as u64).map(value).collect()
}

/// Returns the logarithm of the number of sets of kept elements.
fn sets() -> f64 {
    (0..KEPT).map(|at| ((BLOCK - at) as f64 / (KEPT - at) as f64).log2()).sum()
}

/// Returns the relative squared error of the recipe, with one table for all values.
fn recipe(values: &[f32]) -> f64 {
    let kept: Vec<f64> = values.chunks(BLOCK).flat_map(largest).collect();
    let mean = kept.iter().sum::<f64>() / kept.len() as f64;
    let squares = kept.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    let bin = 6.0 * (squares / (kept.len() - 1) as f64).sqrt() / 4.0;
    let code = |x: f64| ((x - mean) / bin + 2.0).round().clamp(0.0, 3.0) as usize;
    let (mut sums, mut counts) = ([0.0; 4], [0.0; 4]);
    for x in &kept {
        sums[code(*x)] += x;
        counts[code(*x)] += 1.0;
    }
    let lost = |x: f64| (x - sums[code(x)] / counts[code(x)]).powi(2);
    let whole: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
    let sent: f64 = kept.iter().map(|x| x * x - lost(*x)).sum();
    1.0 - sent / whole
}

fn largest(block: &[f32]) -> impl Iterator<Item = f64> {
    let mut values = block.to_vec();
    values.sort_unstable_by(|a, b| b.abs().total_cmp(&a.abs()));
    values.truncate(KEPT);
    values.into_iter().map(f64::from)
}
