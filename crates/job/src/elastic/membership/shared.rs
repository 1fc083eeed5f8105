//! State that the process's own thread shares with the thread of its membership.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link::tcp::{Cancel, Unreachable};
use thinwire_link::{self as link, Link, Waker};
use thinwire_member::{Epoch, Id};
use thinwire_wire::{Rank, World};

use super::meeting::Meeting;
use crate::error::Error;

/// Value of [`Shared::done`] until the process has the state of the epoch.
pub const NOTHING_DONE: u64 = u64::MAX;

/// Callback that ends a run.
pub type Stop = Box<dyn Fn() + Send>;
/// Callback for changes of a process that follows the epochs.
pub type Change = Arc<dyn Fn() + Send + Sync>;

/// How a process takes part in its epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Participation {
    /// The process waits for each epoch, meets the other members, and ends its run when it is told to.
    Trains,
    /// The process is in every epoch as soon as it starts, shares no state, and has nothing to end.
    Follows,
}

/// Result of waiting for an epoch.
pub enum Found {
    /// Epoch that has started.
    Epoch(Epoch),
    /// The process has left a job that continues or is complete.
    Left,
    /// The process has left, and no other process is known to continue with its state.
    Stopped,
}

/// Way in which a process has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Others continue with the process's state, or all steps are done.
    Succeeded,
    /// No other process is known to continue with the process's state.
    Alone,
}

/// State of both threads.
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Last step of the run that was applied, or [`NOTHING_DONE`].
    pub done: AtomicU64,
    timeout: Duration,
}

#[derive(Default)]
struct State {
    run: Run,
    /// Epoch of the run.
    epoch: Option<Epoch>,
    finishing: Option<Vec<Id>>,
    /// The run has to end at once.
    is_aborted: bool,
    stop: Option<Stop>,
    change: Option<Change>,
    meeting: Option<Meeting>,
    met: Option<Met>,
    has_left: bool,
    /// Others continue with the state of this process, or do not need it any more.
    is_succeeded: bool,
    is_over: bool,
    refusal: Option<Error>,
    /// The last reason that the coordinator has given why this process is in no epoch.
    obstacle: Option<Obstacle>,
    /// Time at which the connection to the coordinator broke.
    away: Option<Instant>,
    waker: Option<Waker>,
    /// Members of the epoch that the links of this process do not reach, until they are reported.
    unreachable: Vec<Id>,
}

/// Reason why this process is in no epoch.
struct Obstacle {
    reason: String,
    /// Time at which the obstacle is reported to people, unless it has ended by then.
    due: Instant,
    is_told: bool,
}

/// Result of the meeting of an epoch.
struct Met {
    number: u32,
    result: Result<Link, link::Error>,
}

/// The process's part in its epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Run {
    #[default]
    None,
    /// An epoch has started and the process does not know it yet.
    Pending,
    Active,
}

impl State {
    /// Returns whether the process will be in no further epoch.
    fn is_at_end(&self) -> bool {
        self.has_left || self.refusal.is_some()
    }
}

