//! Primary: handles pushes and pulls, orders writes, and commits those that all replicas have.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use thinwire_member::Id;

use crate::clocks::Clocks;
use crate::consistency::Consistency;
use crate::log::Copy;
use crate::reason::{Reason, Request, Slowest};
use crate::shard::followers::{Follower, Sender};
use crate::shard::write_barrier::{Order, WriteBarrier};
use crate::shard::{Action, Options, Shard};
use crate::view::View;
use crate::write::{Entry, Pull, Push, Write};

/// Time after which a worker is told for which other worker its request waits, and after which it is told
/// again.
const DELAY: Duration = Duration::from_secs(1);

/// State that only the primary has; it is not replicated.
#[derive(Clone, Debug)]
pub struct Lead {
    /// Clocks after all entries of the log, committed or not.
    logged: Clocks,
    followers: Vec<Follower>,
    /// Last entry of the log when the view began. Earlier primaries may have acknowledged any entry up
    /// to this one.
    inherited: u64,
    /// Waiting pushes in order of arrival, at most one per worker: its next one.
    pushes: VecDeque<Push>,
    pulls: Vec<Pull>,
    next_tick: Duration,
    /// Time at which waiting workers are told which worker they wait for; `None` while no request waits.
    next_delay: Option<Duration>,
    /// Snapshot for which pushes are held, if there is one.
    hold: Option<WriteBarrier>,
}

impl Lead {
    /// Creates the primary of a new view, whose log is authoritative.
    pub fn new(id: Id, view: &View, copy: &mut Copy, now: Duration) -> Lead {
        let mut logged = copy.clocks.clone();
        let rest = copy.log.after(copy.log.committed(), usize::MAX);
        let rest = rest.expect("entries are kept until they are committed");
        rest.iter().for_each(|entry| logged.apply(&entry.write));
        copy.matched = copy.log.last();
        Lead {
            logged,
            followers: Follower::all(view, id, now),
            inherited: copy.log.last(),
            pushes: VecDeque::new(),
            pulls: Vec::new(),
            next_tick: now,
            next_delay: None,
            hold: None,
        }
    }

    /// Returns the waiting requests.
    pub fn into_waiting(self) -> (VecDeque<Push>, Vec<Pull>) {
        (self.pushes, self.pulls)
    }

    pub fn deadline(&self) -> Duration {
        let hold = self.hold.as_ref().map(|hold| hold.deadline);
        [hold, self.next_delay].into_iter().flatten().fold(self.next_tick, Duration::min)
    }

    /// Tells workers whose requests have waited for a while which worker they wait for.
    pub fn tell_delays(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.pushes.is_empty() && self.pulls.is_empty() {
            self.next_delay = None;
            return;
        }
        let due = *self.next_delay.get_or_insert(now + DELAY);
        if due > now {
            return;
        }
        self.next_delay = Some(now + DELAY);
        // Nobody waits for a worker whose next push has arrived.
        let waited_for = self.logged.active().filter(|(id, _)| self.is_missing(*id));
        let Some((worker, step)) = waited_for.min_by_key(|(_, step)| *step) else { return };
        let slowest = Slowest { worker, step };
        let pushes = self.pushes.iter().filter(|push| push.step > step);
        let pushes = pushes.map(|push| (push.client, Request::Push(push.number)));
        let is_ahead = |pull: &&Pull| self.logged.after(pull.client, pull.after) > Some(step);
        let pulls = self.pulls.iter().filter(is_ahead);
        let pulls = pulls.map(|pull| (pull.client, Request::Pull(pull.request)));
        let delay = |(client, request)| Action::Delay { client, request, slowest };
        actions.extend(pushes.chain(pulls).map(delay));
    }

    /// Takes the next write out of the waiting pushes, if one is allowed.
    fn next_write(&mut self, consistency: Consistency) -> Option<Write> {
        if consistency == Consistency::Sync {
            return self.next_step();
        }
        let is_free = self.hold.as_ref().is_some_and(WriteBarrier::is_agreed);
        let slowest = self.slowest(&self.logged);
        let may_go = |push: &Push| {
            let lead = push.step.saturating_sub(slowest + 1);
            self.lets_in(push) && (is_free || consistency.allows(lead))
        };
        let at = self.pushes.iter().position(may_go)?;
        self.pushes.remove(at).map(Write::single)
    }

