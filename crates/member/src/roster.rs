//! The coordinator's list of all processes, from which it decides the epochs.
//!
//! An epoch passes through three phases. While it is *steady*, the coordinator only listens. For a change, it
//! *stops* the epoch: every member promises the next number and reports its last step, which is final.
//! It then *proposes* the next epoch, and starts it once all of its members, and enough members of the
//! old epoch, know it. A coordinator that was restarted without its state begins by *adopting* the last
//! epoch.

mod adopt;
mod answer;
mod change;
mod cuts;
mod peers;
mod saved;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::{Epoch, Id, Interruption, Manner, Message, Note, Options, Reason, Report, Wait};
use cuts::Cuts;
use peers::Peers;
pub use saved::SAVED_BYTES_MAX;

/// Event that reaches the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RosterEvent {
    /// A process reports.
    Report {
        /// The process.
        id: Id,
        /// State of the process.
        report: Report,
    },
    /// The connection to a process has closed. This does not show that the process has ended.
    Closed(Id),
    /// A process is known to have ended.
    Ended(Id),
    /// An operator wants another number of ranks.
    Resize {
        /// The operator's process, which gets an answer.
        id: Id,
        /// Number of ranks.
        target: u32,
    },
    /// A heartbeat has passed.
    Tick,
}

/// Action of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RosterAction {
    /// Makes [`Roster::save`] durable before anything that follows.
    Save,
    /// Sends a message.
    Send {
        /// Receiver.
        to: Id,
        /// The message.
        message: Message,
    },
    /// Reports something to people.
    Say(Note),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Adopting,
    Steady,
    Stopping { manner: Manner, since: Duration },
    Proposed { epoch: Epoch, since: Duration },
}

/// State machine of the coordinator.
#[derive(Clone, Debug)]
pub struct Roster {
    id: Id,
    options: Options,
    phase: Phase,
    /// Number of the last promise that this coordinator asked for.
    number: u32,
    /// Number of the prepare message, or of the epoch, from which on no other coordinator can decide.
    floor: u32,
    /// Largest number in any message so far.
    seen: u32,
    /// Last epoch that has started.
    epoch: Option<Epoch>,
    /// Later epochs that others have proposed; known only while adopting.
    unstarted: Vec<Epoch>,
    target: u32,
    fingerprint: Option<u64>,
    peers: Peers,
    cuts: Cuts,
    /// Processes that the phase waits for.
    outstanding: BTreeSet<Id>,
    waiting: Option<(Wait, Duration)>,
    /// Reason why the last epoch was ended in the middle of a step; kept until the next one starts.
    interruption: Option<Interruption>,
    next_tick: Duration,
}

impl Roster {
    /// Creates the coordinator of a new job, which has no epoch yet. Only the process that starts the job may
    /// call this: a coordinator without state, for a job that may have begun, starts with [`Roster::adopt`].
    pub fn found(id: Id, options: Options) -> Roster {
        Roster {
            id,
            options,
            phase: Phase::Steady,
            number: 0,
            floor: 0,
            seen: 0,
            epoch: None,
            unstarted: Vec::new(),
            target: options.max,
            fingerprint: None,
            peers: Peers::default(),
            cuts: Cuts::default(),
            outstanding: BTreeSet::new(),
            waiting: None,
            interruption: None,
            next_tick: Duration::ZERO,
        }
    }

    /// Returns the id of the coordinator.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Returns the settings of the job.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Returns the last epoch that has started.
    pub fn epoch(&self) -> Option<&Epoch> {
        self.epoch.as_ref()
    }

    /// Returns the number of ranks that the job should have.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Returns the hash of the facts that all members must have in common, once a process has reported.
    pub fn fingerprint(&self) -> Option<u64> {
        self.fingerprint
    }

    /// Returns why no epoch can be formed at the moment.
    pub fn waiting(&self) -> Option<Wait> {
        self.waiting.map(|(wait, _)| wait)
    }

