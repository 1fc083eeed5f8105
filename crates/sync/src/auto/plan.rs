//! Plans: the codec, the algorithm and the partitions of every bucket.

use serde::{Deserialize, Serialize};
use thinwire_codec::Choice;
use thinwire_collective::operations::preferred;
use thinwire_schedule::Summation;
use thinwire_wire::World;

use crate::Transport;
use crate::auto::timeline::Price;
use crate::auto::watch::InForce;
use crate::bucket::layout::Bucket;
use crate::options::Overrides;

/// The codec, the algorithm and the partitions of one bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The codec, as [`Choice::parse`] takes it.
    pub codec: String,
    /// The algorithm, as [`Summation`] parses it.
    pub algorithm: String,
    /// The number of pipelined partitions of the bucket.
    pub partitions: usize,
}

/// The assignments of all buckets, and their expected times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// One assignment per bucket.
    pub assignments: Vec<Assignment>,
    /// Expected time of each bucket from ready to done, in seconds; zero where nothing was measured.
    pub predicted_s: Vec<f64>,
    /// The expected time of an iteration, in seconds; zero where nothing was measured.
    pub iteration_s: f64,
    /// The weighted errors of the assignments, as they count against the error budget, summed over buckets.
    #[serde(default, rename = "loss")]
    pub codec_error: f64,
    /// The price of each bucket's exchange by itself; empty if nothing was measured.
    #[serde(default)]
    pub prices: Vec<Price>,
    /// The expected time of an iteration in which everything travels raw, in seconds; zero where nothing
    /// was measured.
    #[serde(default)]
    pub raw_iteration_s: f64,
    /// In a saved plan, the fingerprint of the options that it was made for. Under other options the
    /// plan is not followed.
    #[serde(default, rename = "asked")]
    pub fingerprint: String,
}

/// Share by which a plan must be faster than raw, or than the plan in force, to replace it.
pub(crate) const GAIN_MIN: f64 = 0.02;

impl Plan {
    /// Returns the plan for buckets with named codecs, without measuring: the same every time.
    pub(crate) fn fixed(
        named: impl Fn(&Bucket) -> Choice,
        overrides: Overrides,
        buckets: &[(&Bucket, World)],
    ) -> Plan {
        let assign = |(bucket, world): &(&Bucket, World)| {
            if let Some(Transport { codec, summation, partitions }) = &bucket.transport {
                let (codec, algorithm) = (codec.to_string(), summation.to_string());
                return Assignment { codec, algorithm, partitions: *partitions };
            }
            let raw = Choice::Bytes(bucket.raw());
            let choice = named(bucket);
            // A raw codec that was named is that of the bucket's dtype.
            let plain = matches!(&choice, Choice::Bytes(codec) if codec.is_raw());
            let choice = if bucket.exempt || plain { &raw } else { &choice };
            let suited = bucket.suited(choice);
            let choice = suited.as_ref().unwrap_or(choice);
            let exchange = choice.exchange();
            let overridden = overrides.algorithm.filter(|algorithm| {
                algorithm.carries(exchange) && bucket.takes(*algorithm, world.size())
            });
            let preferred = || preferred(exchange, *world, bucket.elements).into();
            let algorithm: Summation = overridden.unwrap_or_else(preferred);
            Assignment {
                codec: choice.to_string(),
                algorithm: algorithm.to_string(),
                partitions: overrides
                    .partitions
                    .unwrap_or_else(|| algorithm.partitions(bucket.elements)),
            }
        };
        let assignments = buckets.iter().map(assign).collect();
        Plan { assignments, predicted_s: vec![0.0; buckets.len()], ..Plan::default() }
    }

    /// Returns whether this plan is expected to be faster than `other` by more than noise, or as fast with less
    /// than half of its error.
    pub(crate) fn beats(&self, other: &Plan) -> bool {
        let over = self.iteration_s / other.iteration_s;
        over < 1.0 - GAIN_MIN || over < 1.0 + GAIN_MIN && self.codec_error < 0.5 * other.codec_error
    }

    /// Returns the facts about this plan that a watch over the link needs.
    pub(crate) fn in_force(&self) -> InForce {
        InForce { hash: self.hash(), is_raw: self.iteration_s >= self.raw_iteration_s }
    }

    /// Returns the time on the wire of all buckets, in seconds.
    pub(crate) fn wire_s(&self) -> f64 {
        self.prices.iter().map(|price| price.wire_s).sum()
    }

    /// Returns the hash of what all ranks must agree on: the way in which buckets travel, without
    /// predicted times.
    pub fn hash(&self) -> u32 {
        let text = serde_json::to_string(&self.assignments).expect("strings and numbers");
        thinwire_wire::checksum(text.as_bytes())
    }
}
