//! The policy layer: which gradients travel together, when, encoded how, and where the time went.
//!
//! A [`Synchronizer`] takes gradients as backward produces them, packs them into buckets, lets a
//! communication thread exchange full buckets while backward goes on, and hands back the average.
//! What a lossy codec loses stays in the bucket's residual and is sent in later steps. A NaN or an
//! infinity on any rank skips the step on all ranks, and then nothing has changed.
//!
//! Law, per element, with error feedback: the sum of the results plus the sum over ranks of the
//! residuals after equals the sum of the gradients plus the sum of the residuals before.
//!
//! ```
//! use thinwire_sync::{Options, Outcome, Parameter, Synchronizer};
//!
//! let parameters = vec![Parameter::new("weight", &[2, 2]), Parameter::new("bias", &[2])];
//! let link = Box::new(thinwire_link::mem::alone());
//! let mut sync = Synchronizer::start(link, parameters, Options::default()).unwrap();
//! sync.begin(0).unwrap();
//! sync.ready(0, &[1.0, 2.0, 3.0, 4.0]).unwrap();
//! sync.ready(1, &[0.5, 0.5]).unwrap();
//! assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
//! assert_eq!(sync.gradient(0), [1.0, 2.0, 3.0, 4.0]);
//! ```
#![forbid(unsafe_code)]

mod agreement;
mod backward;
mod bucket;
mod calibrate;
mod calls;
mod error;
mod exchange;
mod feedback;
mod integers;
mod iteration;
mod lane;
mod layout;
mod loss;
mod low_rank;
mod method;
mod momentum;
mod pairs;
mod parameter;
mod plan;
mod planner;
mod planning;
mod policy;
mod probe;
mod readable;
mod record;
mod replan;
mod scatter;
mod spread;
mod state;
mod synchronizer;
mod tensor;
mod timing;
mod turns;
mod warm_up;
mod watch;
mod ways;
mod worker;

pub use agreement::{agree, check_combination};
pub use error::Error;
pub use feedback::{Feedback, UnknownFeedback};
pub use iteration::Price;
pub use momentum::Momentum;
pub use pairs::{Pair, Unequal};
pub use parameter::{Gradient, Parameter};
pub use plan::{Assignment, Plan};
pub use planning::{Alternative, Decision, Planning, Verdict};
pub use policy::{Options, Policy, UnknownPolicy};
pub use probe::LinkSpeed;
pub use record::{BucketRecord, StepRecord};
pub use scatter::{Place, Scatter};
pub use state::{State, Tensors, reshard};
pub use synchronizer::{Outcome, Synchronizer};
pub use tensor::Lent;
