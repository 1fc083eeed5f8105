//! Candidates: the ways in which a bucket may travel, each with its price and its codec error.
//!
//! A candidate is a codec, an algorithm that can carry it, and a number of partitions. If measured
//! links show units of ranks ([`crate::measure::units`]), each algorithm is also tried between the
//! units; if links differ in another way, trees are packed for them. Prices come from
//! `thinwire_schedule::cost`, which simulates the whole collective. They are computed once per link, at
//! powers of two of elements, and interpolated linearly between them. Numbers of partitions are
//! compared only for the two fastest algorithms of a codec, and large worlds are extrapolated from
//! small ones, so that planning stays cheap.

use std::collections::HashMap;

use thinwire_codec::{Choice, Codec, Exchange};
use thinwire_collective::operations;
use thinwire_schedule::{
    Algorithm, Rates, Shape, Speeds, Summation, Trees, cost_of_trees, estimate,
};
use thinwire_wire::World;

use crate::auto::plan::Assignment;
use crate::auto::timeline::Price;
use crate::bucket::layout::Bucket;
use crate::measure::codecs::{Calibration, CodecSpeed, rate_at};
use crate::measure::link::LinkSpeed;
use crate::measure::units;
use crate::options::Overrides;

/// Trees are tried if they take less than this part of the time of equal shares, and deeper trees if
/// they take less than this part of the time of shallow ones.
const TREES_LESS: f64 = 0.9;

/// Time that every task of a schedule takes in addition to encoding and sending, in seconds.
const TASK_OVERHEAD_S: f64 = 2e-6;

/// Number of elements up to which prices are exact instead of interpolated.
const EXACT_MAX: usize = 1 << 12;

/// Most ranks of a gather of large tensors, and the number of elements from which a tensor is large.
const GATHER_WORLD_MAX: usize = 8;
const GATHER_ELEMENTS_MAX: usize = 1 << 14;

/// Weight of the error of a gather, which encodes every gradient once, where other algorithms encode sums
/// again. Estimated from the losses of trainings (docs/numerics.md, "What predicts the loss").
const GATHER_ERROR: f64 = 1.0 / 3.0;

/// A codec, an algorithm and a number of partitions for one bucket.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) assignment: Assignment,
    /// The codec's place in the list of all; the first candidate's loses nothing.
    pub(crate) codec: usize,
    /// The error that counts against the budget: the weighted error of one encoding, a third of it for a
    /// [gather](GATHER_ERROR).
    pub(crate) error: f64,
    /// The elements of the bucket, which weight its error.
    pub(crate) elements: usize,
    pub(crate) price: Price,
}

/// The place of a codec in the list of all, an algorithm and a number of partitions.
type Choices = (usize, Summation, usize);

/// The length of encodings over the expected one, in 32nds: few values, so that prices are computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Length(u32);

impl Length {
    const PARTS: f32 = 32.0;
    /// As expected.
    const EXPECTED: Length = Length(Length::PARTS as u32);

    fn of(ratio: f32) -> Length {
        Length((ratio * Length::PARTS).round().max(1.0) as u32)
    }

    fn of_expected(self, bytes: usize) -> usize {
        if self == Length::EXPECTED {
            return bytes;
        }
        (bytes as f64 * f64::from(self.0) / f64::from(Length::PARTS)).ceil() as usize
    }
}

/// The candidates of this job under the current link.
#[derive(Debug)]
pub(crate) struct Candidates {
    calibration: Calibration,
    world: World,
    overrides: Overrides,
    /// The rates of the link's pairs, where all were measured, and the trees that are worth comparing for them.
    rates: Option<Rates>,
    trees: Vec<Trees>,
    known: HashMap<(Choices, usize, Length), Price>,
}

impl Candidates {
    pub(crate) fn new(calibration: Calibration, world: World, overrides: Overrides) -> Candidates {
        let rates = calibration.link.rates(world.size());
        let trees = trees(&calibration.link, rates.as_ref());
        Candidates { calibration, world, overrides, rates, trees, known: HashMap::new() }
    }

    pub(crate) fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Replaces the link by a new measurement.
    pub(crate) fn set_link(&mut self, link: LinkSpeed) {
        self.rates = link.rates(self.world.size());
        self.trees = trees(&link, self.rates.as_ref());
        self.calibration.link = link;
        self.known.clear();
    }

