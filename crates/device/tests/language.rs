//! Kernels that are made of codecs as text give the bits of the interpreter.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod alike;
mod inputs;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thinwire_codec::language::{Text, compile};
use thinwire_codec::{Choice, Codec};
use thinwire_device::cuda::kernel::Source;
use thinwire_device::cuda::simulated::host;

/// Programs of every operator and type, with what the shipped codecs do not have.
const PROGRAMS: [(&str, &str); 9] = [
    (
        "arithmetic",
        "block 100
        encode x:
            a = min(abs(x), 3.0) + max(x, -2) - sqrt(abs(x)) / (1 + mean(x) * mean(x))
            b = floor(a) + ceil(x) * sign(x) + digits(x, 5) - digits_up(x, 11)
            emit f16 min(max(a, -9), 9)
            emit bf16 select(negative(x) and not (x > 0.5) or a == b, b, -a)
            emit u8 round(abs(x)) + 3
            emit i16 abs(round(x * 100)) * sign(x) - round(a)
            emit u1 x != 0
        decode:
            a = take f16
            b = take bf16
            c = take u8 * 0.5 + take i16
            yield select(take u1, a + b, 0) + select(c > 1e6, 1, 0)",
    ),
    (
        "shifts",
        "block 300
        encode x:
            scale = digits(max(abs(x)) / 100, 12)
            level = round(x / scale)
            emit f32 scale
            emit i8 level - shift(level, 2)
            emit f32 shift(shift(x, -3), floor(elements / 7))
            emit u1 count(x < 0) > 7
        decode:
            scale = take f32
            level = take i8
            other = take f32
            yield select(take u1, scan(level) * scale, shift(other, 1) / 2)",
    ),
    (
        "transforms",
        "block 4096
        encode x:
            y = transform(x)
            emit f32 sum(x)
            emit f16 max(min(y, 100), -100)
        decode:
            total = take f32
            yield transform(take f16) + total * 0",
    ),
    (
        "single",
        "block 1
        encode x:
            emit bf16 min(x, 1e30)
            emit u2 round(abs(x))
            emit i2 round(x)
        decode:
            y = take bf16
            yield y * 0.5 + (take u2 + take i2) * block_index / (block_index + 1)",
    ),
    (
        "picked",
        "block 192
        kept = ceil(sqrt(elements)) + 2
        encode x:
            some = largest(x, x > 0, kept)
            emit indices some
            emit f32 scan(x[some])
            emit f32 filter(x, x < 0, 5)
            emit u4 shift(round(abs(x[some])), 1)
        decode:
            some = take indices
            y = take f32
            z = take f32
            yield scatter(some, y - shift(y, 1) + take u4 + sum(z) * 0)",
    ),
    (
        "crowded",
        "block 1024
        encode x:
            above = largest(x, abs(x) >= rank(abs(x), 40), 33)
            emit indices above
            emit bf16 min(max(x[above], -1e30), 1e30)
            emit f32 min(x)
            emit f32 rank(x, elements) - max(x)
        decode:
            above = take indices
            y = take bf16
            low = take f32
            yield scatter(above, y + (low - low) + (take f32) * 0)",
    ),
    (
        "random",
        "block 250
        encode x:
            scale = digits_up(max(abs(x)) / 7, 17)
            emit f32 scale
            emit i4 round_random(x * (1 / scale))
            emit u8 round_random(random() * 30)
        decode:
            scale = take f32
            yield take i4 * scale + take u8 * 0",
    ),
    (
        "coins",
        "block 640
        encode x:
            scale = max(abs(x))
            emit f32 scale
            emit i2 round_random(x * (1 / scale))
            emit u1 random() < 0.25
        decode:
            scale = take f32
            y = take i2 * scale
            yield select(take u1, y, y)",
    ),
    (
        "halves",
        "block 256
        half = max(1, floor(elements / 2))
        encode x:
            first = where(block_index * 0 <= abs(x), half)
            emit indices first
            emit f32 max(x[first])
        decode:
            first = take indices
            yield scatter(first, take f32)",
    ),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/codecs")
}

fn shipped() -> Vec<Arc<dyn Codec>> {
    let mut files: Vec<_> =
        folder().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|path| alike::codec(path.to_str().unwrap())).collect()
}

fn programs() -> Vec<Arc<dyn Codec>> {
    let compiled = PROGRAMS.iter().map(|(name, rest)| {
        let (path, source) = (format!("{name}.codec"), format!("codec {name}\n{rest}"));
        match compile(&Text { path: &path, source: &source, parameters: &[] }) {
            Ok(Choice::Bytes(codec)) => codec,
            Ok(_) => unreachable!("a text is bytes"),
            Err(error) => panic!("{error}"),
        }
    });
    compiled.collect()
}

/// Compiles all texts as one file, since a compiler takes longer to start than to go on.
fn with_kernels() -> Vec<Arc<dyn Codec>> {
    let all = shipped().into_iter().chain(programs());
    let all: Vec<_> = all.filter(|codec| matches!(codec.cuda(), Some(Ok(_)))).collect();
    let texts = all.iter().filter_map(|codec| codec.cuda()?.ok()).map(|cuda| cuda.text);
    let text = texts.collect::<Vec<_>>().join("\n");
    alike::TEXTS.get_or_init(|| Source { name: "texts.cu", text: text.leak() });
    all
}

#[test]
fn texts_equal_the_interpreter() {
    if !host::is_there() {
        return;
    }
    for codec in with_kernels() {
        let all = (0..=300).chain([511, 513, 1025, 4095, 4097, 6000]);
        alike::check(&*codec, all);
    }
}

#[test]
#[ignore = "takes minutes"]
fn texts_equal_the_interpreter_at_great_length() {
    if host::is_there() {
        with_kernels().iter().for_each(|codec| alike::check(&**codec, [40_001, 100_003]));
    }
}

#[test]
fn every_shipped_codec_with_blocks_has_kernels() {
    let reasons = shipped().into_iter().filter_map(|codec| {
        let reason = codec.cuda().expect("a text").err()?.to_owned();
        Some((codec.to_string(), reason))
    });
    let reasons: Vec<_> = reasons.collect();
    let names: Vec<_> = reasons.iter().map(|(name, _)| name.split('#').next().unwrap()).collect();
    assert_eq!(names, ["dgc", "graddrop"]);
    assert!(reasons.iter().all(|(_, why)| why.starts_with("a codec without a line 'block'")));
    assert!(shipped().len() == 13);
}
