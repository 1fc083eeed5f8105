//! The speed of codecs, measured before the first step.
//!
//! Every codec is timed on few and on many elements, since a small bucket costs more per byte. If there
//! is a bucket larger than caches, codecs are also timed on that size, since pieces that stay in a
//! cache are cheaper. All figures are those of the slowest rank, and the same on all ranks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Instant;

use thinwire_codec::{Bound, Choice, Codec, Distortion, Write};
use thinwire_collective::{Buffer, Error, Group, all_gather};
use thinwire_device::{Canonicalise, Decoding, Device, Encoding, HostBytes, Work, submit};
use thinwire_wire::DType;
use thinwire_wire::random::Key;

use crate::Policy;
use crate::bucket::layout::Bucket;
use crate::buffer::Tensor;
use crate::measure::link::{LinkSpeed, probe};

/// The dtypes of gradients, in which they travel where they are not compressed.
const RAW: [&str; 3] = ["none", "f16", "bf16"];

/// Elements on which codecs are measured: few, more than the inner caches hold, and more than any
/// cache does.
const SIZES: [usize; 3] = [1 << 12, 1 << 18, 1 << 22];

/// Seconds for each of [`SIZES`].
pub(crate) type Times = [f64; 3];

/// The speed and the error of one codec.
#[derive(Clone, Debug)]
pub(crate) struct CodecSpeed {
    pub(crate) choice: Choice,
    pub(crate) encode: Times,
    pub(crate) decode: Times,
    pub(crate) merge: Times,
    /// The weighted error of one encoding of normal values.
    pub(crate) error: f64,
}

/// The measurements of links and codecs.
#[derive(Clone, Debug)]
pub(crate) struct Calibration {
    pub(crate) link: LinkSpeed,
    /// Codecs that are raw for some dtype, then the others.
    pub(crate) codecs: Vec<CodecSpeed>,
    /// Whether f32 may travel as bf16.
    halves: bool,
}

impl Calibration {
    /// Measures with all ranks together: the codecs of `among`, or all that `auto` knows; on pieces
    /// of at most `largest` elements, in the memory of `device` or in host memory.
    pub(crate) fn measure(
        group: &mut Group,
        among: &[Choice],
        largest: usize,
        device: Option<&dyn Device>,
    ) -> Result<Calibration, Error> {
        let among = candidates(among);
        let choices = with_raw(&among);
        let mine = remembered(&choices, largest, device);
        let slowest = slowest_of(&all_gather(group, &mine)?, mine.len());
        let speed = |(choice, times): (Choice, &[f64])| CodecSpeed {
            choice,
            encode: [times[0], times[3], times[6]],
            decode: [times[1], times[4], times[7]],
            merge: [times[2], times[5], times[8]],
            error: times[9],
        };
        let codecs = choices.into_iter().zip(slowest.chunks_exact(FIGURES)).map(speed).collect();
        let halves = among.iter().any(|choice| choice.to_string() == "bf16");
        Ok(Calibration { link: probe(group)?, codecs, halves })
    }

    /// Returns made-up figures, as of a core of 2 GB/s, for every codec of `names` and the raw ones.
    #[cfg(test)]
    pub(crate) fn made_up(link: LinkSpeed, names: &[&str]) -> Calibration {
        let times = SIZES.map(|elements| (elements * 4) as f64 / 2e9);
        let speed = |name: &&str| CodecSpeed {
            choice: Choice::parse(name).unwrap(),
            encode: times,
            decode: times,
            merge: times,
            error: 1e-4,
        };
        let codecs = RAW.iter().chain(names).map(speed).collect();
        Calibration { link, codecs, halves: false }
    }

    /// Tries each codec on some values: returns the weighted errors of all codecs, then the lengths of
    /// their encodings divided by the expected ones. Zeros are no evidence about later gradients, so
    /// for them every codec counts by its bound.
    pub(crate) fn try_on(&self, values: &[f32]) -> Vec<f32> {
        if values.iter().all(|x| *x == 0.0) {
            let most = |speed: &CodecSpeed| speed.error_max(values.len()) as f32;
            let errors = self.codecs.iter().map(most);
            return errors.chain(self.codecs.iter().map(|_| 1.0)).collect();
        }
        let distortion = |speed: &CodecSpeed| {
            let found = Distortion::of(speed.codec(), values, KEY);
            (
                found.weighted_error() as f32,
                found.bytes as f32 / speed.codec().expected_len(values.len()).max(1) as f32,
            )
        };
        let (mut errors, mut ratios): (Vec<_>, Vec<_>) = self.codecs.iter().map(distortion).unzip();
        errors.append(&mut ratios);
        errors
    }