    /// Replaces all measurements by others of the same codecs.
    pub(crate) fn recalibrate(&mut self, link: LinkSpeed, codecs: Vec<CodecSpeed>) {
        self.calibration.codecs = codecs;
        self.set_link(link);
    }

    /// Returns all candidates of a bucket, raw ones first; only those if it is exempt. `tried` is what
    /// [`Calibration::try_on`] gave for its gradients, if they were measured.
    pub(crate) fn of_bucket(&mut self, bucket: &Bucket, tried: Option<&[f32]>) -> Vec<Candidate> {
        let codecs = self.calibration.codecs_of(bucket);
        let mut candidates = Vec::new();
        for (place, codec) in codecs.into_iter().enumerate() {
            let most = || self.calibration.codecs[codec].error_max(bucket.elements);
            let tried = tried.map(|tried| tried.split_at(self.calibration.codecs.len()));
            let error = tried.map_or_else(most, |(errors, _)| errors[codec].into());
            let error = match place == 0 || self.calibration.codecs[codec].is_exact(bucket.dtype) {
                true => 0.0,
                // Gradients that a codec happens to hold, such as equal ones, do not make it exact.
                false => error.max(f64::MIN_POSITIVE),
            };
            let length = tried.map_or(Length::EXPECTED, |(_, ratios)| Length::of(ratios[codec]));
            self.of_codec(codec, length, error, bucket, &mut candidates);
        }
        candidates
    }

    fn of_codec(
        &mut self,
        codec: usize,
        length: Length,
        error: f64,
        bucket: &Bucket,
        candidates: &mut Vec<Candidate>,
    ) {
        let (choice, elements) = (self.calibration.codecs[codec].choice.clone(), bucket.elements);
        let overrides = self.overrides;
        let least = |summation: Summation| {
            let part = summation.part(elements);
            overrides.partitions.unwrap_or_else(|| least(&choice, part))
        };
        let mut usual: Vec<(Summation, Price)> = self
            .carriers(&choice, bucket)
            .into_iter()
            .map(|it| (it, self.price((codec, it, least(it)), elements, length)))
            .collect();
        usual.sort_by(|a, b| a.1.alone_s.total_cmp(&b.1.alone_s));
        let mut add = |summation: Summation, partitions, price| {
            let error = if summation.algorithm.gathers() { GATHER_ERROR * error } else { error };
            let assignment = Assignment {
                codec: choice.to_string(),
                algorithm: summation.to_string(),
                partitions,
            };
            candidates.push(Candidate { assignment, codec, error, elements, price });
        };
        for (rank, (summation, price)) in usual.into_iter().enumerate() {
            let least = least(summation);
            add(summation, least, price);
            if rank >= 2 || overrides.partitions.is_some() {
                continue;
            }
            for partitions in finer(summation, elements, least) {
                let price = self.price((codec, summation, partitions), elements, length);
                add(summation, partitions, price);
            }
        }
    }

    /// Returns the algorithms, flat or between units, that may carry a codec. If the user has given one that
    /// the bucket can take, no other is returned, and none if it cannot carry the codec.
    fn carriers(&self, choice: &Choice, bucket: &Bucket) -> Vec<Summation> {
        let (size, exchange) = (self.world.size(), choice.exchange());
        if let Some(overridden) = self.overrides.algorithm.filter(|it| bucket.takes(*it, size)) {
            return Vec::from_iter(overridden.carries(exchange).then_some(overridden));
        }
        let flat = algorithms(exchange, size, bucket.elements).map(Summation::from);
        let unequal = self.calibration.link.unequal.as_ref();
        let units = unequal.and_then(|unequal| unequal.units).map(|units| units.ranks);
        let in_units = units.into_iter().flat_map(|unit| {
            let between = algorithms(exchange, size / unit, bucket.elements / unit);
            between.map(move |algorithm| Summation { unit, algorithm })
        });
        let trees = self.trees.iter().map(|trees| Algorithm::Trees(*trees));
        let trees = trees.filter(|algorithm| operations::carries(*algorithm, exchange));
        let others = in_units.chain(trees.map(Summation::from));
        flat.chain(others.filter(|it| bucket.takes(*it, size))).collect()
    }