    /// Returns when [`RosterEvent::Tick`] is due.
    pub fn deadline(&self) -> Duration {
        self.next_tick
    }

    /// Handles an event at time `now`, and returns the actions that follow from it.
    pub fn on(&mut self, event: RosterEvent, now: Duration) -> Vec<RosterAction> {
        let mut actions = Vec::new();
        self.excuse_pause(now);
        match event {
            RosterEvent::Report { id, report } => self.reported(id, report, now, &mut actions),
            RosterEvent::Closed(id) => self.peers.closed(id, now),
            RosterEvent::Ended(id) => self.ended(id, now, &mut actions),
            RosterEvent::Resize { id, target } => self.resize(id, target, now, &mut actions),
            RosterEvent::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    /// If this process itself did not run for some time, excludes this time from the silence of all
    /// processes: messages from this time may still be waiting to be read.
    fn excuse_pause(&mut self, now: Duration) {
        let late = now.saturating_sub(self.next_tick);
        if late > self.options.heartbeat() {
            self.peers.excuse(late, now);
            self.next_tick = now;
        }
    }

    fn tick(&mut self, now: Duration, actions: &mut Vec<RosterAction>) {
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + self.options.heartbeat();
        self.cuts.prune(now);
        self.peers.prune(now, self.options.silence, self.epoch.as_ref());
        // What was lost goes out again in answer to heartbeats. Members that obey another coordinator send none here:
        // this one calls them.
        match self.phase {
            Phase::Adopting => self.prepare(actions),
            Phase::Stopping { .. } if self.waiting.is_some() => self.call_missing(now, actions),
            _ => {}
        }
        self.proceed(now, actions);
    }

    /// Checks whether the phase is over.
    fn proceed(&mut self, now: Duration, actions: &mut Vec<RosterAction>) {
        match self.phase {
            Phase::Adopting => self.adopt_if_possible(now, actions),
            Phase::Steady => self.change_if_needed(now, actions),
            Phase::Stopping { .. } => self.propose_if_stopped(now, actions),
            Phase::Proposed { .. } => self.start_if_known(now, actions),
        }
    }

    fn ended(&mut self, id: Id, now: Duration, actions: &mut Vec<RosterAction>) {
        self.peers.ended(id, now);
        self.outstanding.remove(&id);
        self.proceed(now, actions);
    }

    fn resize(&mut self, id: Id, target: u32, now: Duration, actions: &mut Vec<RosterAction>) {
        let Options { min, max, .. } = self.options;
        if !(min..=max).contains(&target) {
            let message = Message::Refuse(Reason::Size { found: target, min, max });
            return actions.push(RosterAction::Send { to: id, message });
        }
        self.target = target;
        actions.push(RosterAction::Save);
        actions.push(RosterAction::Send { to: id, message: Message::Heard });
        self.proceed(now, actions);
    }

    fn send(&self, to: &[Id], message: &Message, actions: &mut Vec<RosterAction>) {
        let reachable = to.iter().filter(|id| !self.peers.has_ended(**id));
        actions
            .extend(reachable.map(|to| RosterAction::Send { to: *to, message: message.clone() }));
    }

    /// Returns the members of the last epoch that has started.
    fn members(&self) -> &[Id] {
        self.epoch.as_ref().map_or(&[], |epoch| &epoch.members)
    }

    fn epoch_number(&self) -> u32 {
        self.epoch.as_ref().map_or(0, |epoch| epoch.number)
    }

    fn wait(&mut self, wait: Wait, now: Duration, actions: &mut Vec<RosterAction>) {
        let is_new = self.waiting.is_none_or(|(known, _)| {
            std::mem::discriminant(&known) != std::mem::discriminant(&wait)
        });
        let since = self.waiting.filter(|_| !is_new).map_or(now, |(_, since)| since);
        if is_new {
            actions.push(RosterAction::Say(Note::Waiting(wait)));
        }
        self.waiting = Some((wait, since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CoordinatorMode, Member, MemberAction, MemberEvent};

    const COORDINATOR: Id = Id(100);

    /// Returns the join request of a newcomer.
    fn join_request(id: u64, fingerprint: u64) -> RosterEvent {
        let mut member =
            Member::new(Id(id), Options::new(CoordinatorMode::Saved, 1, 4), fingerprint);
        member.on(MemberEvent::Coordinator(COORDINATOR), Duration::ZERO);
        let actions = member.on(MemberEvent::Tick, Duration::ZERO);
        let [MemberAction::Send { message: Message::Report(report), .. }] = &actions[..] else {
            panic!("{actions:?}");
        };
        RosterEvent::Report { id: Id(id), report: report.clone() }
    }

    fn answers(actions: Vec<RosterAction>, id: u64) -> Vec<Message> {
        let message = |action| match action {
            RosterAction::Send { to, message } if to == Id(id) => Some(message),
            _ => None,
        };
        actions.into_iter().filter_map(message).collect()
    }

    #[test]
    fn a_newcomer_with_another_model_is_refused_and_the_job_goes_on() {
        let mut roster = Roster::found(COORDINATOR, Options::new(CoordinatorMode::Saved, 2, 4));
        roster.on(join_request(1, 7), Duration::ZERO);
        let refusal = Message::Refuse(Reason::Fingerprint { found: 8, expected: 7 });
        assert_eq!(answers(roster.on(join_request(2, 8), Duration::ZERO), 2), [refusal]);
        roster.on(join_request(3, 7), Duration::ZERO);
        let actions = roster.on(RosterEvent::Tick, Duration::from_secs(1));
        let [Message::Propose { epoch, .. }] = &answers(actions, 1)[..] else { panic!("no epoch") };
        assert_eq!(epoch.members, [Id(1), Id(3)]);
    }

    #[test]
    fn a_size_beyond_the_limits_is_refused() {
        let mut roster = Roster::found(COORDINATOR, Options::new(CoordinatorMode::Saved, 2, 4));
        let resize = |target| RosterEvent::Resize { id: Id(9), target };
        let refusal = Message::Refuse(Reason::Size { found: 5, min: 2, max: 4 });
        assert_eq!(answers(roster.on(resize(5), Duration::ZERO), 9), [refusal]);
        assert_eq!(answers(roster.on(resize(3), Duration::ZERO), 9), [Message::Heard]);
        assert_eq!(roster.target(), 3);
    }

    /// Returns a process that asks to join.
    fn newcomer(id: u64, options: Options) -> Member {
        let mut member = Member::new(Id(id), options, 7);
        member.on(MemberEvent::Coordinator(COORDINATOR), Duration::ZERO);
        member
    }

    /// Simulates a heartbeat: delivers messages until no process has more to send, and ends runs that must
    /// end. Returns the notes for people, and the leavers of runs that had to finish.
    fn converse(
        roster: &mut Roster,
        members: &mut [Member],
        now: Duration,
    ) -> (Vec<Note>, Vec<Vec<Id>>) {
        let (mut notes, mut finished) = (Vec::new(), Vec::new());
        let mut decided = roster.on(RosterEvent::Tick, now);
        let mut done = Vec::new();
        let ids: Vec<Id> = members.iter().map(Member::id).collect();
        let mut tell = |done: &mut Vec<_>, id, event: MemberEvent| {
            let member = members.iter_mut().find(|member| member.id() == id).unwrap();
            done.extend(member.on(event, now).into_iter().map(|action| (id, action)));
        };
        ids.into_iter().for_each(|id| tell(&mut done, id, MemberEvent::Tick));
        loop {
            for action in decided.drain(..) {
                match action {
                    RosterAction::Say(note) => notes.push(note),
                    RosterAction::Send { to, message } => {
                        let event = MemberEvent::Message { from: COORDINATOR, message };
                        tell(&mut done, to, event);
                    }
                    RosterAction::Save => {}
                }
            }
            if done.is_empty() {
                return (notes, finished);
            }
            for (id, action) in std::mem::take(&mut done) {
                match action {
                    MemberAction::Send { message: Message::Report(report), .. } => {
                        decided.extend(roster.on(RosterEvent::Report { id, report }, now));
                    }
                    MemberAction::Finish { leavers } => {
                        finished.push(leavers);
                        tell(&mut done, id, MemberEvent::Halted);
                    }
                    MemberAction::Run(epoch) => {
                        tell(&mut done, id, MemberEvent::Synced { done: epoch.done });
                    }
                    MemberAction::Abort => tell(&mut done, id, MemberEvent::Halted),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn a_coordinator_that_did_not_run_counts_nobody_as_silent() {
        let (options, asked) =
            (Options::new(CoordinatorMode::Saved, 1, 1), Duration::from_secs(100));
        let mut roster = Roster::found(COORDINATOR, options);
        converse(&mut roster, &mut [newcomer(1, options)], asked);
        assert_eq!(roster.epoch().unwrap().number, 1);
        let stops = |roster: &mut Roster, now| {
            let told = answers(roster.on(RosterEvent::Tick, now), 1);
            told.iter().any(|message| matches!(message, Message::Stop { .. }))
        };
        roster.on(RosterEvent::Tick, asked + options.heartbeat());
        let woken = asked + 10 * options.silence;
        assert!(!stops(&mut roster, woken));
        // From then on its silence counts.
        let mut ticks = (1..=11).map(|heartbeat| woken + heartbeat * options.heartbeat());
        assert!(ticks.any(|now| stops(&mut roster, now)));
    }

    #[test]
    fn an_epoch_that_ends_without_a_loss_names_the_member_whose_run_has_ended() {
        let (options, now) = (Options::new(CoordinatorMode::Saved, 1, 1), Duration::from_secs(1));
        let mut roster = Roster::found(COORDINATOR, options);
        let mut members = [newcomer(1, options)];
        converse(&mut roster, &mut members, now);
        members[0].on(MemberEvent::Halted, now);
        let (notes, _) = converse(&mut roster, &mut members, now + options.heartbeat());
        let interruption = Some(Interruption::Halted(Id(1)));
        let (joined, gone) = (Vec::new(), Vec::new());
        assert_eq!(notes, [Note::Started { number: 2, joined, gone, interruption }]);
    }

    #[test]
    fn when_all_leave_newcomers_get_their_state_first() {
        let (options, mut now) =
            (Options::new(CoordinatorMode::Saved, 1, 2), Duration::from_secs(1));
        let mut roster = Roster::found(COORDINATOR, options);
        let mut members = vec![newcomer(1, options)];
        converse(&mut roster, &mut members, now);
        now += options.settle;
        converse(&mut roster, &mut members, now);
        assert_eq!(roster.epoch().unwrap().members, [Id(1)]);
        members[0].on(MemberEvent::Synced { done: 5 }, now);
        members.push(newcomer(2, options));
        now += options.heartbeat();
        converse(&mut roster, &mut members, now);
        members[0].on(MemberEvent::Leave, now);
        now += options.heartbeat();
        let (_, finished) = converse(&mut roster, &mut members, now);
        assert_eq!(finished[0], []);
        let epoch = roster.epoch().unwrap();
        assert_eq!((&epoch.members[..], epoch.state_sources, epoch.done), (&[Id(2)][..], 1, 5));
    }

    #[test]
    fn an_epoch_is_saved_before_it_is_proposed_and_before_it_starts() {
        let mut roster = Roster::found(COORDINATOR, Options::new(CoordinatorMode::Saved, 1, 1));
        let actions = roster.on(join_request(1, 7), Duration::ZERO);
        let position = |is: fn(&RosterAction) -> bool| actions.iter().position(is);
        let save = position(|action| *action == RosterAction::Save);
        let propose = position(|action| {
            matches!(action, RosterAction::Send { message: Message::Propose { .. }, .. })
        });
        assert!(save.is_some() && save < propose, "{actions:?}");
    }
}
