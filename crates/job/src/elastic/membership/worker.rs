//! The thread of a membership. It passes commands of the process, messages of the coordinator, and the
//! time to the state machine of the process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use thinwire_member::{Id, Member, MemberAction, MemberEvent, Message, Options, Reason};

use super::connector::{Call, Caller};
use super::shared::{Left, NOTHING_DONE, Participation, Shared};
use crate::elastic::envelope::{End, Reply, Request};
use crate::elastic::event;
use crate::elastic::role::Role;
use crate::error::Error;

/// Time before a lost peer is reported. If the epoch ends within this time, the peer is not lost: it was only
/// told of the end first.
const GRACE: Duration = Duration::from_millis(50);
/// Longest wait, after a process has left, for the coordinator to close the connection.
const FAREWELL: Duration = Duration::from_secs(1);
/// Time for which no epoch can be formed before people are told why: most changes take less.
const OBSTACLE_LASTS: Duration = Duration::from_secs(1);
/// Longest wait without a look at the clock.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Command of the process, or event of its connector.
pub enum Command {
    Lost(Id),
    Halted,
    Leave,
    Depart,
    Complete,
    Figures(String),
    Called(Box<Result<Call, Error>>),
    /// The process at this address no longer coordinates the job.
    Moved(String),
    /// A member of the last epoch that this newcomer cannot reach, if there is one.
    Unreachable(Option<Id>),
    Quit,
}

/// Whether the thread continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    Over,
}

/// The thread and all that it owns.
pub struct Worker {
    member: Member,
    options: Options,
    shared: Arc<Shared>,
    sender: Sender<Command>,
    commands: Receiver<Command>,
    caller: Arc<Caller>,
    call: Option<Call>,
    /// Time of the last message of the coordinator, or of the last check whether it has been replaced.
    heard: Instant,
    /// Peers that seem lost, and the time at which this is reported.
    suspects: Vec<(Instant, Id)>,
    /// The last figures, which are sent again to a new coordinator.
    figures: Option<String>,
    /// The run has ended. This is reported after the suspects.
    has_halted: bool,
    /// Leavers of the epoch that ends.
    leavers: Vec<Id>,
    wants_to_leave: bool,
    /// Whether all steps are done. The thread tells the coordinator until it answers.
    is_complete: bool,
    /// The job ends.
    end: Option<End>,
    /// Time at which the run is aborted if the job is stopping and the process has not ended the run.
    stopping: Option<Instant>,
    participation: Participation,
    /// Time of the last check for members that cannot be reached; `None` while a check is under way.
    probed: Option<Instant>,
    /// Time zero of the state machine.
    base: Instant,
}

impl Worker {
    pub fn new(
        member: Member,
        options: Options,
        participation: Participation,
        shared: Arc<Shared>,
        caller: Arc<Caller>,
    ) -> Worker {
        let (sender, commands) = channel();
        Worker {
            member,
            options,
            participation,
            shared,
            sender,
            commands,
            caller,
            call: None,
            heard: Instant::now(),
            suspects: Vec::new(),
            figures: None,
            has_halted: false,
            leavers: Vec::new(),
            wants_to_leave: false,
            is_complete: false,
            end: None,
            stopping: None,
            probed: Some(Instant::now()),
            base: Instant::now(),
        }
    }

    /// Returns the sender of commands to this thread.
    pub fn sender(&self) -> Sender<Command> {
        self.sender.clone()
    }

    /// Continues with a connection on which the process was welcomed.
    pub fn connected(&mut self, call: Call) {
        self.shared.connected(Some(call.connection.waker()));
        let coordinator = call.coordinator;
        (self.call, self.heard) = (Some(call), Instant::now());
        self.on(MemberEvent::Coordinator(coordinator));
        if let Some(figures) = self.figures.clone() {
            self.send(&Request::Figures(figures));
        }
        if self.is_complete {
            self.send(&Request::Complete);
        }
    }

    /// Runs until the process has left or its membership is dropped.
    pub fn run(mut self) {
        while self.turn() == Flow::On {}
    }