impl Shared {
    pub fn new(timeout: Duration) -> Shared {
        let state = Mutex::new(State::default());
        Shared { state, changed: Condvar::new(), done: AtomicU64::new(NOTHING_DONE), timeout }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Sets how members meet.
    pub fn meetings(&self, meeting: Meeting) {
        self.lock().meeting = Some(meeting);
    }
}

/// The side of the process's own thread.
impl Shared {
    /// Waits until an epoch has started or the process has left; returns `None` at the deadline.
    ///
    /// # Errors
    /// If the coordinator refuses the process, or does not answer for the whole timeout.
    pub fn wait_for_epoch(&self, deadline: Option<Instant>) -> Result<Option<Found>, Error> {
        let mut state = self.lock();
        loop {
            if state.has_left {
                let is_succeeded = state.is_succeeded;
                return Ok(Some(if is_succeeded { Found::Left } else { Found::Stopped }));
            }
            if let (Run::Pending, Some(epoch)) = (state.run, state.epoch.clone()) {
                state.run = Run::Active;
                return Ok(Some(Found::Epoch(epoch)));
            }
            // Checked after the epoch, which trains without the coordinator that has refused the process.
            if let Some(refusal) = state.refusal.take() {
                return Err(refusal);
            }
            let left = state.away.map(|since| self.timeout.saturating_sub(since.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                let seconds = self.timeout.as_secs_f64().ceil();
                let context = format!("the coordinator was away for {seconds:.0} s");
                return Err(link::Error::new(link::Kind::Unreachable, context).into());
            }
            let until = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if until.is_some_and(|until| until.is_zero()) {
                return Ok(None);
            }
            state = match left.into_iter().chain(until).min() {
                Some(left) => self.changed.wait_timeout(state, left).expect("no holder panics").0,
                None => self.changed.wait(state).expect("no holder panics"),
            };
        }
    }

    /// Meets the members of an epoch; returns `None` if the epoch ends first.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn meet(
        self: &Arc<Shared>,
        epoch: &Epoch,
        world: World,
    ) -> Result<Option<Result<Link, link::Error>>, Error> {
        let meeting = self.lock().meeting.clone().expect("set when the process joined");
        let cancel = Cancel::new();
        let (shared, cancelled, number) = (Arc::clone(self), cancel.clone(), epoch.number);
        let meet = move || {
            let listener = Arc::clone(&shared);
            let unreachable =
                Unreachable::new(move |ranks| listener.note_unreachable(number, ranks));
            let result = meeting.meet(number, world, cancelled.clone(), unreachable);
            // Under the lock, so that nobody takes a link of an epoch that was given up.
            let mut state = shared.lock();
            if !cancelled.is_cancelled() {
                state.met = Some(Met { number, result });
                shared.changed.notify_all();
            }
        };
        thread::Builder::new()
            .name("thinwire meeting".to_owned())
            .spawn(meet)
            .map_err(|error| Error::because("starting the thread of a meeting", error))?;
        let mut state = self.lock();
        loop {
            if state.is_aborted || state.has_left {
                cancel.cancel();
                state.met = None;
                return Ok(None);
            }
            if let Some(met) = state.met.take_if(|met| met.number == number) {
                return Ok(Some(met.result));
            }
            state = self.changed.wait(state).expect("no holder panics");
        }
    }

    /// Checks in a separate thread whether this process reaches all members of an epoch of which it is
    /// not a member. Calls `tell` with a member that it does not reach, or with `None`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn look(
        &self,
        epoch: Epoch,
        tell: impl FnOnce(Option<Id>) + Send + 'static,
    ) -> std::io::Result<()> {
        let meeting = self.lock().meeting.clone().expect("set when the process joined");
        let look = move || tell(meeting.unreachable(&epoch));
        thread::Builder::new().name("thinwire probe".to_owned()).spawn(look).map(drop)
    }

    pub fn on_abort(&self, stop: Stop) {
        let mut state = self.lock();
        if state.is_aborted {
            drop(state);
            stop();
        } else {
            state.stop = Some(stop);
        }
    }

    pub fn finishing(&self) -> Option<Vec<Id>> {
        self.lock().finishing.clone()
    }

