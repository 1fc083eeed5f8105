//! State machine without I/O for the steps of one rank of an elastic job, from epoch to epoch.
//!
//! The native trainer and Python's report events to it, and do what it decides:
//!
//! | event | call |
//! |---|---|
//! | an epoch begins | [`Steps::begin`], which decides whose state this rank continues from |
//! | the state of the epoch is there | [`Steps::synced`] |
//! | a step begins | [`Steps::begin_step`] |
//! | all ranks have read the highest wish of any rank | [`Steps::agreed`] |
//! | the optimizer has applied the step | [`Steps::applied`] |
//! | a peer is lost | [`Steps::lost`] |
//! | a step has ended | [`Steps::due`] decides what follows it |
//!
//! A trainer whose calls fail when a peer is lost, such as the native one, need not call [`Steps::lost`].
//!
//! Laws: within an epoch, only an applied step changes [`Steps::done`]. A rank keeps its residuals only
//! if its state is the newest, or lacks only the last step. All ranks of an epoch decide alike which
//! ranks hand their state over, and what follows a step that all have completed. A void step is repeated
//! with the same number, and so with the same rows.

use thinwire_wire::World;

use crate::Error;

/// Number for [`Wish::Change`]; larger than that of any signal.
const CHANGE: i32 = 1 << 10;
/// Number for [`Wish::Stop`].
const STOP: i32 = 1 << 11;

/// Steps of one rank, through all epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    origin: Origin,
    done: u64,
    has_state: bool,
    is_under_way: bool,
    is_void: bool,
    wish: Wish,
}

/// Source of the state if an epoch has no state sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Origin {
    #[default]
    Checkpoint,
    Rank0,
}

/// Wish of a rank about the end of its epoch. The ranks agree on the highest one in every step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// The epoch continues.
    #[default]
    Continue,
    /// The training ends because of the signal with this number.
    Signal(i32),
    /// The epoch ends, and another one begins.
    Change,
    /// The job stops: all members leave.
    Stop,
}

/// Facts about an epoch that determine how a rank begins it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// This rank and the number of ranks.
    pub world: World,
    /// Number of ranks that have the newest state: ranks `0..state_sources`.
    pub state_sources: u32,
    /// Number of steps in that state. If there is no state source and the job begins with rank 0's state, the
    /// number of steps in rank 0's state.
    pub done: u64,
}

/// Decision at the beginning of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The state that this rank continues from.
    pub state: StateFrom,
    /// Residuals of this rank.
    pub residuals: Residuals,
    /// Number of ranks that hand their state over to all others: ranks `0..n`. `None` if every rank continues
    /// from its own state.
    pub hand_over: Option<u32>,
}

/// State that a rank continues from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFrom {
    /// This rank's own state.
    Own,
    /// The state that other ranks hand over.
    Others,
    /// The last checkpoint, or the start of the training.
    Checkpoint,
}

/// Residuals of a rank in a new epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residuals {
    /// The residuals stay as they were after the last step that this rank has applied.
    Kept,
    /// The residuals are taken from a step in which this rank took part, and which another rank has applied.
    OfLostStep,
    /// The residuals belong to a state that is gone: this rank begins without residuals, as a new rank does.
    Dropped,
}

/// What follows a step, or the beginning of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The next step.
    Step,
    /// The next epoch, which may repeat the step. Nothing more can be exchanged in this epoch.
    Repeat,
    /// The next epoch, after leavers have handed their residuals on and all ranks have released each other.
    Change,
    /// The end for all members, which then save their state together.
    Stop,
    /// The end of the training, at which all ranks meet.
    Finish,
}

impl Wish {
    /// Returns the number that ranks exchange for a wish; the highest number decides.
    pub fn number(self) -> i32 {
        match self {
            Wish::Continue => 0,
            Wish::Signal(signal) => signal,
            Wish::Change => CHANGE,
            Wish::Stop => STOP,
        }
    }

    /// Returns the wish with a [number](Wish::number).
    pub fn of(number: i32) -> Wish {
        match number {
            0 => Wish::Continue,
            CHANGE => Wish::Change,
            STOP => Wish::Stop,
            signal => Wish::Signal(signal),
        }
    }
}