    /// Returns the price of a candidate for a bucket of `elements` elements.
    fn price(&mut self, choices: Choices, elements: usize, length: Length) -> Price {
        if elements <= EXACT_MAX {
            return self.price_at(choices, elements, length);
        }
        let below = 1 << elements.ilog2();
        let [low, high] = [below, 2 * below].map(|it| self.price_at(choices, it, length));
        let part = (elements - below) as f64 / below as f64;
        let between = |low: f64, high: f64| low + (high - low) * part;
        Price {
            alone_s: between(low.alone_s, high.alone_s),
            lead_s: between(low.lead_s, high.lead_s),
            wire_s: between(low.wire_s, high.wire_s),
            cpu_s: between(low.cpu_s, high.cpu_s),
            move_s: between(low.move_s, high.move_s),
            commit_s: between(low.commit_s, high.commit_s),
        }
    }

    fn price_at(&mut self, choices: Choices, elements: usize, length: Length) -> Price {
        let (calibration, rates, world) = (&self.calibration, self.rates.as_ref(), self.world);
        let price = || price(calibration, rates, world, choices, elements, length);
        *self.known.entry((choices, elements, length)).or_insert_with(price)
    }
}

fn price(
    calibration: &Calibration,
    rates: Option<&Rates>,
    world: World,
    choices: Choices,
    elements: usize,
    length: Length,
) -> Price {
    let (codec, summation, partitions) = choices;
    // Encodings travel between the units, each of one part of the elements.
    let (speed, size) = (&calibration.codecs[codec], world.size() / summation.unit);
    let (codec, algorithm) = (speed.codec(), summation.algorithm);
    let shape = Shape { length: elements, block: codec.block(), partitions };
    // A gather encodes a partition whole, the others encode a chunk of it per rank.
    let piece = match algorithm {
        Algorithm::Gather | Algorithm::RingGather => summation.part(elements) / partitions,
        _ => summation.part(elements) / partitions / size,
    };
    let encoded_len = |count| length.of_expected(codec.expected_len(count));
    let between = |link| speeds(speed, link, algorithm, size, piece.max(1));
    let cost = match (summation.unit, algorithm, rates) {
        (1, Algorithm::Trees(trees), Some(rates)) => {
            cost_of_trees(&trees, &shape, &encoded_len, &between(&calibration.link), rates)
        }
        (1, ..) => estimate(algorithm, size, &shape, &encoded_len, &between(&calibration.link)),
        (unit, ..) => {
            let links = calibration.link.in_units(unit);
            let within = within(&calibration.codecs, codec, &links[0], summation.part(elements));
            let speeds = [&within, &between(&links[1])];
            summation.estimate(world.size(), &shape, &encoded_len, speeds)
        }
    };
    Price {
        alone_s: cost.seconds,
        lead_s: cost.lead_seconds,
        // Links carry bytes in both directions at once.
        wire_s: cost.egress_seconds.max(cost.ingress_seconds),
        cpu_s: cost.cpu_seconds,
        move_s: cost.sent_bytes as f64 * calibration.link.cpu_s_per_byte
            + cost.messages as f64 * calibration.link.cpu_s_per_message,
        commit_s: if codec.needs_feedback() {
            commit_s(speed, algorithm, size, elements)
        } else {
            0.0
        },
    }
}

/// Returns the speeds of a schedule whose codec works on `piece` elements at a time.
fn speeds(
    speed: &CodecSpeed,
    link: &LinkSpeed,
    algorithm: Algorithm,
    size: usize,
    piece: usize,
) -> Speeds {
    let codec = speed.codec();
    let (deferred, gathers) = (codec.needs_feedback(), algorithm.gathers());
    let free = |rate: f64, free: bool| if free { f64::INFINITY } else { rate };
    // Two ranks that send to each other are a circle already.
    let converges = size > 2 && matches!(algorithm, Algorithm::TwoShot | Algorithm::Gather);
    Speeds {
        latency_s: link.latency_s,
        bytes_per_s: link.bytes_per_s / if converges { link.fan_in } else { 1.0 },
        // Raw values are sent from where they are, and received where they belong.
        encode_per_s: free(rate_at(speed.encode, piece), codec.is_raw()),
        // With feedback, results are decoded at the end of the step, where `commit_s` counts them.
        decode_per_s: free(rate_at(speed.decode, piece), codec.is_raw() || deferred),
        // A gather with feedback merges at the end of the step as well, and `commit_s` counts that, too.
        merge_per_s: free(rate_at(speed.merge, piece), gathers && deferred),
        task_overhead_s: TASK_OVERHEAD_S,
    }
}

