//! Figures of a training run, as tables, JSON and pages show them.

use std::fmt;

use serde::{Deserialize, Serialize};
use thinwire_plan::pipeline::Kind;
use thinwire_plan::report::counted;

use crate::figures;

/// One or several runs of the same training, under different codecs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The command line that made the report.
    pub command: String,
    /// thinwire's version.
    pub version: String,
    /// Date and time, as "2026-11-21 14:05 UTC".
    pub date: String,
    /// The processor and its cores.
    pub machine: String,
    /// Number of ranks.
    pub ranks: u32,
    /// The link between them, in words.
    pub link: String,
    /// Bytes per second of a rank in one direction, if the link has a limit.
    pub link_bytes_per_s: Option<f64>,
    /// All settings, by name.
    pub settings: Vec<(String, String)>,
    /// The runs.
    #[serde(skip)]
    pub runs: Vec<Run>,
    /// Facts that differ between runs of several trainings: the name, and the value in each run.
    #[serde(skip)]
    pub differences: Vec<(String, Vec<String>)>,
}

/// One training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Name that tells the run from the others, if that is not its codec.
    #[serde(skip)]
    pub label: Option<String>,
    /// The requested codec.
    pub codec: String,
    /// The mode, if ranks exchange parameters in rounds instead of gradients in every step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Rounds that changed nothing, since a rank had parameters that are not finite.
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped_rounds: u64,
    /// Steps of the training, including those before this rank joined it.
    #[serde(skip)]
    pub steps: u64,
    /// The training loss, mean over ranks, in the steps of this rank.
    pub losses: Vec<Point>,
    /// The validation loss.
    pub validation: Vec<Point>,
    /// Steps that were skipped because a gradient was not finite.
    pub skipped_steps: u64,
    /// Tokens or images per second, all ranks together.
    pub tokens_per_s: f64,
    /// Parts of a step's time: medians over steps after the first few.
    pub time: Split,
    /// Lower bounds of the step's time.
    #[serde(flatten)]
    pub floors: Floors,
    /// Bytes that this rank would have sent per step as f32.
    #[serde(rename = "raw_bytes_per_step")]
    pub raw_bytes: f64,
    /// Bytes that this rank sent per step, headers included.
    #[serde(rename = "sent_bytes_per_step")]
    pub sent_bytes: f64,
    /// The fraction of exchange time that was hidden behind backward, 0 to 1.
    pub overlap: f64,
    /// Every bucket, in the order in which they become ready: medians, in a typical step.
    pub buckets: Vec<Bucket>,
    /// The last line in which `auto` described its choice, if it chose the codecs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<String>,
    /// Changes of the members of an elastic job, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// Requests of policies, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adjusted: Vec<Adjusted>,
    /// The checkpoint, if one was written.
    pub checkpoint: Option<String>,
    /// Text that the model writes.
    pub sample: String,
    /// Fraction of the held-out images that the trained model classifies correctly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Whether a row is an image, and not text.
    #[serde(skip)]
    pub is_of_images: bool,
    /// Predictions and measurements, if there was a plan for the whole model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<Planned>,
}

/// Returns NaN, for a figure that is null in JSON.
fn no_number() -> f64 {
    f64::NAN
}

/// Returns whether a count is left out, since it is zero.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Beginning of an epoch of an elastic job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// Number of the epoch.
    pub epoch: u32,
    /// Last step before the epoch; 0 for none.
    pub step: u64,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of ranks that were not in the epoch before.
    pub joined: usize,
    /// Seconds from the end of the last step before the change to the end of the first one after it.
    pub pause_s: f64,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = match self.joined {
            0 => String::new(),
            joined => format!(", {joined} of them new"),
        };
        let (ranks, pause) = (counted(self.ranks, "rank"), figures::seconds(self.pause_s));
        let Change { epoch, step, .. } = self;
        write!(
            f,
            "epoch {epoch} after step {step}: {ranks}{joined}; {pause} until its first step ended"
        )
    }
}