impl Steps {
    /// Returns the steps of a rank without a state, in a job without its own checkpoints: an epoch without
    /// state sources begins with the state of rank 0. With [`Steps::default`], it begins with the last
    /// checkpoint.
    pub fn from_rank_0() -> Steps {
        Steps { origin: Origin::Rank0, ..Steps::default() }
    }

    /// Returns the number of steps in this rank's state.
    pub fn done(self) -> u64 {
        self.done
    }

    /// Returns whether a step has begun and is not applied yet.
    pub fn is_under_way(self) -> bool {
        self.is_under_way
    }

    /// Returns whether a peer was lost: no step may be applied until the next epoch.
    pub fn is_void(self) -> bool {
        self.is_void
    }

    /// Returns the wish on which the ranks have agreed in the last step.
    pub fn wish(self) -> Wish {
        self.wish
    }

    /// Decides how this rank begins an epoch. If its state is dropped, it has none until
    /// [`Steps::synced`].
    ///
    /// # Errors
    /// If the other ranks expect a state that this rank lacks, or would continue from an older state
    /// than this rank's.
    pub fn begin(&mut self, epoch: EpochStart) -> Result<Entry, Error> {
        let EpochStart { world, state_sources, done } = epoch;
        let rank = world.rank().0;
        let residuals = match done.checked_sub(self.done) {
            _ if state_sources == 0 || !self.has_state => Residuals::Dropped,
            Some(0) => Residuals::Kept,
            Some(1) => Residuals::OfLostStep,
            // More steps behind, or ahead with a step that nobody else has any more.
            _ => Residuals::Dropped,
        };
        let is_source = rank < state_sources;
        if is_source && residuals == Residuals::Dropped {
            return Err(Error::invalid(
                "the job relies on a state that this process does not have",
            ));
        }
        let (state, sources) = match self.origin {
            Origin::Checkpoint if state_sources == 0 => {
                (StateFrom::Checkpoint, world.size() as u32)
            }
            Origin::Rank0 if state_sources == 0 => {
                self.expect_no_step_lost(done)?;
                (if rank == 0 { StateFrom::Own } else { StateFrom::Others }, 1)
            }
            _ => (if is_source { StateFrom::Own } else { StateFrom::Others }, state_sources),
        };
        self.has_state = residuals != Residuals::Dropped;
        self.is_under_way = false;
        let hand_over = Some(sources).filter(|sources| (*sources as usize) < world.size());
        Ok(Entry { state, residuals, hand_over })
    }

    fn expect_no_step_lost(self, done: u64) -> Result<(), Error> {
        if !self.has_state || self.done <= done {
            return Ok(());
        }
        let message = format!(
            "no rank has the newest state any more: rank 0 is at step {done} and this one at step {}",
            self.done
        );
        let hint = "start this process again, so that all ranks load one checkpoint";
        Err(Error::invalid(message).with_hint(hint))
    }

    /// Notes that this rank has the state after `done` steps, from which the epoch continues.
    pub fn synced(&mut self, done: u64) {
        *self = Steps { origin: self.origin, done, has_state: true, ..Steps::default() };
    }

    /// Notes that a step begins.
    pub fn begin_step(&mut self) {
        self.is_under_way = true;
    }

    /// Notes the wish on which all ranks have agreed in this step, before or after it is applied.
    pub fn agreed(&mut self, wish: Wish) {
        self.wish = wish;
    }

    /// Notes that the step was applied.
    pub fn applied(&mut self) {
        self.done += 1;
        self.is_under_way = false;
    }

    /// Notes that a peer was lost. A step under way becomes void; a step that was applied remains
    /// applied.
    pub fn lost(&mut self) {
        self.is_void = true;
    }

    /// Decides what follows. `total` is the number of steps of the training, if it is known.
    pub fn due(self, total: Option<u64>) -> Due {
        match self.wish {
            _ if self.is_void => Due::Repeat,
            Wish::Change => Due::Change,
            Wish::Stop => Due::Stop,
            Wish::Signal(_) => Due::Finish,
            Wish::Continue if total.is_some_and(|total| self.done >= total) => Due::Finish,
            Wish::Continue => Due::Step,
        }
    }
}
