//! What the network and the codecs of this job can do, measured before the first step.

use std::collections::HashMap;
use std::time::Instant;

use thinwire_codec::{Choice, Codec, Input, Write};
use thinwire_collective::{Group, Options, all_gather, all_reduce};
use thinwire_schedule::{Algorithm, Shape, Speeds, cost};
use thinwire_wire::random::Key;
use thinwire_wire::{DType, World};

use crate::Error;
use crate::bucket::Bucket;
use crate::plan::{Assignment, Candidate, algorithm};

/// Every codec that `auto` knows.
const CODECS: [&str; 6] = ["none", "f16", "bf16", "int8", "int4", "int3"];

/// The codecs that `auto` chooses from, from the one that loses least: that is, nothing.
fn ways(dtype: DType) -> &'static [&'static str] {
    match dtype {
        DType::F32 => &["none", "bf16", "int8", "int4", "int3"],
        DType::F16 => &["f16", "int8", "int4", "int3"],
        DType::BF16 => &["bf16", "int8", "int4", "int3"],
    }
}

/// Elements on which codecs are measured: more than the inner caches hold.
const SAMPLE: usize = 1 << 18;

/// A link probe grows until it takes this long.
const PROBE_S: f64 = 0.06;

/// A link probe grows to this many elements at most.
const PROBE_ELEMENTS_MAX: usize = 4 << 20;

/// What was measured of one codec, in bytes of f32 per second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Throughput {
    encode: f64,
    decode: f64,
    merge: f64,
}

/// What links and codecs can do; the same on all ranks: that of the slowest.
#[derive(Debug)]
pub(crate) struct Calibration {
    latency_s: f64,
    bytes_per_s: f64,
    codecs: Vec<(Choice, Throughput)>,
    world: World,
    known: HashMap<(usize, bool, DType), Vec<Candidate>>,
}

impl Calibration {
    /// Measures with all ranks together.
    pub(crate) fn measure(group: &mut Group) -> Result<Calibration, Error> {
        let mut mine = Vec::new();
        let mut choices = Vec::new();
        for name in CODECS {
            let choice = Choice::parse(name).expect("a name from the list of codecs");
            if let Choice::Bytes(codec) = &choice {
                let Throughput { encode, decode, merge } = throughput(codec.as_ref());
                mine.extend([encode as f32, decode as f32, merge as f32]);
                choices.push(choice);
            }
        }
        let slowest = slowest_of(&all_gather(group, &mine)?, mine.len());
        let speeds = slowest.chunks_exact(3).map(|rates| Throughput {
            encode: rates[0].into(),
            decode: rates[1].into(),
            merge: rates[2].into(),
        });
        let codecs = choices.into_iter().zip(speeds).collect();
        let (latency_s, bytes_per_s) = probe(group)?;
        Ok(Calibration {
            latency_s,
            bytes_per_s,
            codecs,
            world: group.world(),
            known: HashMap::new(),
        })
    }

    /// The latency in seconds and the bandwidth in bytes per second of the slowest link.
    pub(crate) fn link(&self) -> (f64, f64) {
        (self.latency_s, self.bytes_per_s)
    }

    /// Every way for a bucket; raw ways only if it is exempt.
    pub(crate) fn candidates(
        &mut self,
        bucket: &Bucket,
        asked: Option<Algorithm>,
    ) -> Vec<Candidate> {
        let elements = bucket.elements;
        let kind = (elements, bucket.exempt, bucket.dtype);
        if let Some(known) = self.known.get(&kind) {
            return known.clone();
        }
        let mut candidates = Vec::new();
        let ways = ways(bucket.dtype);
        let usable = if bucket.exempt { &ways[..1] } else { ways };
        for (loss, name) in usable.iter().enumerate() {
            let place = CODECS.iter().position(|known| known == name);
            let (choice, throughput) = &self.codecs[place.expect("every way is a codec")];
            let Choice::Bytes(codec) = choice else { continue };
            let algorithm = algorithm(choice, asked, self.world, elements);
            for partitions in partitions(elements) {
                let assignment = Assignment {
                    codec: choice.to_string(),
                    algorithm: algorithm.to_string(),
                    partitions,
                };
                let shape = Shape { length: elements, block: codec.block(), partitions };
                let (cost, commit_s) = self.cost_of(codec.as_ref(), throughput, algorithm, &shape);
                candidates.push(Candidate { assignment, loss, cost, commit_s });
            }
        }
        self.known.insert(kind, candidates.clone());
        candidates
    }