    /// Takes out the pushes of one step, once every worker has pushed for it or for a later one. A push for a
    /// step that is over becomes a separate update.
    fn next_step(&mut self) -> Option<Write> {
        let step =
            self.pushes.iter().filter(|push| self.lets_in(push)).map(|push| push.step).min()?;
        if self.logged.active().any(|(id, clock)| clock < step && self.is_missing(id)) {
            return None;
        }
        let pushes = std::mem::take(&mut self.pushes).into_iter();
        let (mine, others): (VecDeque<Push>, VecDeque<Push>) =
            pushes.partition(|push| push.step == step && self.lets_in(push));
        self.pushes = others;
        Some(Write::sum(mine.into()))
    }

    /// Returns whether the snapshot under way, if any, admits a push.
    fn lets_in(&self, push: &Push) -> bool {
        self.hold.as_ref().is_none_or(|hold| hold.lets_in(push))
    }

    /// Returns whether a worker's next push has not arrived.
    fn is_missing(&self, id: Id) -> bool {
        let is_due = self.hold.as_ref().is_none_or(|hold| hold.awaits(id, &self.logged));
        is_due && !self.pushes.iter().any(|push| push.client == id)
    }

    /// Returns the step of the slowest worker. If a worker's next push is waiting, the worker has
    /// skipped the steps before that push.
    fn slowest(&self, clocks: &Clocks) -> u64 {
        let is_next = |push: &Push| clocks.pushed(push.client) == Some(push.number - 1);
        let next = |id| self.pushes.iter().find(|push| push.client == id && is_next(push));
        let reached = |(id, clock): (Id, u64)| {
            next(id).map_or(clock, |push| clock.max(push.step.saturating_sub(1)))
        };
        clocks.active().map(reached).min().unwrap_or(clocks.newest())
    }

    /// Returns the last entry that all replicas have.
    fn common(&self, copy: &Copy) -> u64 {
        let counted = self.followers.iter().filter(|follower| follower.is_counted);
        let had = counted.map(|follower| follower.matched.unwrap_or(0));
        had.min().unwrap_or(u64::MAX).min(copy.log.last())
    }
}

impl Shard {
    /// Handles a push, which is acknowledged once it is committed.
    pub(super) fn push(&mut self, push: Push, now: Duration, actions: &mut Vec<Action>) {
        let (client, number) = (push.client, push.number);
        let refuse = |reason| Action::Refuse { client, request: Request::Push(number), reason };
        let (Some(lead), Some(copy)) = (&mut self.lead, &self.copy) else {
            return actions.push(refuse(self.elsewhere()));
        };
        let Some(seen) = lead.logged.pushed(client) else {
            return actions.push(refuse(Reason::Unknown));
        };
        if number <= seen {
            // A push that is logged and not yet committed is acknowledged by its commit.
            if copy.clocks.pushed(client).is_some_and(|committed| number <= committed) {
                let pace = copy.clocks.pace(client);
                actions.push(Action::Acknowledge { client, number, pace });
            }
        } else if number > seen + 1 {
            actions.push(refuse(Reason::Early { expected: seen + 1 }));
        } else if lead.pushes.iter().all(|waiting| waiting.client != client) {
            lead.pushes.push_back(push);
            self.proceed(now, actions);
        }
    }

    /// Handles a pull, which is answered once its client is close enough to the slowest worker.
    pub(super) fn pull(&mut self, pull: Pull, actions: &mut Vec<Action>) {
        let (client, request) = (pull.client, pull.request);
        let refuse = |reason| Action::Refuse { client, request: Request::Pull(request), reason };
        let Some(lead) = &mut self.lead else {
            return actions.push(refuse(self.elsewhere()));
        };
        let is_known = |waiting: &Pull| (waiting.client, waiting.request) == (client, request);
        // A client repeats a pull after its connection broke; the first one is still waiting.
        if lead.pulls.iter().any(is_known) {
            return;
        }
        let waiting = lead.pulls.len();
        let own = lead.pulls.iter().filter(|waiting| waiting.client == client);
        let own_bytes: usize = own.map(Pull::bytes).sum();
        let Options { pulls_max, pull_bytes_max, .. } = self.options;
        let fits = own_bytes == 0 || own_bytes + pull.bytes() <= pull_bytes_max;
        if waiting >= pulls_max || !fits {
            return actions.push(refuse(Reason::Busy { waiting }));
        }
        lead.pulls.push(pull);
        self.answer_pulls(actions);
    }

