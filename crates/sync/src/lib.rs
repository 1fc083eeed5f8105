//! Synchronisation of gradients: buckets, error feedback, overlap with backward, the choice of codecs.
//!
//! A [`Synchronizer`] takes gradients as backward produces them, packs them into buckets, lets a
//! communication thread exchange full buckets while backward continues, and hands back the average.
//! The error of a lossy codec stays in the bucket's residual and is sent in later steps. A NaN or an
//! infinity on any rank, or with error feedback a magnitude above 2^100, skips the step on all ranks, and
//! then nothing has changed.
//!
//! Law, per element, with error feedback: the sum of the results plus the sum over ranks of the
//! residuals after equals the sum of the gradients plus the sum of the residuals before.
//!
//! ```
//! use thinwire_sync::{Options, Outcome, Parameter, Synchronizer};
//!
//! let parameters = vec![Parameter::new("weight", &[2, 2]), Parameter::new("bias", &[2])];
//! let link = thinwire_link::mem::alone();
//! let mut sync = Synchronizer::start(link, parameters, Options::default()).unwrap();
//! sync.begin(0).unwrap();
//! sync.ready(0, &[1.0, 2.0, 3.0, 4.0]).unwrap();
//! sync.ready(1, &[0.5, 0.5]).unwrap();
//! assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
//! assert_eq!(sync.gradient(0), [1.0, 2.0, 3.0, 4.0]);
//! ```
#![forbid(unsafe_code)]

mod absence;
mod agreement;
mod auto;
mod bucket;
mod buffer;
mod channel;
mod checkpoint;
mod error;
mod exchange;
mod live;
mod measure;
mod options;
mod parameter;
mod policy;
mod readable;
mod record;
mod rounds;
mod rule;
mod scatter;
mod synchronizer;
mod worker;

pub use agreement::{agree, check_combination, check_options};
pub use auto::explain::{Alternative, Decision, Planning, Verdict};
pub use auto::plan::{Assignment, Plan};
pub use auto::timeline::Price;
pub use bucket::feedback::{Feedback, UnknownFeedback};
pub use bucket::momentum::Momentum;
pub use buffer::{ExternalBuffer, Tensor};
pub use channel::Channel;
pub use checkpoint::{State, Tensors, count_of, reshard, tensor_of_count};
pub use error::Error;
pub use exchange::Outcome;
pub use exchange::route::Target;
pub use live::{BucketSummary, Live, Time};
pub use measure::codecs::measure_codecs;
pub use measure::link::LinkSpeed;
pub use measure::pairs::{Pair, Unequal};
pub use measure::units::Units;
pub use measure::{median, processor_time};
pub use options::{Options, Reduction, WARM_UP_STEPS_MAX};
pub use parameter::{Gradient, Parameter, Transport};
pub use policy::{Policy, UnknownPolicy};
pub use record::{BucketRecord, StepRecord};
pub use rounds::{
    Action, Averager, AveragerState, Delayed, DelayedRows, DiLoCo, Due, InvalidMode, Mode, Replica,
    Round, RoundRecord, Timetable, partner,
};
pub use rule::Rule;
pub use scatter::{Part, Place, Scatter};
pub use synchronizer::Synchronizer;