    fn turn(&mut self) -> Flow {
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    if self.obey(command) == Flow::Over {
                        return Flow::Over;
                    }
                }
                Err(TryRecvError::Empty) => break,
                // Never: this thread has a sender, too.
                Err(TryRecvError::Disconnected) => return Flow::Over,
            }
        }
        self.let_time_pass();
        // A member without a deadline has left.
        if self.member.deadline() == Duration::MAX {
            self.farewell();
            return Flow::Over;
        }
        self.wait()
    }

    /// Waits for a message, a command or a deadline.
    fn wait(&mut self) -> Flow {
        let timeout = self.timeout();
        let Some(call) = &mut self.call else {
            return match self.commands.recv_timeout(timeout) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => Flow::On,
                // Never: this thread has a sender, too.
                Err(RecvTimeoutError::Disconnected) => Flow::Over,
            };
        };
        let coordinator = call.coordinator;
        match call.connection.receive(timeout).map(|found| found.map(|bytes| Reply::parse(&bytes)))
        {
            Ok(Some(Ok(reply))) => {
                self.heard = Instant::now();
                self.hear(coordinator, reply)
            }
            Ok(None) => Flow::On,
            // The sender of a malformed message is no coordinator any more.
            Ok(Some(Err(_))) | Err(_) => {
                self.disconnected();
                Flow::On
            }
        }
    }

    fn timeout(&self) -> Duration {
        let now = Instant::now();
        let tick = self.base.checked_add(self.member.deadline());
        let suspects = self.suspects.iter().map(|(at, _)| *at);
        let next = suspects.chain(tick).chain(self.stopping).min();
        next.map_or(WAIT_MAX, |next| next.saturating_duration_since(now)).min(WAIT_MAX)
    }

    fn let_time_pass(&mut self) {
        let now = Instant::now();
        let due: Vec<Id> =
            self.suspects.extract_if(.., |(at, _)| *at <= now).map(|(_, id)| id).collect();
        for id in self.shared.take_unreachable().into_iter().chain(due) {
            self.on(MemberEvent::Lost(id));
        }
        self.halt_if_told();
        if self.base.elapsed() >= self.member.deadline() {
            self.on(MemberEvent::Tick);
        }
        if self.stopping.is_some_and(|at| at <= now) {
            self.stopping = None;
            self.abort();
        }
        if self.call.is_some() && now > self.heard + self.options.silence {
            self.look();
        }
    }

    /// Checks whether a silent coordinator has been replaced. The connections of a coordinator whose process
    /// is stopped (SIGSTOP) stay open.
    fn look(&mut self) {
        // The next look is sooner than the first.
        self.heard += self.options.silence / 4;
        let (sender, address) = (self.sender.clone(), self.caller.address());
        self.caller.look(move || {
            // The membership may have been dropped.
            let _ = sender.send(Command::Moved(address));
        });
    }

    fn obey(&mut self, command: Command) -> Flow {
        match command {
            Command::Lost(id) => self.suspects.push((Instant::now() + GRACE, id)),
            Command::Halted => {
                self.has_halted = true;
                self.halt_if_told();
            }
            Command::Leave => {
                self.wants_to_leave = true;
                self.on(MemberEvent::Leave);
            }
            Command::Depart => self.go(),
            Command::Complete => {
                self.is_complete = true;
                self.send(&Request::Complete);
            }
            Command::Figures(json) => {
                self.figures = Some(json.clone());
                self.send(&Request::Figures(json));
            }
            Command::Called(answered) => match *answered {
                Ok(call) => self.connected(call),
                Err(error) => self.shared.refused(error),
            },
            Command::Moved(from) if from == self.caller.address() => self.disconnected(),
            // The look began before this process called the coordinator that it has now.
            Command::Moved(_) => {}
            Command::Unreachable(member) => {
                self.probed = Some(Instant::now());
                self.on(MemberEvent::Unreachable(member.into_iter().collect()));
            }
            Command::Quit => return Flow::Over,
        }
        Flow::On
    }

    /// Reports that the run has ended, after the peers that count as lost.
    fn halt_if_told(&mut self) {
        if !self.has_halted || !self.suspects.is_empty() {
            return;
        }
        self.has_halted = false;
        for id in self.shared.take_unreachable() {
            self.on(MemberEvent::Lost(id));
        }
        self.note_progress();
        self.shared.idle();
        let leavers = std::mem::take(&mut self.leavers);
        let members = self.member.epoch().map_or(&[][..], |epoch| &epoch.members);
        // Where all leave, the next epoch would keep them for their state, although nobody is there to take it over.
        let nobody_stays = !leavers.is_empty() && members.iter().all(|id| leavers.contains(id));
        self.on(MemberEvent::Halted);
        if self.end.is_some() || (self.wants_to_leave && nobody_stays) {
            self.go();
        }
    }

    /// Leaves without waiting for the coordinator.
    fn go(&mut self) {
        self.send(&Request::Member(Message::Bye));
        self.shared.left(match self.end {
            Some(End::Complete) => Left::Succeeded,
            Some(End::Stop) | None => Left::Alone,
        });
        // The state machine has no say any more.
        let _ = self.sender.send(Command::Quit);
        self.farewell();
    }

    fn hear(&mut self, coordinator: Id, reply: Reply) -> Flow {
        match reply {
            Reply::Member(message) => {
                if message == Message::Heard {
                    self.shared.unhindered();
                }
                self.on(MemberEvent::Message { from: coordinator, message });
            }
            Reply::End(end) => self.end(end),
            Reply::Refused(reason) => self.shared.refused(Error::refused(reason)),
            Reply::Welcome { .. }
            | Reply::Status(_)
            | Reply::Resized(_)
            | Reply::Views(_)
            | Reply::ViewsRefused(_) => {}
        }
        Flow::On
    }

    fn end(&mut self, end: End) {
        self.end = Some(end);
        self.shared.over();
        let Some(members) = self.shared.running() else { return self.go() };
        self.halt_if_following();
        // A process that still trains when all steps are done is about to finish them.
        if end == End::Stop {
            self.shared.finish(members);
            self.stopping = Some(Instant::now() + self.options.leave);
        }
    }

    fn on(&mut self, event: MemberEvent) {
        self.note_progress();
        let actions = self.member.on(event, self.base.elapsed());
        for action in actions {
            self.perform(action);
        }
    }

    /// Tells the state machine which steps were applied since the last call.
    fn note_progress(&mut self) {
        let done = self.shared.done.load(Ordering::Acquire);
        if done != NOTHING_DONE {
            self.member.on(MemberEvent::Applied { done }, self.base.elapsed());
        }
    }

    fn perform(&mut self, action: MemberAction) {
        match action {
            MemberAction::Send { to, message } => {
                if self.call.as_ref().is_some_and(|call| call.coordinator == to) {
                    self.send(&Request::Member(message));
                }
            }
            MemberAction::Run(epoch) => {
                self.leavers.clear();
                self.shared.start(epoch, self.participation);
            }
            MemberAction::Finish { leavers } => {
                self.leavers.clone_from(&leavers);
                self.shared.finish(leavers);
                self.halt_if_following();
            }
            MemberAction::Abort => self.abort(),
            MemberAction::Refused(Reason::Fingerprint { found, expected }) => {
                let reason = format!(
                    "ranks disagree on model, data or settings: this rank has fingerprint {found:016x}, the job has {expected:016x}"
                );
                self.shared.refused(Error::refused(reason));
            }
            MemberAction::Left => {
                let id = self.member.id();
                let is_member = self.member.epoch().is_some_and(|epoch| epoch.contains(id));
                self.shared.left(if is_member { Left::Alone } else { Left::Succeeded });
            }
            MemberAction::Refused(Reason::Full { target }) => {
                self.shared.hindered(event::spare(target), Duration::ZERO);
            }
            MemberAction::Refused(Reason::Waiting { wait }) => {
                let role = if self.member.id().is_server() { Role::Server } else { Role::Worker };
                self.shared.hindered(event::waiting(role, wait), OBSTACLE_LASTS);
            }
            MemberAction::Refused(Reason::Unreachable { member }) => self.probe(member),
            // A process that was refused for now or fenced asks to join again.
            MemberAction::Refused(_) | MemberAction::Fenced { .. } => {}
        }
    }

    /// Checks from time to time whether all members of the last epoch can be reached; this process is invited
    /// only if they can. Until the first check is over, the member that the coordinator names counts as
    /// unreachable.
    fn probe(&mut self, named: Id) {
        let is_due = self.probed.is_some_and(|at| at.elapsed() >= self.options.silence / 4);
        let Some(epoch) = self.member.epoch().filter(|_| is_due).cloned() else { return };
        let (sender, shared) = (self.sender.clone(), Arc::clone(&self.shared));
        let tell = move |member| {
            // The membership may have been dropped.
            let _ = sender.send(Command::Unreachable(member));
            shared.wake();
        };
        if self.shared.look(epoch, tell).is_ok() {
            self.probed = None;
            if self.member.lost().is_empty() {
                self.on(MemberEvent::Unreachable(vec![named]));
            }
        }
    }

    fn abort(&mut self) {
        // Peers that are told the same at the same time are not lost.
        self.suspects.clear();
        if self.shared.abort() {
            self.has_halted = true;
        }
        self.halt_if_following();
    }

    /// Notes that the run has ended, for a process that only follows the epochs and does not report it
    /// itself.
    fn halt_if_following(&mut self) {
        if self.participation == Participation::Follows {
            self.shared.run_ended();
            self.has_halted = true;
        }
    }

    fn send(&mut self, request: &Request) {
        let sent = self.call.as_mut().map(|call| call.connection.send(&request.to_bytes()));
        if let Some(Err(_)) = sent {
            self.disconnected();
        }
    }

    fn disconnected(&mut self) {
        let Some(call) = self.call.take() else { return };
        self.shared.connected(None);
        let sender = self.sender.clone();
        self.caller.call_until_answered(move |answered| {
            // The membership may have been dropped.
            let _ = sender.send(Command::Called(Box::new(answered)));
        });
        self.on(MemberEvent::Lost(call.coordinator));
    }

    /// Waits until the coordinator has read the last message, and closes the connection.
    fn farewell(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        let Some(mut call) = self.call.take() else { return };
        while let left = deadline.saturating_duration_since(Instant::now())
            && !left.is_zero()
            && call.connection.receive(left).is_ok()
        {}
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Nobody waits for a thread that has ended, however it did.
        self.shared.left(Left::Alone);
    }
}