    fn cost_of(
        &self,
        codec: &dyn Codec,
        throughput: &Throughput,
        algorithm: Algorithm,
        shape: &Shape,
    ) -> (thinwire_schedule::Cost, f64) {
        let deferred = codec.needs_feedback();
        let gathers = algorithm == Algorithm::Gather;
        let free = |rate: f64, free: bool| if free { f64::INFINITY } else { rate };
        let speeds = Speeds {
            latency_s: self.latency_s,
            bytes_per_s: self.bytes_per_s,
            encode_per_s: free(throughput.encode, codec.is_raw()),
            decode_per_s: free(throughput.decode, codec.is_raw() || deferred),
            merge_per_s: free(throughput.merge, gathers && deferred),
            task_overhead_s: 2e-6,
        };
        let cost =
            cost(algorithm, self.world.size(), shape, &|count| codec.encoded_len(count), &speeds);
        let bytes = (shape.length * 4) as f64;
        let merges = if gathers { (self.world.size() - 1) as f64 } else { 0.0 };
        let commit_s = bytes / throughput.decode + merges * bytes / throughput.merge;
        (cost, if deferred { commit_s } else { 0.0 })
    }
}

/// Into how many partitions a bucket may be cut.
fn partitions(elements: usize) -> impl Iterator<Item = usize> {
    [1, 2, 4, 8].into_iter().filter(move |&count| count == 1 || elements / count >= 1 << 14)
}

fn throughput(codec: &dyn Codec) -> Throughput {
    let key = Key { seed: 0, step: 0, tensor: 0 };
    let gradient: Vec<f32> = (0..SAMPLE as u64).map(|i| key.uniform(i) - 0.5).collect();
    let residual = vec![0.0; SAMPLE];
    let mut values = gradient.clone();
    let mut bytes = vec![0; codec.encoded_len(SAMPLE)];
    let encode = rate(|| {
        let input = match codec.needs_feedback() {
            true => Input::Feedback { values: &mut values, residual: &residual },
            false => Input::Plain(&values),
        };
        let _ = codec.encode(input, key, &mut bytes);
    });
    let mut decode = |write| {
        rate(|| codec.decode(&bytes, write, &mut values).expect("what was encoded decodes"))
    };
    Throughput { encode, decode: decode(Write::Set), merge: decode(Write::Add) }
}

/// Bytes of f32 per second: the best of four times.
fn rate(mut run: impl FnMut()) -> f64 {
    let time = |run: &mut dyn FnMut()| {
        let begin = Instant::now();
        run();
        begin.elapsed().as_secs_f64()
    };
    let best = (0..4).map(|_| time(&mut run)).fold(f64::INFINITY, f64::min);
    (SAMPLE * 4) as f64 / best.max(1e-9)
}

/// Latency and bandwidth that an all-reduce sees: the time of a tiny one, and what a larger one takes
/// beyond it. The size doubles until the time is long enough to trust, on all ranks alike.
fn probe(group: &mut Group) -> Result<(f64, f64), Error> {
    let size = group.world().size();
    if size == 1 {
        return Ok((0.0, f64::INFINITY));
    }
    let mut tiny = Vec::new();
    for _ in 0..7 {
        tiny.push(timed(group, size)?);
    }
    tiny.sort_by(f64::total_cmp);
    let round_s = tiny[3];
    let mut elements = 1 << 14;
    loop {
        let (first, second) = (timed(group, elements)?, timed(group, elements)?);
        let seconds = first.min(second);
        if seconds > PROBE_S || elements >= PROBE_ELEMENTS_MAX {
            let bytes = (elements * 8 * (size - 1)) as f64 / size as f64;
            return Ok((round_s / 2.0, bytes / (seconds - round_s).max(seconds / 10.0)));
        }
        elements *= 2;
    }
}

/// The time of one raw all-reduce: that of the rank that took longest.
fn timed(group: &mut Group, elements: usize) -> Result<f64, Error> {
    let mut values = vec![0.0; elements];
    let begin = Instant::now();
    all_reduce(group, &mut values, &Options::default())?;
    let mine = begin.elapsed().as_secs_f32();
    let longest = all_gather(group, &[mine])?.into_iter().fold(0.0, f32::max);
    Ok(longest.into())
}

fn slowest_of(gathered: &[f32], count: usize) -> Vec<f32> {
    let slowest = |index: usize| {
        gathered.iter().skip(index).step_by(count).copied().fold(f32::INFINITY, f32::min)
    };
    (0..count).map(slowest).collect()
}
