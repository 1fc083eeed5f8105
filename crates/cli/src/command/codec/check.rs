//! `thinwire codec check`: checks the laws of a codec, and measures its bytes and its error.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use serde::Serialize;
use thinwire_codec::{Bound, Choice, Codec, Exchange, Kind, contraction, laws, speed};
use thinwire_device::cuda::trial::{self, Place};
use thinwire_report::Table;
use thinwire_report::figures::bytes_per_s;

use crate::failure::hinted;
use crate::output::{print, print_json, say, short};

/// Check a codec against every law, and show its bytes and its error.
#[derive(clap::Args)]
pub struct Args {
    /// File, optionally with parameters (mine.codec:tau=0.02), or the name of any codec
    #[arg(value_name = "FILE")]
    codec: String,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Number of elements with which losses and speeds are measured.
const ELEMENTS: usize = 1 << 20;

/// Number of measurements of a speed.
const ROUNDS: usize = 9;

#[derive(Serialize)]
struct Report {
    codec: String,
    /// Bytes of this number of elements, encoded and as f32.
    elements: usize,
    bytes: usize,
    /// The part of these bytes that only pads the planes of fields of 1, 2 and 4 bits.
    padding: usize,
    ratio: f64,
    /// The part of the squared length of normal values that one encoding transmits.
    contraction: f64,
    claim: String,
    fit: &'static str,
    feedback: bool,
    encode_bytes_per_s: f64,
    decode_bytes_per_s: f64,
    copy_bytes_per_s: f64,
    /// The most similar built-in codec, or `None` if the codec itself is built in.
    nearest: Option<Nearest>,
    /// A warning, if training with the codec may converge more slowly.
    warning: Option<String>,
    laws: Vec<Law>,
    /// State of the kernels that are made from the codec's text for a device; `None` if the codec is not
    /// written as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_source: Option<DeviceSource>,
}

#[derive(Serialize)]
struct DeviceSource {
    status: String,
    is_broken: bool,
}

#[derive(Serialize)]
struct Nearest {
    codec: String,
    encode_bytes_per_s: f64,
    decode_bytes_per_s: f64,
}

#[derive(Serialize)]
struct Law {
    law: &'static str,
    broken: Option<String>,
}

/// Checks a codec, and returns 1 if it is refused or breaks a law.
///
/// # Errors
/// If there is no such codec, or it has no encoding of its own, or standard output is closed.
pub fn run(args: &Args) -> Result<u8> {
    if args.codec == "auto" || args.codec.starts_with("auto:") {
        let error =
            anyhow!("{} is not a codec: it chooses a codec for every bucket", short(&args.codec));
        return Err(hinted(error, "check the codecs that it chooses from, one by one: int8, int4"));
    }
    let Some(choice) = parsed(&args.codec)? else { return Ok(1) };
    let codec = bytes(&choice)?;
    let report = report(&choice, codec);
    let is_broken = report.device_source.as_ref().is_some_and(|source| source.is_broken);
    let sound = !is_broken && report.laws.iter().all(|law| law.broken.is_none());
    if args.json {
        print_json(&report)?;
    } else {
        let broken = report.laws.iter().filter_map(|law| Some((law.law, law.broken.as_ref()?)));
        let broken = broken.map(|(law, why)| format!("broken: {law}: {}\n", first_line(why)));
        print(format!("{}{}", table(&report), broken.collect::<String>()))?;
    }
    report.warning.iter().for_each(|warning| say(format!("warning: {warning}")));
    Ok(u8::from(!sound))
}

/// Returns the codec with a name, or `None` after printing the reason if its text is refused.
pub(super) fn parsed(name: &str) -> Result<Option<Choice>> {
    match Choice::parse(name) {
        Ok(choice) => Ok(Some(choice)),
        Err(error) if error.kind() == Kind::Program => {
            say(format!("refused: {error}"));
            error.excerpt().into_iter().flat_map(str::lines).for_each(say);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the codec, unless it does not encode the values of one rank.
pub(super) fn bytes(choice: &Choice) -> Result<&Arc<dyn Codec>> {
    let what = match choice {
        Choice::Bytes(codec) => return Ok(codec),
        Choice::LowRank(_) => "sends sums over ranks of two thin factors",
        Choice::Integers(_) => "sends sums of integers under a scale that past averages give",
    };
    let error = anyhow!("{choice} {what}: the codec has no encoding that could be checked alone");
    let hint =
        format!("thinwire codec bench {choice} measures it; thinwire train --codec {choice}");
    Err(hinted(error, format!("{hint} uses it")))
}

fn report(choice: &Choice, codec: &Arc<dyn Codec>) -> Report {
    let bytes = codec.expected_len(ELEMENTS);
    let [encode_bytes_per_s, decode_bytes_per_s, copy_bytes_per_s] = speeds(choice);
    Report {
        codec: codec.to_string(),
        elements: ELEMENTS,
        bytes,
        padding: codec.padding(ELEMENTS),
        ratio: 4.0 * ELEMENTS as f64 / bytes as f64,
        contraction: contraction(codec.as_ref(), ELEMENTS),
        claim: claim(codec.bound(ELEMENTS)),
        fit: fit(codec.exchange()),
        feedback: codec.needs_feedback(),
        encode_bytes_per_s,
        decode_bytes_per_s,
        copy_bytes_per_s,
        nearest: nearest(codec.as_ref()).map(|nearest| {
            let [encode_bytes_per_s, decode_bytes_per_s, _] = speeds(&nearest);
            Nearest { codec: nearest.to_string(), encode_bytes_per_s, decode_bytes_per_s }
        }),
        warning: choice.warning(),
        laws: checked(codec.as_ref()),
        device_source: device_source(codec),
    }
}

/// Tries the kernels made of a text. Returns `None` for a codec that is not written as text.
fn device_source(codec: &Arc<dyn Codec>) -> Option<DeviceSource> {
    let sound = |status: &str| DeviceSource { status: status.to_owned(), is_broken: false };
    Some(match codec.cuda()? {
        Err(why) => sound(&format!("none, runs on the host: {why}")),
        Ok(_) => match trial::attempt(codec) {
            Ok(Some(Place::Device)) => sound("checked on a device"),
            Ok(Some(Place::Host)) => sound("checked in the host build"),
            Ok(None) => sound("not checked: no C++ compiler and no device"),
            Err(why) => {
                DeviceSource { status: format!("broken: {}", first_line(&why)), is_broken: true }
            }
        },
    })
}

/// Returns every law, with the way in which the codec breaks it, if it does.
fn checked(codec: &dyn Codec) -> Vec<Law> {
    let broken = laws::broken(codec);
    let why = |law| broken.iter().find(|found| found.law == law).map(|found| found.why.clone());
    laws::ALL.iter().map(|(law, _)| Law { law, broken: why(*law) }).collect()
}

/// Returns the first line of a panic's message. Later lines are the values of a failed comparison.
fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

/// Returns the speeds of encoding with a residual, of decoding and of a copy, in bytes of f32 per second.
fn speeds(choice: &Choice) -> [f64; 3] {
    let rows = speed::measure(choice, ELEMENTS, ROUNDS);
    ["encode with residual", "decode", "copy"].map(|name| {
        rows.iter().find(|row| row.operation == name).map_or(f64::NAN, |row| row.bytes_per_s)
    })
}

/// Returns the most similar built-in codec, or `None` if the codec itself is built in. Similarity is by
/// feedback, exchange and claims, then by the length of encodings.
fn nearest(codec: &dyn Codec) -> Option<Choice> {
    let unlike = |other: &dyn Codec| {
        let claims = |codec: &dyn Codec| std::mem::discriminant(&codec.bound(ELEMENTS));
        let differences = [
            other.needs_feedback() != codec.needs_feedback(),
            other.exchange() != codec.exchange(),
            claims(other) != claims(codec),
        ];
        let lengths = [other, codec].map(|codec| codec.expected_len(ELEMENTS) as f64);
        let ratio = (lengths[0] / lengths[1]).ln().abs();
        // A claim that is not made weighs as much as a fifth of the length.
        ratio + 0.2 * differences.into_iter().filter(|differs| *differs).count() as f64
    };
    let all = thinwire_codec::all();
    if all.iter().any(|choice| choice.to_string() == codec.to_string()) {
        return None;
    }
    let distance = |choice: &Choice| match choice {
        Choice::Bytes(other) => unlike(other.as_ref()),
        Choice::LowRank(_) | Choice::Integers(_) => f64::INFINITY,
    };
    all.into_iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

fn claim(bound: Bound) -> String {
    match bound {
        Bound::Contraction(least) => format!("contraction {least:.4}"),
        Bound::Mean(least) => format!("contraction {least:.4} in the mean"),
        Bound::Variance(most) => format!("unbiased, variance {most:.4}"),
        Bound::None => "none".to_owned(),
    }
}

fn fit(exchange: Exchange) -> &'static str {
    match exchange {
        Exchange::Summable => "every all-reduce",
        Exchange::TwoShot => "two-shot, gather",
        Exchange::Gather => "gather",
    }
}

fn length(report: &Report) -> String {
    let Report { bytes, elements, padding, .. } = report;
    let filled = match padding {
        0 => String::new(),
        _ => format!(", {padding} of them only fill up: see codec-language.md on blocks of 128"),
    };
    format!("{bytes} bytes for {elements} elements{filled}")
}

/// Returns the text of a speed, with the speeds of the nearest built-in codec and of a copy.
fn beside(report: &Report, own: f64, of: fn(&Nearest) -> f64) -> String {
    let nearest = report.nearest.iter();
    let nearest =
        nearest.map(|nearest| format!("{} {}, ", nearest.codec, bytes_per_s(of(nearest))));
    let [own, copy] = [own, report.copy_bytes_per_s].map(bytes_per_s);
    format!("{own} ({}a copy {copy})", nearest.collect::<String>())
}

fn table(report: &Report) -> Table {
    let of_encode = |nearest: &Nearest| nearest.encode_bytes_per_s;
    let of_decode = |nearest: &Nearest| nearest.decode_bytes_per_s;
    let mut table = Table::new(["codec", report.codec.as_str()]);
    let residual = if report.feedback { "kept and sent later" } else { "lost" };
    for (name, value) in [
        ("length", length(report)),
        ("ratio", format!("{:.2}", report.ratio)),
        ("contraction, measured", format!("{:.4}", report.contraction)),
        ("claim", report.claim.clone()),
        ("encode with residual", beside(report, report.encode_bytes_per_s, of_encode)),
        ("decode", beside(report, report.decode_bytes_per_s, of_decode)),
        ("fit", report.fit.to_owned()),
        ("residual", residual.to_owned()),
    ] {
        table.row([name.to_owned(), value]);
    }
    if let Some(source) = &report.device_source {
        table.row(["device source", source.status.as_str()]);
    }
    for law in &report.laws {
        table.row([law.law, if law.broken.is_some() { "broken" } else { "holds" }]);
    }
    table
}