    /// Returns the codecs that a bucket may travel by: first the one that loses nothing of its gradients.
    pub(crate) fn codecs_of(&self, bucket: &Bucket) -> Vec<usize> {
        let dtype = bucket.dtype;
        let raw = thinwire_codec::raw_of(dtype).to_string();
        let own = self.codecs.iter().position(|speed| speed.choice.to_string() == raw);
        let mut codecs = vec![own.expect("every dtype travels as it is")];
        if !bucket.exempt {
            // What is in half precision gains nothing from another one.
            let others = self.codecs.iter().enumerate().filter(|(_, speed)| {
                !is_raw(&speed.choice)
                    || dtype == DType::F32 && self.halves && speed.choice.to_string() == "bf16"
            });
            codecs.extend(others.map(|(index, _)| index));
        }
        codecs
    }
}

/// Returns whether gradients of some dtype travel by this codec when they are not compressed.
fn is_raw(choice: &Choice) -> bool {
    matches!(choice, Choice::Bytes(codec) if codec.dtype().is_some())
}

impl CodecSpeed {
    /// Returns an upper bound on the error of one encoding of any values, at least that of normal values; 1 if
    /// no bound is known.
    pub(crate) fn error_max(&self, elements: usize) -> f64 {
        let codec = self.codec();
        let most = match codec.bound(elements) {
            _ if codec.dtype().is_some() => self.error,
            Bound::Contraction(least) => 1.0 - least,
            Bound::Variance(most) => most,
            Bound::Mean(_) | Bound::None => 1.0,
        };
        most.max(self.error)
    }

    /// Returns whether the codec loses nothing of any gradients of a dtype.
    pub(crate) fn is_exact(&self, dtype: DType) -> bool {
        self.error == 0.0 || dtype == DType::BF16 && self.choice.to_string() == "lossless:bf16"
    }

    /// Returns the codec.
    pub(crate) fn codec(&self) -> &dyn Codec {
        match &self.choice {
            Choice::Bytes(codec) => codec.as_ref(),
            _ => unreachable!("every codec of the list is one of bytes"),
        }
    }
}

/// Returns the bytes of f32 per second at `elements` at a time, by linear interpolation of the times.
pub(crate) fn rate_at(times: Times, elements: usize) -> f64 {
    let low = usize::from(elements > SIZES[1]);
    let slope = (times[low + 1] - times[low]) / (SIZES[low + 1] - SIZES[low]) as f64;
    let seconds = times[low] + slope * (elements as f64 - SIZES[low] as f64);
    // Below the smallest size the line may fall under nothing.
    let least = times[0] * (elements as f64 / SIZES[0] as f64).min(1.0) / 2.0;
    (elements * 4) as f64 / seconds.max(least).max(1e-9)
}

/// Figures of a codec: seconds for encoding, decoding and merging for each of [`SIZES`], and the error.
const FIGURES: usize = 3 * SIZES.len() + 1;

/// Figures of codecs that this process has measured, by their names, whether large pieces count, and the
/// device.
type Memory = BTreeMap<(Vec<String>, bool, Option<usize>), Vec<f32>>;

static MEMORY: Mutex<Memory> = Mutex::new(Memory::new());

/// Measures the speed of the codecs of `auto` in this process, on pieces of at most `largest` elements,
/// in the memory of `device` or in host memory, unless it has done so before. A rank that will join
/// others calls this first, so that they do not wait for it.
pub fn measure_codecs(policy: &Policy, largest: usize, device: Option<&dyn Device>) {
    if let Policy::Auto(among) = policy {
        remembered(&with_raw(&candidates(among)), largest, device);
    }
}

fn parse(name: &str) -> Choice {
    Choice::parse(name).expect("a name from the list")
}

/// Returns the codecs that `auto` may choose: these, or all that it knows if there are none.
fn candidates(among: &[Choice]) -> Vec<Choice> {
    if among.is_empty() { Policy::AUTO.map(parse).to_vec() } else { among.to_vec() }
}

/// Returns the raw codecs, then the others of these.
fn with_raw(among: &[Choice]) -> Vec<Choice> {
    let others = among.iter().filter(|choice| !is_raw(choice)).cloned();
    RAW.map(parse).into_iter().chain(others).collect()
}

/// Returns the figures of all codecs, which are measured once in a process: ranks that continue in another
/// group do not measure again.
fn remembered(choices: &[Choice], largest: usize, device: Option<&dyn Device>) -> Vec<f32> {
    let mut memory = MEMORY.lock().expect("no holder panics");
    let has_large = largest >= SIZES[2];
    let names = choices.iter().map(Choice::to_string).collect();
    let key = (names, has_large, device.map(Device::id));
    let measure = || {
        let repeats = if has_large { SIZES[2] / SIZES[1] } else { 1 };
        of_choices(choices, &normal(SIZES[1]).repeat(repeats), device)
    };
    memory.entry(key).or_insert_with(measure).clone()
}

/// Measures the figures of all codecs, which have bytes.
fn of_choices(choices: &[Choice], normal: &[f32], device: Option<&dyn Device>) -> Vec<f32> {
    let mut figures: Vec<[f32; FIGURES]> = Vec::new();
    for choice in choices {
        // Never so, since policies refuse it; the zeros would keep the places of the others.
        let Choice::Bytes(codec) = choice else {
            figures.push([0.0; FIGURES]);
            continue;
        };
        // Entropy coding takes as long with one step as with another.
        let alike = choices
            .iter()
            .zip(&figures)
            .find(|(other, _)| codec.is_variable() && family(other) == family(choice));
        let measure = || seconds_of(codec, normal, device);
        let mut own = alike.map_or_else(measure, |(_, own)| *own);
        // The error, though, differs with that step. Values beyond these repeat them.
        own[FIGURES - 1] =
            Distortion::of(codec.as_ref(), &normal[..SIZES[1]], KEY).weighted_error() as f32;
        figures.push(own);
    }
    figures.concat()
}

