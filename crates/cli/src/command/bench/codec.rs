//! `thinwire bench codec`: measures bytes of f32 per second on one thread, compared with copying the same
//! buffer.

use anyhow::Result;
use serde::Serialize;
use thinwire_codec::{CODECS, Choice, speed};
use thinwire_report::figures::{bytes, bytes_per_s, ratio};

use crate::output::{print_lines, say};
use crate::units;

/// Measure the speed of encoding and decoding, and of a plain copy.
#[derive(clap::Args)]
pub struct Args {
    /// The codecs to measure [default: one of every kind]
    #[arg(long, value_name = "CODEC,...", value_delimiter = ',')]
    codecs: Vec<Choice>,
    #[command(flatten)]
    how: How,
}

/// Size and number of measurements.
#[derive(clap::Args)]
pub struct How {
    /// Size of the buffer; a bare number counts MiB
    #[arg(long, default_value = "64MiB", value_name = "BYTES", value_parser = buffer)]
    size: usize,
    /// Measurements of each; shows their median
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// Parses the size of a buffer. A number without a unit counts MiB, as it did before sizes had units.
fn buffer(text: &str) -> Result<usize, String> {
    let number: Option<usize> = text.parse().ok();
    let text = number.map_or(text.to_owned(), |number| format!("{number}MiB"));
    units::bytes(1 << 20..=1 << 32)(&text)
}

#[derive(Serialize)]
struct Line {
    codec: String,
    operation: &'static str,
    bytes: usize,
    bytes_per_s: f64,
    relative_to_copy: f64,
    kernels: &'static str,
}

fn one_of_every_kind() -> Vec<Choice> {
    let examples = CODECS.iter().filter_map(|entry| entry.examples.first());
    examples.map(|name| Choice::parse(name).expect("an example is a valid name")).collect()
}

/// Measures one codec after the other.
///
/// # Errors
/// If standard output is closed.
pub fn run(args: &Args) -> Result<u8> {
    let codecs = if args.codecs.is_empty() { one_of_every_kind() } else { args.codecs.clone() };
    measure(&codecs, &args.how)
}

/// Measures these codecs.
///
/// # Errors
/// If standard output is closed.
pub fn measure(codecs: &[Choice], args: &How) -> Result<u8> {
    let elements = args.size / 4;
    let size = bytes(4.0 * elements as f64);
    say(format!(
        "{} kernels, one thread, {size} of f32, median of {} rounds",
        speed::kernels(),
        args.rounds
    ));
    let mut lines = Vec::new();
    for codec in codecs {
        let rows = speed::measure(codec, elements, args.rounds as usize);
        lines.extend(rows.into_iter().map(|row| Line {
            codec: codec.to_string(),
            operation: row.operation,
            bytes: 4 * elements,
            bytes_per_s: row.bytes_per_s,
            relative_to_copy: row.relative_to_copy,
            kernels: speed::kernels(),
        }));
    }
    print_lines(&lines, args.json.into(), ["codec", "operation", "f32 read", "× copy"], |line| {
        let (speed, times) = (bytes_per_s(line.bytes_per_s), ratio(line.relative_to_copy));
        [line.codec.clone(), line.operation.to_owned(), speed, times]
    })?;
    Ok(0)
}
