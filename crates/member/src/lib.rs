//! Membership of an elastic job: which processes train together, from which state, and how this changes.
//!
//! Two state machines without clock, sockets or threads, each with `on(event, now) -> actions`: [`Roster`] is
//! the coordinator and decides the epochs, and [`Member`] is one process of the job. The edge delivers
//! [`Message`]s, calls `on` with a tick at `deadline()`, and performs the actions in order. [`deal`] divides
//! a batch over the ranks of an epoch.
//!
//! # One change
//!
//! | | coordinator | member |
//! |--:|---|---|
//! | 1 | notices a loss, a leaver, newcomers or another size; sends `Stop` with the next number | promises the number; ends the run (after the step that all agree on, or at once) and reports its last step, which is final |
//! | 2 | has heard from all live members; chooses the members, sources of the newest state first; saves; sends `Propose` | accepts |
//! | 3 | all members and enough of the last epoch have accepted; saves; sends `Start` | runs: meets the others, takes over the state from the state sources, trains; or is fenced, and joins again as a newcomer |
//!
//! A step that a change interrupts has no effect, and is repeated in the next epoch by its members.
//! Between changes the coordinator only listens, so training also continues without it.
//!
//! # Laws
//!
//! 1. Of two epochs that were proposed with the same number, at most one is accepted by most of its
//!    members, and at most one starts.
//! 2. All members of an epoch begin with one state, and apply equal steps one after another. A process
//!    that is left behind applies at most the step that was under way, and loses its state.
//! 3. The step count does not go back, unless no source of the newest state is left, which is reported.
//! 4. When faults end, all processes that want to train and may do so are in one epoch within bounded
//!    time: joiners, fenced processes and both sides of a partition. Leavers are gone.
//! 5. With fewer ranks than the minimum, or too few members of the last epoch to decide, a job waits and
//!    reports it.
//!
//! `tests/laws` checks them over a hundred thousand schedules of faults.
//!
//! # Why they hold
//!
//! An epoch needs all of its members for every step, so one member that never starts it prevents all of
//! its steps. A process promises to obey one coordinator at a time, and the number of its promise only
//! grows. A change needs half of the last epoch, and a new coordinator needs more than half to take
//! over, so both have at least one member in common. Either this member has promised to the new
//! coordinator first, and the old one cannot decide; or it tells the new one about the epoch that was
//! proposed. The new coordinator also needs more than half of that epoch, since the old one may have
//! started it and continue with the other half. A coordinator that saves its state before it acts on it
//! is the only one, and needs neither majority ([`CoordinatorMode`]).
//!
//! ```
//! use std::time::Duration;
//! use thinwire_member::{
//!     CoordinatorMode, Id, Member, MemberAction, MemberEvent, Message, Options, Roster, RosterAction,
//!     RosterEvent,
//! };
//!
//! let (options, now) = (Options::new(CoordinatorMode::Saved, 1, 1), Duration::ZERO);
//! let mut roster = Roster::found(Id(100), options);
//! let mut member = Member::new(Id(1), options, 0);
//! member.on(MemberEvent::Coordinator(Id(100)), now);
//!
//! let mut actions = member.on(MemberEvent::Tick, now);
//! let epoch = loop {
//!     match actions.remove(0) {
//!         MemberAction::Send { message: Message::Report(report), .. } => {
//!             for action in roster.on(RosterEvent::Report { id: Id(1), report }, now) {
//!                 if let RosterAction::Send { message, .. } = action {
//!                     let event = MemberEvent::Message { from: Id(100), message };
//!                     actions.extend(member.on(event, now));
//!                 }
//!             }
//!         }
//!         MemberAction::Run(epoch) => break epoch,
//!         other => panic!("{other:?}"),
//!     }
//! };
//! assert_eq!((epoch.number, epoch.members), (1, vec![Id(1)]));
//! ```
#![forbid(unsafe_code)]

mod corrupt;
mod deal;
mod epoch;
mod member;
mod message;
mod note;
mod options;
mod roster;

pub use corrupt::Corrupt;
pub use deal::deal;
pub use epoch::{Epoch, Id, NUMBER_MAX, Promise, State};
pub use member::{Member, MemberAction, MemberEvent};
pub use message::{Known, MESSAGE_BYTES_MAX, Manner, Message, Occasion, Reason, Report, Standing};
pub use note::{Gone, Interruption, Note, Wait};
pub use options::{CoordinatorMode, Options};
pub use roster::{Roster, RosterAction, RosterEvent, SAVED_BYTES_MAX};