/// Request of a policy after a step; `None` for values that stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Adjusted {
    /// The step.
    pub step: u64,
    /// Rows per step, all ranks together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// Factor of the learning rate, relative to that at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Number of ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// Error budget of `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_budget: Option<f64>,
    /// The policy, and its reason.
    pub reason: String,
}

impl Adjusted {
    /// Returns the request in a few words.
    pub fn asked(&self) -> String {
        let Adjusted { batch, rate, ranks, error_budget, .. } = self;
        let rate = rate.filter(|rate| *rate != 1.0);
        let all = [
            batch.map(|batch| format!("batch {batch}")),
            rate.map(|rate| format!("learning rate × {rate:.2}")),
            ranks.map(|ranks| counted(ranks as usize, "rank")),
            error_budget.map(|budget| format!("error budget {budget:.3}")),
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Adjusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Adjusted { step, ranks, reason, .. } = self;
        let asked = self.asked();
        match ranks {
            Some(_) => write!(f, "{asked} wanted after step {step}: {reason}"),
            // It is told with the next step, and in force from the one after that.
            None => write!(f, "{asked} from step {} on: {reason}", step + 2),
        }
    }
}

/// A value of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Number of steps before this value.
    pub step: u64,
    /// Seconds of training before this value.
    pub at_s: f64,
    /// The loss in nats per byte, or per image.
    #[serde(default = "no_number")]
    pub value: f64,
}

/// Parts of a step's time, in seconds. `compute + wait + commit == step`; encode, wire and decode run
/// at the same time as compute and are counted separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Split {
    /// Time from the beginning of one step to the beginning of the next.
    pub step_s: f64,
    /// Forward, backward and the optimiser, at the speed that they had during the exchange.
    pub compute_s: f64,
    /// Encoding, in the communication thread.
    pub encode_s: f64,
    /// Time in which bytes are on their way and none of them are being encoded, decoded or merged.
    pub wire_s: f64,
    /// Decoding and merging, in the communication thread.
    pub decode_s: f64,
    /// Waiting for the exchange after backward had ended.
    pub wait_s: f64,
    /// Decoding the last result into the gradients, after the wait.
    pub commit_s: f64,
    /// Time at which the last gradient was ready, since the step's beginning.
    pub backward_s: f64,
}

/// Lower bounds of a step's time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Floors {
    /// Time of a step without any exchange. Such steps are measured between the others in the same run:
    /// the median of their ratio to the step before, times the median step. Under a plan, the time that
    /// the busiest rank works without waiting.
    #[serde(default = "no_number")]
    pub compute_s: f64,
    /// Bytes sent divided by the link's bandwidth, if the link has a limit.
    #[serde(rename = "wire_floor_s")]
    pub wire_s: Option<f64>,
}

/// One bucket of gradients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bucket {
    /// Names of the bucket's first and last parameter.
    pub name: String,
    /// Number of elements.
    pub elements: usize,
    /// The codec by which it was sent.
    pub codec: String,
    /// The algorithm that moved it.
    pub algorithm: String,
    /// Bytes that would have been sent as f32.
    pub raw_bytes: f64,
    /// Bytes that were sent.
    pub sent_bytes: f64,
    /// Time at which it was ready, since the step's beginning.
    pub ready_s: f64,
    /// Time at which it was exchanged.
    pub done_s: f64,
    /// Time spent encoding it.
    pub encode_s: f64,
    /// Time spent decoding and merging it.
    pub decode_s: f64,
    /// Time on the wire.
    pub wire_s: f64,
    /// Predicted `done_s - ready_s`; zero without a prediction.
    pub predicted_s: f64,
}

impl Report {
    /// Returns whether gradients travelled in buckets, instead of parameters in rounds or to servers.
    pub fn has_buckets(&self) -> bool {
        self.runs.iter().any(|run| !run.buckets.is_empty())
    }