    /// Commits what all replicas have, makes all writes that are allowed, and answers pulls.
    pub(super) fn proceed(&mut self, now: Duration, actions: &mut Vec<Action>) {
        loop {
            self.commit(actions);
            while let Some(write) = self.next_write(actions) {
                self.append(write, now, actions);
                // A primary without backups commits at once.
                self.commit(actions);
            }
            if !self.capture(actions) {
                break;
            }
        }
        self.answer_pulls(actions);
    }

    fn commit(&mut self, actions: &mut Vec<Action>) {
        let kept = self.entries_max();
        let (Some(lead), Some(copy)) = (&self.lead, &mut self.copy) else { return };
        while copy.log.committed() < lead.common(copy) {
            let write = copy.commit();
            actions.push(Action::Apply(Arc::clone(&write)));
            if let Write::Update { pushes, .. } = &*write {
                actions.extend(pushes.iter().map(|push| Action::Acknowledge {
                    client: push.client,
                    number: push.number,
                    pace: copy.clocks.pace(push.client),
                }));
            }
        }
        copy.log.trim(kept);
    }

    fn next_write(&mut self, actions: &mut Vec<Action>) -> Option<Write> {
        let (Some(lead), Some(copy)) = (&mut self.lead, &self.copy) else { return None };
        if copy.log.last() - copy.log.committed() >= self.options.uncommitted_max {
            return None;
        }
        // A new list of workers comes before all pushes; only then is it known whose pushes a snapshot has.
        if self.workers.version <= lead.logged.version() {
            lead.hold.iter_mut().for_each(|hold| hold.settle(&lead.logged, actions));
            return lead.next_write(self.options.consistency);
        }
        // A snapshot belongs to one list of workers.
        lead.hold.take_if(|hold| !hold.is_begun());
        let stays = |push: &Push| self.workers.ids.contains(&push.client);
        let (kept, gone): (VecDeque<Push>, VecDeque<Push>) =
            std::mem::take(&mut lead.pushes).into_iter().partition(stays);
        lead.pushes = kept;
        actions.extend(gone.into_iter().map(|Push { client, number, .. }| {
            let (request, reason) = (Request::Push(number), Reason::Unknown);
            Action::Refuse { client, request, reason }
        }));
        Some(Write::Workers(self.workers.clone()))
    }

    /// Appends a write, and sends it to all followers to which the earlier entries were sent.
    fn append(&mut self, write: Write, now: Duration, actions: &mut Vec<Action>) {
        let (Some(lead), Some(copy)) = (&mut self.lead, &mut self.copy) else { return };
        let (view, beat) = (self.view.number, self.options.beat);
        lead.logged.apply(&write);
        copy.matched = copy.log.append(Entry { view, write: Arc::new(write) });
        lead.next_tick = lead.next_tick.min(now + beat);
        let sender = Sender { view, copy, beat, now };
        lead.followers.iter_mut().for_each(|follower| follower.stream(&sender, actions));
    }

    fn answer_pulls(&mut self, actions: &mut Vec<Action>) {
        let (Some(lead), Some(copy)) = (&mut self.lead, &self.copy) else { return };
        let (slowest, consistency) = (lead.slowest(&copy.clocks), self.options.consistency);
        for pull in std::mem::take(&mut lead.pulls) {
            let clock = copy.clocks.after(pull.client, pull.after);
            let ahead = clock.map_or(0, |clock| clock.saturating_sub(slowest));
            match copy.clocks.pushed(pull.client) {
                // Readers never wait.
                None if pull.after == 0 => {}
                None => {
                    let (client, request) = (pull.client, Request::Pull(pull.request));
                    actions.push(Action::Refuse { client, request, reason: Reason::Unknown });
                    continue;
                }
                Some(own) if own >= pull.after && consistency.allows(ahead) => {
                    self.staleness.entry(pull.client).or_default().record(ahead);
                }
                Some(_) => {
                    lead.pulls.push(pull);
                    continue;
                }
            }
            let (version, pace) = (copy.log.committed(), copy.clocks.pace(pull.client));
            actions.push(Action::Answer { pull, version, pace });
        }
    }

