//! Elastic jobs: processes come and go while the others continue to train.
//!
//! A [`Coordinator`] decides the epochs of a job: who trains together, from which state. Each process has
//! a [`Membership`], whose thread talks with the coordinator while the framework computes, and goes from
//! one epoch to the next:
//!
//! | the process | calls |
//! |---|---|
//! | waits for an epoch and gets a link to its members | [`Membership::next`] |
//! | has taken over the state of the others, or loaded it | [`Membership::synced`] |
//! | ends the run as soon as it is told to | [`Membership::on_abort`] |
//! | has applied a step; if asked to, ends the run after a step that all agree on | [`Membership::applied`], [`Membership::finishing`] |
//! | has lost a peer | [`Membership::lost`] |
//! | has ended the run, and waits for the next epoch | [`Membership::halted`] |
//! | wants to leave, or has done the last step | [`Membership::leave`], [`Membership::complete`] |
//! | saves its state, because all leave or the job is stopped | [`Membership::closing`], [`Membership::depart`] |
//!
//! [`Steps`] decides what the process does at the beginning of an epoch and after each step.
//!
//! If etcd keeps the coordinator's state ([`Store`]), every launcher has a [`Candidate`]. One candidate
//! hosts the coordinator, and another one takes over if it ends.
//!
//! If the coordinator is gone, a run continues; members try to reconnect after growing pauses. The crate
//! [`thinwire_member`] has the rules by which the coordinator decides.
//!
//! ```
//! use std::thread;
//! use thinwire_job::Settings;
//! use thinwire_job::elastic::{CoordinatorMode, Coordinator, Membership, Next, Options, JobAddress};
//!
//! let options = Options::new(CoordinatorMode::Saved, 2, 2);
//! let coordinator = Coordinator::bind("127.0.0.1:0", "secret", options, None, |_event| {})?;
//!
//! let processes = [0, 1].map(|_| {
//!     let address = JobAddress::new(coordinator.address(), "secret").unwrap();
//!     thread::spawn(move || -> Result<u64, thinwire_job::Error> {
//!         let spec = vec![("model".to_owned(), "gpt".to_owned())];
//!         let mut membership = Membership::join(&address, &Settings::default(), options, spec)?;
//!         let mut done = 0;
//!         while let Next::Run(run) = membership.next()? {
//!             // A group over `run.link` would sum gradients here.
//!             membership.synced(run.epoch.done);
//!             while done < 3 && membership.finishing().is_none() {
//!                 done += 1;
//!                 membership.applied(done);
//!             }
//!             if done == 3 {
//!                 membership.complete()?;
//!                 break;
//!             }
//!             membership.halted();
//!         }
//!         Ok(done)
//!     })
//! });
//! for process in processes {
//!     assert_eq!(process.join().expect("no panic")?, 3);
//! }
//! # Ok::<(), thinwire_job::Error>(())
//! ```

mod candidate;
pub(crate) mod coordinator;
pub(crate) mod envelope;
mod etcd;
mod event;
mod job_address;
mod job_spec;
mod membership;
mod operator;
mod persistence;
mod presence;
mod role;
mod roles;
mod service;
mod status;
mod steps;
mod store;
mod views;

pub use candidate::Candidate;
pub use coordinator::Coordinator;
pub use event::Event;
pub use job_address::{JobAddress, VARIABLE, job_address};
pub use membership::{Membership, NUMBER, Next, Run};
pub use operator::Operator;
pub use presence::Presence;
pub use role::Role;
pub use steps::{Due, Entry, EpochStart, Residuals, StateFrom, Steps, Wish};
pub use store::Store;
pub use thinwire_member::{CoordinatorMode, Epoch, Id, Options};
pub use views::{
    Job, Servers, Subscription, VIEWS_BYTES_MAX, VIEWS_REQUEST_BYTES_MAX, ViewService, Views,
    ViewsConnection, coordinator_addresses,
};