    /// Returns whether there was a plan for the whole model.
    pub fn is_planned(&self) -> bool {
        self.runs.iter().any(|run| run.planned.is_some())
    }
}

impl Run {
    /// Returns the name that tells the run from the others.
    pub fn name(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.codec)
    }

    /// Returns the last validation loss.
    pub fn last_validation(&self) -> Option<f64> {
        self.validation.last().map(|point| point.value)
    }

    /// Returns the training loss, as the mean of the last tenth of the curve.
    pub fn last_loss(&self) -> Option<f64> {
        let tail = &self.losses[self.losses.len() - self.losses.len().div_ceil(10)..];
        let sum: f64 = tail.iter().map(|point| point.value).sum();
        (!tail.is_empty()).then(|| sum / tail.len() as f64)
    }

    /// Returns the raw bytes divided by the bytes that were sent.
    pub fn compression(&self) -> f64 {
        self.raw_bytes / self.sent_bytes
    }

    /// Returns the step's time divided by the time of the computation alone.
    pub fn over_compute(&self) -> f64 {
        self.time.step_s / self.floors.compute_s
    }
}

impl Floors {
    /// Returns the larger of the two lower bounds.
    pub fn larger_s(&self) -> f64 {
        self.compute_s.max(self.wire_s.unwrap_or(0.0))
    }
}

/// A planned training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Planned {
    /// The model.
    pub model: String,
    /// Steps that were counted.
    pub steps: u64,
    /// Predicted seconds of a step.
    pub predicted_step_s: f64,
    /// Time of a step: the median of the second half of the steps.
    pub step_s: f64,
    /// Every rank.
    pub ranks: Vec<PlannedRank>,
}

/// One rank of a planned training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlannedRank {
    /// Number of the rank.
    pub rank: usize,
    /// Stage of the pipeline.
    pub stage: usize,
    /// Bytes that its program sends in all steps, headers included.
    pub predicted_bytes: u64,
    /// Bytes that it has handed to its links.
    pub counted_bytes: u64,
    /// Predicted memory in bytes.
    pub predicted_memory_bytes: u64,
    /// Growth of the process's memory, at its peak, in bytes.
    pub memory_bytes: u64,
    /// Seconds of a step in which it waited for no other rank: the median over the second half of
    /// the steps.
    pub busy_s: f64,
    /// Passes of the last step, in order.
    #[serde(skip)]
    pub passed: Vec<Passed>,
    /// End of these passes, in seconds since the first rank began the step.
    #[serde(skip)]
    pub end_s: f64,
}

/// One pass of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passed {
    /// Kind of the pass.
    pub kind: Kind,
    /// The chunk of the pipeline.
    pub chunk: usize,
    /// The micro-batch.
    pub micro_batch: usize,
    /// Beginning of the pass, in seconds since the first rank began the step. In a trace, time counts
    /// from the moment at which all ranks know whether the gradients are finite, so these seconds are
    /// negative.
    pub start_s: f64,
    /// End of the pass.
    pub end_s: f64,
    /// Seconds of the pass in which the rank waited for others.
    pub waited_s: f64,
}

/// One training as a line of JSON. Units are seconds, bytes, and nats per byte or per image.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    steps: u64,
    loss: Option<f64>,
    validation_loss: Option<f64>,
    step_s: f64,
    #[serde(flatten)]
    run: &'a Run,
    #[serde(flatten)]
    report: &'a Report,
}

/// Returns a report as lines of JSON, one for each training.
pub fn lines(report: &Report) -> Vec<Line<'_>> {
    report.runs.iter().map(|run| line(report, run)).collect()
}

fn line<'a>(report: &'a Report, run: &'a Run) -> Line<'a> {
    Line {
        steps: run.steps,
        loss: run.last_loss(),
        validation_loss: run.last_validation(),
        step_s: run.time.step_s,
        run,
        report,
    }
}