/// Returns the name of a codec without its parameter.
fn family(choice: &Choice) -> Option<String> {
    choice.to_string().split(':').next().map(str::to_owned)
}

/// Measures the seconds of [`times`] for each size. A size for which there are no values takes as long
/// per element as the one before.
fn seconds_of(
    codec: &Arc<dyn Codec>,
    normal: &[f32],
    device: Option<&dyn Device>,
) -> [f32; FIGURES] {
    let times = |elements: usize, repetitions: usize| {
        times(codec, &normal[..elements], repetitions, device)
    };
    let [few, many] = [SIZES[0], SIZES[1]].map(|elements| times(elements, 4));
    let most = match normal.len() >= SIZES[2] {
        true => times(SIZES[2], 2),
        false => many.map(|seconds| seconds * (SIZES[2] / SIZES[1]) as f64),
    };
    let mut figures = [0.0; FIGURES];
    let seconds = [few, many, most].into_iter().flatten();
    figures.iter_mut().zip(seconds).for_each(|(figure, seconds)| *figure = seconds as f32);
    figures
}

/// Returns the seconds for encoding, decoding and merging: the best of some `repetitions`. For a codec
/// that the device does not support, they contain the copy to host memory and the copy back.
fn times(
    codec: &Arc<dyn Codec>,
    gradient: &[f32],
    repetitions: usize,
    device: Option<&dyn Device>,
) -> [f64; 3] {
    let knows = device.filter(|device| device.encodes_with(codec.as_ref()));
    let done = |work: Work<'_>| submit(work, Waker::noop()).into_pending().wait().bytes;
    let tensor = |values: &[f32]| match knows {
        None => Tensor::Owned(values.to_vec()),
        Some(device) => Tensor::Device(device.upload(values)),
    };
    let (mut values, residual) = (tensor(gradient), tensor(&vec![0.0; gradient.len()]));
    let all = || 0..gradient.len();
    let length = codec.encoded_len(gradient.len());
    let mut bytes = knows.map_or_else(|| HostBytes::new(length), |device| device.host(length));
    let mut encode = best(repetitions, || {
        let residual = codec.needs_feedback().then(|| residual.source(all()));
        let (values, to) = (values.operand(all()), std::mem::take(&mut bytes));
        bytes = done(Work::Encode(Encoding { codec, values, residual, key: KEY, to }));
    });
    let mut decode = |write| {
        best(repetitions, || {
            let (from, to) = (std::mem::take(&mut bytes), values.operand(all()));
            let canonicalise = Canonicalise::default();
            bytes = done(Work::Decode(Decoding { codec, from, to, write, canonicalise }));
        })
    };
    let [mut set, add] = [decode(Write::Set), decode(Write::Add)];
    if let (Some(device), None) = (device, knows) {
        let (region, mut host) = (device.upload(gradient), gradient.to_vec());
        // Between the two copies, sums are merged in host memory.
        encode += best(repetitions, || device.read(&region, &mut host));
        set += best(repetitions, || device.write(&host, &region));
    }
    [encode, set, add]
}

const KEY: Key = Key { seed: 0, step: 0, tensor: 0 };

fn normal(elements: usize) -> Vec<f32> {
    (0..elements as u64).map(|i| KEY.normal(i)).collect()
}

fn best(repetitions: usize, mut run: impl FnMut()) -> f64 {
    let time = |run: &mut dyn FnMut()| {
        let begin = Instant::now();
        run();
        begin.elapsed().as_secs_f64()
    };
    (0..repetitions).map(|_| time(&mut run)).fold(f64::INFINITY, f64::min).max(1e-9)
}

fn slowest_of(gathered: &[f32], count: usize) -> Vec<f64> {
    let slowest =
        |index: usize| gathered.iter().skip(index).step_by(count).copied().fold(0.0, f32::max);
    (0..count).map(|index| slowest(index).into()).collect()
}

/// Elements of all samples of a rank together, and of one bucket's at least and at most.
const ALL_MAX: usize = 1 << 19;
const BUCKET_MIN: usize = 1 << 12;
const BUCKET_MAX: usize = 1 << 16;

/// A sample is made of pieces of this many neighbouring elements, so that blocks of codecs stay whole.
const PIECE: usize = 1 << 12;

/// Returns a sample of gradients, on which codec errors are measured: pieces of `values`, evenly spread, where
/// `buckets` buckets are sampled.
///
/// The codec error of one encoding is measured on a sample of this rank's gradients, before any
/// residual is added. Error feedback corrects it in later steps; without feedback it is lost.
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
