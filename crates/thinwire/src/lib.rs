//! Data-parallel training across thin networks: ranks exchange encoded gradients and continue with
//! their average.
//!
//! A [`Synchronizer`] takes gradients while backward produces them, exchanges full buckets on a thread of
//! its own, and returns the average of all ranks. A codec encodes the gradients. The error of a lossy
//! codec is kept, and sent in later steps. All ranks receive the same bits, so parameters that start
//! equal stay equal.
//!
//! Two ranks of one process train a linear map, with gradients in 8 bits:
//!
//! ```
//! use thinwire::link::{Link, mem};
//! use thinwire::{Error, Options, Outcome, Parameter, Synchronizer};
//!
//! const OUTPUTS: usize = 8;
//! const INPUTS: usize = 64;
//!
//! /// The map to learn, of shape `[OUTPUTS, INPUTS]`.
//! fn truth(index: usize) -> f32 {
//!     (index % 5) as f32 - 2.0
//! }
//!
//! /// Adds the gradient of one example's squared error; returns the error.
//! fn backward(weight: &[f32], input: &[f32], gradient: &mut [f32]) -> f32 {
//!     let mut loss = 0.0;
//!     for output in 0..OUTPUTS {
//!         let row = output * INPUTS;
//!         let error: f32 =
//!             (0..INPUTS).map(|i| (weight[row + i] - truth(row + i)) * input[i]).sum();
//!         loss += 0.5 * error * error;
//!         (0..INPUTS).for_each(|i| gradient[row + i] += error * input[i]);
//!     }
//!     loss
//! }
//!
//! /// Trains one rank. Returns the loss of the last step and the weight.
//! fn train(link: Link) -> Result<(f32, Vec<f32>), Error> {
//!     let parameters = vec![Parameter::new("weight", &[OUTPUTS, INPUTS])];
//!     let policy = "int8".parse().expect("the name of a codec");
//!     let options = Options { policy, ..Options::default() };
//!     let mut sync = Synchronizer::start(link, parameters, options)?;
//!     let rank = sync.world().rank().index();
//!     let (mut weight, mut loss) = (vec![0.0; OUTPUTS * INPUTS], 0.0);
//!     for step in 0..100 {
//!         sync.begin(step)?;
//!         let mut gradient = vec![0.0; weight.len()];
//!         // Each rank has examples of its own: rank 0 the even inputs, rank 1 the odd ones.
//!         loss = 0.0;
//!         for example in (rank..INPUTS).step_by(2) {
//!             let mut input = [0.0; INPUTS];
//!             input[example] = 1.0;
//!             loss += backward(&weight, &input, &mut gradient);
//!         }
//!         sync.ready(0, &gradient)?;
//!         // A step in which any rank had a NaN changes nothing on any rank.
//!         if sync.finish()? == Outcome::Averaged {
//!             let average = sync.gradient(0);
//!             weight.iter_mut().zip(average).for_each(|(w, slope)| *w -= 0.5 * slope);
//!         }
//!     }
//!     if rank == 0 {
//!         let sent = sync.record().total(|bucket| bucket.sent_bytes);
//!         let raw = sync.record().total(|bucket| bucket.raw_bytes);
//!         println!("sent {sent} bytes per step, raw gradients take {raw}");
//!     }
//!     Ok((loss, weight))
//! }
//!
//! let threads: Vec<_> = mem::mesh(2)
//!     .into_iter()
//!     .map(|link| std::thread::spawn(|| train(link)))
//!     .collect();
//! let mut weights = Vec::new();
//! for (rank, thread) in threads.into_iter().enumerate() {
//!     let (loss, weight) = thread.join().expect("no rank panics")?;
//!     println!("rank {rank}: loss {loss:.4}, weight {:.2?} …", &weight[..4]);
//!     weights.push(weight);
//! }
//! assert_eq!(weights[0], weights[1]);
//! # assert_eq!(format!("{:.2?}", &weights[0][..4]), "[-2.00, -1.00, 0.00, 1.00]");
//! # Ok::<(), Error>(())
//! ```
//!
//! It prints
//!
//! ```text
//! sent 560 bytes per step, raw gradients take 2048
//! rank 0: loss 0.0000, weight [-2.00, -1.00, 0.00, 1.00] …
//! rank 1: loss 0.0000, weight [-2.00, -1.00, 0.00, 1.00] …
//! ```
//!
//! If ranks are processes, on one host or several, they get their links not from [`link::mem`] but from a
//! [`job::Meeting`], which reads the environment of a launcher (`thinwire run`, torchrun, mpirun, srun):
//!
//! ```no_run
//! use thinwire::job::{Overrides, Meeting, Settings, find, process, token};
//!
//! let given = Overrides::default();
//! let place = find(&given, &process)?.expect("started by a launcher");
//! let token = token(&given, &place.coordinator, &process)?;
//! let meeting = Meeting::new(&place, &token, &Settings::default())?;
//! let link = meeting.link()?;
//! # Ok::<(), thinwire::job::Error>(())
//! ```
//!
//! The example `train` of this crate trains this way, saves its state and resumes. The modules:
//! - [`codec`] lists the codecs.
//! - [`collective`] has all-reduce and other collectives on plain buffers.
//! - [`checkpoint`] has the state to save with a model.
//! - [`report`] has the time and bytes of each step.
//! - [`rounds`] has modes in which ranks exchange parameters every few steps.
//! - [`policy`] has policies that adapt a training while it runs.
#![forbid(unsafe_code)]