    /// Handles a follower's report of its entries, and sends it more.
    pub(super) fn has(
        &mut self,
        from: Id,
        last: Option<u64>,
        committed: u64,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        let (view, beat) = (self.view.number, self.options.beat);
        let (Some(lead), Some(copy)) = (&mut self.lead, &self.copy) else { return };
        let Some(follower) = lead.followers.iter_mut().find(|follower| follower.id == from) else {
            return;
        };
        let sender = Sender { view, copy, beat, now };
        match last {
            Some(last) => {
                follower.absorb(last, committed);
                if follower.sent < copy.log.last() {
                    follower.send(&sender, actions);
                }
            }
            None if follower.matched.is_none() => follower.snapshot(&sender, actions),
            // An old report: the snapshot has arrived since.
            None => {}
        }
        let has_all = follower.matched >= Some(copy.log.committed().max(lead.inherited));
        if has_all && !follower.is_counted {
            // Commits wait for the learner from now on, before the coordinator relies on it.
            follower.is_counted = true;
            actions.push(Action::Ready { view, learner: from });
        }
        self.proceed(now, actions);
    }

    /// Sends again what followers lack, as far as is known.
    pub(super) fn tick(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let (view, beat) = (self.view.number, self.options.beat);
        let (Some(lead), Some(copy)) = (&mut self.lead, &self.copy) else { return };
        if now < lead.next_tick {
            return;
        }
        let sender = Sender { view, copy, beat, now };
        for follower in &mut lead.followers {
            follower.repeat(&sender, actions);
            // Told again until the next view has it as a replica: the coordinator may have been away.
            if follower.is_learner && follower.is_counted {
                actions.push(Action::Ready { view, learner: follower.id });
            }
        }
        let lacks = |follower: &Follower| follower.is_learner || follower.is_behind(copy);
        let is_quiet = !lead.followers.iter().any(lacks);
        lead.next_tick = if is_quiet { Duration::MAX } else { now + beat };
    }

    /// Handles an order of the coordinator, unless it is no newer than the last one.
    pub(super) fn obey(
        &mut self,
        snapshot: u64,
        order: Order,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        let rank = (snapshot, order.rank());
        // Every new state of the job brings the order of its snapshot again.
        if self.ordered.is_some_and(|last| rank <= last) {
            return;
        }
        self.ordered = Some(rank);
        let deadline = now + self.options.hold;
        // A backup that becomes primary missed nothing: a change of the servers has ended the snapshot (ADR 24).
        let Some(lead) = &mut self.lead else { return };
        match order {
            Order::WriteBarrier => lead.hold = Some(WriteBarrier::new(snapshot, deadline)),
            Order::Take(frontier) => {
                lead.hold.iter_mut().for_each(|hold| hold.agree(snapshot, Arc::clone(&frontier)));
            }
            Order::Release => lead.hold = None,
        }
        self.proceed(now, actions);
    }

    /// Captures the tables if they contain exactly the frontier, and ends the hold. Returns whether they did.
    fn capture(&mut self, actions: &mut Vec<Action>) -> bool {
        let (Some(lead), Some(copy)) = (&mut self.lead, &self.copy) else { return false };
        let is_applied = copy.log.committed() == copy.log.last();
        let logged = &lead.logged;
        let due = lead.hold.take_if(|hold| is_applied && hold.is_reached(logged));
        let is_due = due.is_some();
        actions.extend(due.map(|hold| Action::Capture { snapshot: hold.number }));
        is_due
    }

    /// Abandons a snapshot whose time is over.
    pub(super) fn give_up(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(lead) = &mut self.lead else { return };
        if let Some(hold) = lead.hold.take_if(|hold| hold.deadline <= now) {
            let missing = hold.missing(&lead.logged);
            actions.push(Action::Abandon { snapshot: hold.number, missing });
            self.proceed(now, actions);
        }
    }

    fn elsewhere(&self) -> Reason {
        Reason::Elsewhere { primary: self.view.primary().filter(|id| *id != self.id) }
    }
}