    /// Waits until the coordinator has named the leavers. Returns an empty list if it has not done so by
    /// the deadline, or if the run has to end at once.
    pub fn wait_for_leavers(&self, deadline: Instant) -> Vec<Id> {
        let mut state = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match &state.finishing {
                Some(leavers) => return leavers.clone(),
                None if left.is_zero() || state.is_aborted => return Vec::new(),
                None => {
                    state = self.changed.wait_timeout(state, left).expect("no holder panics").0;
                }
            }
        }
    }

    /// Returns the members of the epoch of the run, in the order of their ranks.
    pub fn members(&self) -> Vec<Id> {
        self.lock().epoch.as_ref().map_or_else(Vec::new, |epoch| epoch.members.clone())
    }

    /// Returns the member of the epoch with this rank.
    pub fn member(&self, rank: Rank) -> Option<Id> {
        self.lock().epoch.as_ref()?.members.get(rank.index()).copied()
    }

    /// Notes that the process has ended its run.
    pub fn run_ended(&self) {
        let stop = {
            let mut state = self.lock();
            state.finishing = None;
            state.stop.take()
        };
        drop(stop);
    }

    /// Waits until the job is over or the process has left; returns whether that has happened by the
    /// deadline.
    pub fn wait_for_end(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| state.is_over || state.has_left)
    }

    /// Waits until `is_so` holds; returns whether it holds by the deadline.
    fn wait_until(&self, deadline: Instant, is_so: impl Fn(&State) -> bool) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, |state| !is_so(state));
        is_so(&waited.expect("no holder panics").0)
    }

    /// Returns the reason why this process is in no epoch. Each reason is returned once, after it has
    /// lasted for a while.
    pub fn obstacle(&self) -> Option<String> {
        let mut state = self.lock();
        let obstacle = state.obstacle.as_mut()?;
        if obstacle.is_told || Instant::now() < obstacle.due {
            return None;
        }
        obstacle.is_told = true;
        Some(obstacle.reason.clone())
    }

    /// Returns for how long the coordinator has not been connected, if it is not.
    pub fn away(&self) -> Option<Duration> {
        self.lock().away.map(|since| since.elapsed())
    }

    /// Returns whether the job is over.
    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Records ranks that the links of epoch `number` do not reach.
    fn note_unreachable(&self, number: u32, ranks: &[Rank]) {
        let mut state = self.lock();
        // Ranks are places in one epoch, and name other processes in the next.
        let members = state.epoch.as_ref().filter(|epoch| epoch.number == number);
        let member =
            |rank: &Rank| members.and_then(|epoch| epoch.members.get(rank.index())).copied();
        let found: Vec<Id> = ranks.iter().filter_map(member).collect();
        state.unreachable.extend(found);
        state.waker.iter().for_each(Waker::wake);
    }

    /// Ends a wait of the membership's thread.
    pub fn wake(&self) {
        self.lock().waker.iter().for_each(Waker::wake);
    }
}

/// The side of a process that follows the epochs.
impl Shared {
    /// Returns the last epoch that has started.
    pub fn epoch(&self) -> Option<Epoch> {
        self.lock().epoch.clone()
    }

    /// Waits until an epoch after `seen` has started; returns `None` at the deadline, or when no epoch
    /// follows.
    pub fn wait_for_epoch_after(&self, seen: u32, deadline: Option<Instant>) -> Option<Epoch> {
        let mut state = self.lock();
        loop {
            let newer = state.epoch.as_ref().filter(|epoch| epoch.number > seen).cloned();
            if newer.is_some() || state.is_at_end() {
                return newer;
            }
            state = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return None,
                Some(left) => self.changed.wait_timeout(state, left).expect("no holder panics").0,
                None => self.changed.wait(state).expect("no holder panics"),
            };
        }
    }

    /// Waits until no epoch follows for this process; returns whether that is so by the deadline.
    pub fn wait_for_departure(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, State::is_at_end)
    }

    /// Sets what is called when an epoch starts and when no epoch follows.
    pub fn on_change(&self, change: Change) {
        let has_news = {
            let mut state = self.lock();
            state.change = Some(Arc::clone(&change));
            state.epoch.is_some() || state.is_at_end()
        };
        if has_news {
            change();
        }
    }

    /// Stops calling the callback, because the process has dropped its presence.
    pub fn forget_change(&self) {
        let change = self.lock().change.take();
        // What it owns is dropped without the lock.
        drop(change);
    }

    /// Returns whether the process has left.
    pub fn has_left(&self) -> bool {
        self.lock().has_left
    }

    /// Returns why the coordinator refuses the process, if it does.
    pub fn refusal(&self) -> Option<String> {
        self.lock().refusal.as_ref().map(Error::to_string)
    }

    /// Tells the process of a change.
    fn notify(&self, state: MutexGuard<'_, State>) {
        let change = state.change.clone();
        drop(state);
        self.changed.notify_all();
        change.into_iter().for_each(|change| change());
    }
}