#[doc(inline)]
pub use half::{bf16, f16};
#[doc(inline)]
pub use thinwire_sync::{
    Channel, Error, ExternalBuffer, Feedback, Gradient, Momentum, Options, Outcome, Parameter,
    Policy, Reduction, Rule, Synchronizer, Target, Transport, UnknownFeedback, UnknownPolicy,
};
#[doc(inline)]
pub use thinwire_wire::{DType, Hint, InvalidWorld, Rank, UnknownDType, World};

/// The state of a synchroniser across a restart, and its conversion to another number of ranks.
pub mod checkpoint {
    #[doc(inline)]
    pub use thinwire_sync::{State, Tensors, reshard};
}

/// Policies that adapt the batch, the learning rate, the error budget and the number of ranks of a training.
pub mod policy {
    #[doc(inline)]
    pub use thinwire_policy::{
        Adjustment, Deadline, Goodput, InvalidPolicy, Noise, NoiseBatch, NoiseScale, Observation,
        Part, Policy, Price, RateRule, Sketch, Spec, WaitBudget,
    };
}

/// Rounds: ranks train copies of a model on their own and exchange parameters every few steps.
pub mod rounds {
    #[doc(inline)]
    pub use thinwire_sync::{
        Action, Averager, AveragerState, DelayedRows, DiLoCo, InvalidMode, Mode, Replica, Round,
        RoundRecord, Timetable, partner,
    };
    #[doc(inline)]
    pub use thinwire_update::{
        AdagradOptions, AdamOptions, AdamWOptions, FtrlOptions, MomentumOptions, Optimizer, Rule,
    };
}

/// Gradients to bytes and back.
pub mod codec {
    #[doc(inline)]
    pub use thinwire_codec::{
        Bound, CODECS, Choice, Claims, Codec, Entry, Error, Exchange, Finite, Input, IntSgd, Kind,
        PowerSgd, Write, all, language, raw, raw_of,
    };
    #[doc(inline)]
    pub use thinwire_wire::random::Key;
}

/// Blocking collectives on plain buffers, and the group that runs them.
pub mod collective {
    #[doc(inline)]
    pub use thinwire_collective::{
        Error, Group, Kind, Options, Stop, all_gather, all_gather_bytes, all_reduce,
        all_reduce_many, all_to_all, barrier, broadcast, reduce_scatter,
    };
    #[doc(inline)]
    pub use thinwire_schedule::{Algorithm, Summation, Trees, UnknownAlgorithm};
}

/// Memory of devices in which gradients may lie, and the work that a device does on them.
pub mod device {
    #[doc(inline)]
    pub use thinwire_device::{
        Allocation, Block, Canonicalise, Change, Decoding, Device, Done, Encoding, FactorStep,
        Factoring, Failure, HostBytes, Operand, Pending, Region, Source, Submission, Values, Work,
    };

    /// NVIDIA devices; requires the feature `cuda`.
    #[cfg(all(feature = "cuda", unix))]
    pub mod cuda {
        #[doc(inline)]
        pub use thinwire_device::cuda::arguments::Address;
        #[doc(inline)]
        pub use thinwire_device::cuda::driver::{Fault, Stream};
        #[doc(inline)]
        pub use thinwire_device::cuda::{Allocator, Cuda, Kept, Unavailable};
    }
}

/// The place of this process in a job, and how ranks of a job meet.
pub mod job {
    #[doc(inline)]
    pub use thinwire_job::{
        Error, Form, Host, Kind, Meeting, Overrides, Place, Settings, Source, Variables, find,
        fresh_token, local_ranks, open, process, token,
    };
}

/// Connections between ranks: in memory and over TCP.
pub mod link {
    #[doc(inline)]
    pub use thinwire_link::tcp::{Connections, Encryption, SharedMemory};
    #[doc(inline)]
    pub use thinwire_link::{
        Bandwidth, Counters, Error, InvalidBandwidth, Kind, Limiter, Link, Place, Port, Token,
        Waker, mem, tcp,
    };
    #[doc(inline)]
    pub use thinwire_wire::{Header, HeaderError, Tag};
}

/// Time and bytes of a step, and the plan of `auto`.
pub mod report {
    #[doc(inline)]
    pub use thinwire_sync::{
        Alternative, Assignment, BucketRecord, Decision, LinkSpeed, Pair, Plan, Planning, Price,
        StepRecord, Unequal, Units, Verdict,
    };
}

/// Rendezvous stores, in which ranks that do not know each other yet find each other's addresses.
pub mod store {
    #[doc(inline)]
    pub use thinwire_link::store::{Store, mem, tcp};
}
