//! Figures of a rank while it trains, which members of an elastic job report and `thinwire top` shows.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{BucketRecord, LinkSpeed, Pair, StepRecord};

/// Largest number of spans of buckets that one summary reports.
const SPANS_MAX: usize = 64;

/// Figures of one rank. Figures of the whole job are equal on all ranks; only rank 0 reports links
/// and buckets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Live {
    /// Host of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Number of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Number by which the launcher of the process names it, if one started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<u32>,
    /// Steps that are done.
    pub step: Option<u64>,
    /// Steps of the whole training.
    pub steps: Option<u64>,
    /// Mean loss of all ranks in the last step.
    pub loss: Option<f64>,
    /// Rows of the batch per second, all ranks together.
    pub samples_per_s: Option<f64>,
    /// Rows per step, all ranks together, if policies adapt the training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// Gradient noise scale in rows, once it is known and finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise_scale: Option<f64>,
    /// Of the rows of servers' tables that this rank looked up, the fraction that its caches had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_hits: Option<f64>,
    /// Time of a step.
    pub time: Option<Time>,
    /// Measured links, each pair of ranks once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Pair>,
    /// Summaries of buckets, by the way in which their gradients travel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<BucketSummary>,
}

/// Times of recent steps in seconds, as medians: `compute + wait + other == step`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Time {
    /// The whole step.
    pub step_s: f64,
    /// Forward and backward.
    pub compute_s: f64,
    /// Part of the computation in which gradients travelled: the overlapped exchange.
    pub hidden_s: f64,
    /// Waiting for the exchange after backward: the exposed exchange.
    pub wait_s: f64,
    /// Decoding of sums, optimiser, and the like.
    pub other_s: f64,
}

impl Time {
    /// Returns the time of a step of a framework's loop. The exchange can only measure its own part;
    /// everything else counts as computation.
    pub fn of(step_s: f64, record: &StepRecord) -> Time {
        let wait_s = record.wait_s.min(step_s);
        let other_s = record.commit_s.min(step_s - wait_s);
        let compute_s = step_s - wait_s - other_s;
        Time { step_s, compute_s, hidden_s: record.hidden_s().min(compute_s), wait_s, other_s }
    }
}

/// Buckets whose gradients travel in the same way, with the sums of their bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BucketSummary {
    /// First and last bucket of each span of such buckets, in the order in which they become ready.
    pub buckets: Vec<(u32, u32)>,
    /// Codec, as `--codec` takes it.
    pub codec: String,
    /// Algorithm, as `--algorithm` takes it.
    pub algorithm: String,
    /// Number of partitions in which each bucket travels.
    pub partitions: usize,
    /// Bytes that this rank would send per step as f32.
    pub raw_bytes: u64,
    /// Bytes that it sends per step.
    pub sent_bytes: u64,
}

impl Live {
    /// Adds the links, as far as they were measured, and the summaries of a step's buckets.
    #[must_use]
    pub fn with_exchange(self, link: Option<LinkSpeed>, record: Option<&StepRecord>) -> Live {
        let links = link.map_or(Vec::new(), |link| link.pairs);
        Live { links, buckets: record.map_or(Vec::new(), |it| summaries(&it.buckets)), ..self }
    }

    /// Returns the figures as a JSON object.
    pub fn object(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(object)) => object,
            _ => Map::new(),
        }
    }
}

/// Returns the summaries of buckets, in the order of their first buckets.
fn summaries(buckets: &[BucketRecord]) -> Vec<BucketSummary> {
    let mut summaries: Vec<BucketSummary> = Vec::new();
    for (at, bucket) in (0..).zip(buckets) {
        let is_alike = |summary: &&mut BucketSummary| {
            summary.codec == bucket.codec
                && summary.algorithm == bucket.algorithm
                && summary.partitions == bucket.partitions
        };
        match summaries.iter_mut().find(is_alike) {
            Some(summary) => summary.add(at, bucket),
            None => {
                let mut summary = BucketSummary {
                    codec: bucket.codec.clone(),
                    algorithm: bucket.algorithm.clone(),
                    partitions: bucket.partitions,
                    ..BucketSummary::default()
                };
                summary.add(at, bucket);
                summaries.push(summary);
            }
        }
    }
    summaries
}

impl BucketSummary {
    fn add(&mut self, at: u32, bucket: &BucketRecord) {
        self.raw_bytes += bucket.raw_bytes;
        self.sent_bytes += bucket.sent_bytes;
        let spans = self.buckets.len();
        match self.buckets.last_mut() {
            Some((_, last)) if *last + 1 == at => *last = at,
            _ if spans < SPANS_MAX => self.buckets.push((at, at)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(codec: &str, raw_bytes: u64) -> BucketRecord {
        let codec = codec.to_owned();
        BucketRecord { codec, raw_bytes, sent_bytes: raw_bytes / 4, ..BucketRecord::default() }
    }

    #[test]
    fn buckets_that_travel_alike_are_one_way() {
        let codecs = ["int8", "int8", "none", "int8", "none", "none"];
        let buckets: Vec<BucketRecord> = codecs.iter().map(|codec| bucket(codec, 40)).collect();
        let found = summaries(&buckets);
        assert_eq!(found.len(), 2);
        assert_eq!((&found[0].buckets[..], found[0].raw_bytes), (&[(0, 1), (3, 3)][..], 120));
        assert_eq!((&found[1].buckets[..], found[1].sent_bytes), (&[(2, 2), (4, 5)][..], 30));
    }

    #[test]
    fn parts_of_a_step_add_up() {
        let record = StepRecord { wait_s: 0.3, commit_s: 0.1, ..StepRecord::default() };
        for (step_s, compute_s) in [(1.0, 0.6), (0.35, 0.0), (0.2, 0.0)] {
            let Time { step_s, compute_s: found, wait_s, other_s, .. } = Time::of(step_s, &record);
            assert!((found - compute_s).abs() < 1e-9, "{found}");
            assert!((found + wait_s + other_s - step_s).abs() < 1e-9);
        }
    }

    #[test]
    fn figures_are_read_back_and_missing_ones_are_none() {
        let live = Live { step: Some(3), loss: Some(2.5), ..Live::default() };
        let record = StepRecord { buckets: vec![bucket("none", 8)], ..StepRecord::default() };
        let live = live.with_exchange(None, Some(&record));
        let object = Value::Object(live.object());
        assert_eq!(serde_json::from_value::<Live>(object).unwrap(), live);
        assert_eq!(serde_json::from_str::<Live>("{\"host\":null}").unwrap(), Live::default());
    }

    #[test]
    fn sixteen_ranks_and_a_thousand_buckets_fit_into_a_message() {
        let pair = |low, high| Pair {
            ranks: (low, high),
            latency_s: 1.0 / 3e4 + f64::from(high) / 7e6,
            bytes_per_s: 1e9 / 3.0 + f64::from(low) / 7.0,
            same_host: low / 8 == high / 8,
        };
        let links = (0..16).flat_map(|low| (low + 1..16).map(move |high| pair(low, high)));
        let codecs = ["int8", "none", "powersgd:4"];
        let buckets = (0..1000).map(|at| bucket(codecs[at % 3], 1 << 20)).collect();
        let record = StepRecord { buckets, ..StepRecord::default() };
        let live = Live::default().with_exchange(None, Some(&record));
        let live = Live { links: links.collect(), ..live };
        let length = Value::Object(live.object()).to_string().len();
        assert!(length < 15 << 10, "{length}");
    }
}