/// The side of the membership's thread.
impl Shared {
    /// Notes that an epoch has started.
    pub fn start(&self, epoch: Epoch, participation: Participation) {
        let mut state = self.lock();
        let (run, done) = match participation {
            Participation::Trains => (Run::Pending, NOTHING_DONE),
            Participation::Follows => (Run::Active, epoch.done),
        };
        self.done.store(done, Ordering::Release);
        (state.run, state.epoch, state.is_aborted) = (run, Some(epoch), false);
        (state.finishing, state.stop, state.met) = (None, None, None);
        state.unreachable.clear();
        state.obstacle = None;
        self.notify(state);
    }

    /// Asks the process to end its run after a step that all agree on.
    pub fn finish(&self, leavers: Vec<Id>) {
        self.lock().finishing = Some(leavers);
        self.changed.notify_all();
    }

    /// Ends the run at once. Returns true if there is nothing to end, since the process did not know of the
    /// epoch yet.
    pub fn abort(&self) -> bool {
        let mut state = self.lock();
        state.is_aborted = true;
        let stop = state.stop.take();
        let is_unknown = state.run == Run::Pending;
        if is_unknown {
            state.run = Run::None;
        }
        drop(state);
        self.changed.notify_all();
        if let Some(stop) = stop {
            stop();
        }
        is_unknown
    }

    /// Returns the members of the epoch that cannot be reached, each once.
    pub fn take_unreachable(&self) -> Vec<Id> {
        std::mem::take(&mut self.lock().unreachable)
    }

    /// Notes that the process has no run.
    pub fn idle(&self) {
        self.lock().run = Run::None;
        self.done.store(NOTHING_DONE, Ordering::Release);
    }

    /// Returns the members of the epoch whose run is under way.
    pub fn running(&self) -> Option<Vec<Id>> {
        let state = self.lock();
        let epoch = state.epoch.as_ref().filter(|_| state.run != Run::None);
        epoch.map(|epoch| epoch.members.clone())
    }

    /// Notes that the process has left, and whether others may still need its state.
    pub fn left(&self, after: Left) {
        let mut state = self.lock();
        // The first news is the reason.
        if !state.has_left {
            state.is_succeeded = after == Left::Succeeded;
        }
        state.has_left = true;
        self.notify(state);
    }

    /// Notes that the job is over.
    pub fn over(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Notes why this process is in no epoch. People are told once the reason has lasted for `patience`. The
    /// coordinator repeats the reason once per heartbeat.
    pub fn hindered(&self, reason: String, patience: Duration) {
        let mut state = self.lock();
        if state.obstacle.as_ref().is_none_or(|obstacle| obstacle.reason != reason) {
            let due = Instant::now() + patience;
            state.obstacle = Some(Obstacle { reason, due, is_told: false });
        }
    }

    /// Notes that nothing keeps this process from an epoch any more.
    pub fn unhindered(&self) {
        self.lock().obstacle = None;
    }

    pub fn refused(&self, error: Error) {
        let mut state = self.lock();
        state.refusal = Some(error);
        self.notify(state);
    }

    /// Notes that the coordinator is connected, or away.
    pub fn connected(&self, waker: Option<Waker>) {
        let mut state = self.lock();
        state.away = match waker {
            Some(_) => None,
            None => Some(Instant::now()),
        };
        state.waker = waker;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_dropped_its_presence_is_told_of_no_change() {
        let (shared, calls) = (Shared::new(Duration::MAX), Arc::new(AtomicU64::new(0)));
        let counter = Arc::clone(&calls);
        shared.on_change(Arc::new(move || _ = counter.fetch_add(1, Ordering::Relaxed)));
        shared.refused(Error::invalid("no"));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        shared.forget_change();
        shared.left(Left::Alone);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
