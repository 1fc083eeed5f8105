//! The options of a synchroniser.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use thinwire_codec::Choice;
use thinwire_device::Device;
use thinwire_schedule::Summation;

use crate::{Feedback, Momentum, Policy};

/// Default error budget. On a link so slow that all of it is used, 1,000 steps on two ranks end with 0.0 to
/// 0.6 percent more loss (docs/numerics.md). It admits `ecsq:0.35` on most gradients, and `ecsq:0.5` if they
/// are gathered.
const ERROR_BUDGET: f64 = 0.02;

/// The longest warm-up; f32 counts steps exactly up to this number.
pub const WARM_UP_STEPS_MAX: u64 = 1 << 24;

/// The meaning of a synchronised gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// The mean over the ranks that have a share of it.
    #[default]
    Mean,
    /// The sum over the ranks that have a share of it.
    Sum,
}

/// The options of a synchroniser.
#[derive(Clone, Debug)]
pub struct Options {
    /// The codec.
    pub policy: Policy,
    /// The algorithm of the exchange, flat or hierarchical; if `None`, the planner or the size of the
    /// bucket decides.
    pub algorithm: Option<Summation>,
    /// The number of pipelined partitions of each bucket; if `None`, the planner or the size of the bucket
    /// decides.
    pub partitions: Option<usize>,
    /// The meaning of a synchronised gradient.
    pub reduction: Reduction,
    /// Buckets are closed when they have this many bytes of f32.
    pub bucket_bytes: usize,
    /// The largest number of buckets that may be on their way at a time. Further buckets wait, which
    /// limits the memory of messages. If `None`, there is no limit and all buckets overlap.
    pub underway_max: Option<NonZeroUsize>,
    /// The seed of random rounding; the same on all ranks.
    pub seed: u64,
    /// With `auto`, the largest weighted error (`weighted_error` of a `Distortion`) that one encoding
    /// of a bucket may have, as measured on its gradients; for a gather, a third of this error counts.
    /// Codecs with a larger error are not used for the bucket. There is no budget if the codecs from
    /// which `auto` may choose are named.
    pub error_budget: f64,
    /// The error feedback of lossy codecs.
    pub feedback: Feedback,
    /// Momentum that is summed before encoding; the optimiser must then have none.
    pub momentum: Option<Momentum>,
    /// The number of first steps that travel raw before the codec begins; skipped steps do not count,
    /// and 0 means no warm-up. [`Policy::warm_up_steps`] is the recommended number. `auto` has no
    /// warm-up: it measures the errors of codecs in the first steps, and plans by them.
    pub warm_up_steps: u64,
    /// A wait in which nothing moves for this long is an error.
    pub timeout: Duration,
    /// Whether codecs from files are used without a check of the laws that every codec must keep. The
    /// check takes a fraction of a second.
    pub unchecked: bool,
    /// Number of ranks whose backward shares this machine's cores, including this one; 0 if backward runs
    /// on a device. If `None`, the number comes from the launcher, see [`thinwire_job::local_ranks`].
    /// With fewer than two cores per rank, the computations of the exchange delay backward, which the
    /// planner takes into account.
    pub local_ranks: Option<usize>,
    /// The device that has the gradients, on which `auto` measures codecs; `None` for host memory.
    pub device: Option<Arc<dyn Device>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: Policy::Fixed(Choice::Bytes(thinwire_codec::raw())),
            algorithm: None,
            partitions: None,
            reduction: Reduction::Mean,
            bucket_bytes: 1 << 20,
            underway_max: None,
            seed: 0,
            error_budget: ERROR_BUDGET,
            feedback: Feedback::Classic,
            momentum: None,
            warm_up_steps: 0,
            timeout: Duration::from_secs(60),
            unchecked: false,
            local_ranks: None,
            device: None,
        }
    }
}

/// The parts of a plan that the user has fixed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) algorithm: Option<Summation>,
    pub(crate) partitions: Option<usize>,
}

impl Options {
    pub(crate) fn budget(&self) -> f64 {
        match &self.policy {
            // Infinity has no JSON.
            Policy::Auto(among) if !among.is_empty() => f64::MAX,
            _ => self.error_budget,
        }
    }

    /// Returns everything that a plan depends on, as text.
    pub(crate) fn fingerprint(&self) -> String {
        let Options { policy, algorithm, partitions, error_budget, .. } = self;
        format!("{policy}, {algorithm:?}, {partitions:?}, {error_budget}")
    }

    /// Returns the error budget if it has no effect, because codecs were named.
    pub(crate) fn idle_budget(&self) -> Option<f64> {
        let idle = !self.policy.keeps_a_budget() && self.error_budget != ERROR_BUDGET;
        idle.then_some(self.error_budget)
    }

    pub(crate) fn overrides(&self) -> Overrides {
        Overrides { algorithm: self.algorithm, partitions: self.partitions }
    }
}
