//! Fuzzer of one target on stable Rust, without coverage: seeds are changed at random.
//!
//!     cargo run -p thinwire-outside --example mutate -- onnx 60
//!
//! The file named at the start holds the input of the current run, so that a crash can be repeated.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

use thinwire_outside::{TARGETS, Target, protobuf};
use thinwire_wire::random::Key;

const BYTES_MAX: usize = 1 << 14;
/// Words at the edges of what readers of numbers and names accept.
const WORDS: [&str; 20] = [
    "0",
    "-1",
    "1",
    "nan",
    "-inf",
    "1e308",
    "1e-320",
    "18446744073709551615",
    "9223372036854775807",
    "4294967296",
    "null",
    "[",
    "{",
    "]",
    "}",
    ",",
    "\"",
    "\n",
    "=",
    ":",
];

/// Sequence of random numbers.
struct Dice {
    key: Key,
    at: u64,
}

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.at += 1;
        self.key.below(self.at, end.clamp(1, u32::MAX as usize) as u32) as usize
    }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, seconds] = &arguments[..] else { panic!("usage: mutate TARGET SECONDS") };
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target's name");
    let seconds: u64 = seconds.parse().expect("a number of seconds");
    let seed = std::process::id().into();
    let dice = Dice { key: Key { seed, step: 0, tensor: 0 }, at: 0 };
    run(target, dice, Instant::now() + Duration::from_secs(seconds));
}

fn run(target: &Target, mut dice: Dice, end: Instant) {
    let seeds = seeds(target.name);
    let file = env::temp_dir().join(format!("{}-{}", target.name, std::process::id()));
    println!("{}: bytes of a crash are in {}", target.name, file.display());
    let (begin, mut runs, mut slowest) = (Instant::now(), 0_u64, Duration::ZERO);
    while Instant::now() < end {
        let input = changed(&seeds, target.name == "onnx", &mut dice);
        fs::write(&file, &input).expect("room for some kilobytes");
        let start = Instant::now();
        (target.run)(&input);
        slowest = slowest.max(start.elapsed());
        runs += 1;
    }
    let rate = runs as f64 / begin.elapsed().as_secs_f64();
    println!("{}: {runs} runs, {rate:.0} a second, slowest {slowest:.1?}", target.name);
    let _ = fs::remove_file(file);
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut paths: Vec<PathBuf> = fs::read_dir(fuzz)
        .expect("a folder of seeds")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a seed can be read")).collect()
}

/// Returns a seed with some changes.
fn changed(seeds: &[Vec<u8>], is_protobuf: bool, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = seeds[dice.below(seeds.len())].clone();
    for _ in 0..1 << dice.below(5) {
        if is_protobuf && dice.below(4) > 0 {
            let choice = std::array::from_fn(|_| dice.below(256) as u8);
            bytes = protobuf::mutate(&bytes, choice);
        } else {
            change(&mut bytes, &seeds[dice.below(seeds.len())], dice);
        }
        bytes.truncate(BYTES_MAX);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = dice.below(bytes.len() + 1);
    let end = bytes.len().min(at + dice.below(32));
    let put =
        |bytes: &mut Vec<u8>, piece: &[u8]| drop(bytes.splice(at..end, piece.iter().copied()));
    match dice.below(8) {
        0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
        1 if at < bytes.len() => bytes[at] = dice.below(256) as u8,
        2 => put(bytes, &[]),
        3 => put(bytes, WORDS[dice.below(WORDS.len())].as_bytes()),
        4 => {
            let from = dice.below(other.len());
            let to = other.len().min(from + dice.below(64));
            put(bytes, &other[from..to]);
        }
        5 => {
            let piece = bytes[at..end].repeat(2 + dice.below(4));
            put(bytes, &piece);
        }
        _ => number(bytes, at, dice),
    }
}

/// Replaces the next number of a text by a word.
fn number(bytes: &mut Vec<u8>, at: usize, dice: &mut Dice) {
    let Some(from) = bytes[at..].iter().position(u8::is_ascii_digit).map(|from| at + from) else {
        return;
    };
    let length = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let word = WORDS[dice.below(10)].bytes();
    bytes.splice(from..from + length, word);
}