/// Returns the speeds of sums within a unit, which work on `part` elements at a time. These sums travel
/// raw; `codec` encodes only between units.
fn within(codecs: &[CodecSpeed], codec: &dyn Codec, link: &LinkSpeed, part: usize) -> Speeds {
    // The first codec sends elements as they are.
    let raw = &codecs[0];
    let speeds = speeds(raw, link, Algorithm::TwoShot, 2, part.max(1));
    // With feedback every element is read with its residual, so nothing is sent from where it is.
    let encode_per_s = match codec.needs_feedback() {
        true => rate_at(raw.encode, part.max(1)),
        false => speeds.encode_per_s,
    };
    Speeds { encode_per_s, ..speeds }
}

/// Returns the time of decoding at the end of a step, where codecs with feedback decode their results.
fn commit_s(speed: &CodecSpeed, algorithm: Algorithm, size: usize, elements: usize) -> f64 {
    let bytes = (elements * 4) as f64;
    let merges = if algorithm.gathers() { (size - 1) as f64 } else { 0.0 };
    bytes / rate_at(speed.decode, elements) + merges * bytes / rate_at(speed.merge, elements)
}

/// Returns the flat algorithms that are worth comparing for encodings among this number of ranks or
/// units.
fn algorithms(exchange: Exchange, size: usize, elements: usize) -> impl Iterator<Item = Algorithm> {
    // Between two ranks ring and halving are two-shot by another name, and there is one gather.
    let differs = move |algorithm| match algorithm {
        Algorithm::Ring | Algorithm::Halving => size > 2,
        Algorithm::RingGather => size > 2 && exchange == Exchange::Gather,
        Algorithm::TwoShot | Algorithm::Gather | Algorithm::Trees(_) => true,
    };
    let few = size <= GATHER_WORLD_MAX || elements < GATHER_ELEMENTS_MAX;
    let usable = move |algorithm: &Algorithm| {
        operations::carries(*algorithm, exchange)
            && differs(*algorithm)
            && (!algorithm.gathers() || few || exchange == Exchange::Gather)
    };
    // A single rank or unit exchanges nothing, in whichever way.
    let most = if size == 1 { 1 } else { usize::MAX };
    Algorithm::ALL.into_iter().filter(usable).take(most)
}

/// Returns the least number of partitions of a bucket. While a thread computes on a large piece it moves no
/// bytes; codecs that send few of the elements have hardly any bytes to move.
fn least(choice: &Choice, elements: usize) -> usize {
    match choice.exchange() {
        Exchange::Gather => 1,
        _ => operations::partitions(elements),
    }
}

/// Returns the larger numbers of partitions to compare. In trees a slow rank's last partition returns alone.
fn finer(summation: Summation, elements: usize, least: usize) -> impl Iterator<Item = usize> {
    let part = summation.part(elements);
    let most = if matches!(summation.algorithm, Algorithm::Trees(_)) { 32 } else { 8 };
    let suits = move |count: &usize| (least + 1..=most).contains(count) && part / count >= 1 << 14;
    [2, 4, 8, 16, 32].into_iter().filter(suits)
}

/// Returns the trees that are worth comparing where links differ: shallow ones, and deeper ones if these take less.
fn trees(link: &LinkSpeed, rates: Option<&Rates>) -> Vec<Trees> {
    let Some(rates) = rates else { return Vec::new() };
    let size = rates.ranks();
    // Pairs between units share lines, so that their rates say nothing about all of them at once.
    if units::by_bandwidth(size, &link.pairs).is_some() {
        return Vec::new();
    }
    let equal =
        vec![1; size].into_iter().enumerate().map(|(root, weight)| (weight, vec![root; size]));
    let equal = Trees::new(&equal.collect::<Vec<_>>());
    let mut least_s = equal.map_or(f64::INFINITY, |trees| rates.seconds(&trees));
    let mut found: Vec<Trees> = rates.stars_and_trees().into_iter().flatten().collect();
    found.retain(|trees| {
        let seconds = rates.seconds(trees);
        let is_less = seconds < TREES_LESS * least_s;
        least_s = least_s.min(seconds);
        is_less
    });
    found
}

#[cfg(test)]
mod tests;
