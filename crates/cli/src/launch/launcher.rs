//! Starts, signals and ends the processes of a job on this machine, as the job's state machine decides.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGKILL, SIGPIPE};
use thinwire_job::elastic;
use thinwire_job::supervisor::{Action, End, Event, Limits, Notice, Supervisor, Verdict};

use super::elastic::Elastic;
use super::errors::{self, Errors};
use super::process::{self, CommandLine, Program, Variables};
use crate::failure;
use crate::output::{is_verbose, say};

/// Longest wait for another launcher to report the job's result.
const LAST_REPORT: Duration = Duration::from_secs(3);

/// Report sent to the launcher.
pub enum Report {
    /// Event of a process, or a signal.
    Local(Event),
    /// A server with this number has ended.
    Server(u32, End),
    /// Event reported by the coordinator.
    Told(elastic::Event),
}

/// Way in which the processes of a job find each other.
pub enum Job {
    /// Ranks that all need each other, with the variables that each of them gets.
    Fixed(Variables),
    /// Members of an elastic job.
    Elastic(Box<Elastic>),
}

/// Runs a program as the processes of a job until the job ends. Returns the exit code: 0, or 128 + signal if
/// a signal ended the job. `reports` receives the reports sent by `sender` and its clones.
///
/// # Errors
/// If processes cannot be started, or the job fails: the failed process, its exit and the error message of it
/// or its peers.
pub fn run(
    command: CommandLine,
    limits: Limits,
    job: Job,
    sender: Sender<Report>,
    reports: &Receiver<Report>,
) -> Result<u8> {
    let program = Program { command, most: limits.here };
    let (supervisor, starts) = Supervisor::begin(limits, Instant::now());
    let mut launcher = Launcher {
        errors: Errors::create(supervisor.word())?,
        supervisor,
        program,
        job,
        groups: Vec::new(),
        speaker: Arc::default(),
        sender,
    };
    launcher.perform(starts)?;
    launcher.supervise(reports)?;
    launcher.hear_of_the_end(reports)?;
    launcher.verdict()
}

/// State of a job, with all handles that are needed to act on it.
struct Launcher {
    supervisor: Supervisor,
    program: Program,
    job: Job,
    /// Process groups by number of the process. In an elastic job, an entry becomes `None` when the process
    /// has ended.
    groups: Vec<Option<Pid>>,
    errors: Errors,
    /// The process whose output goes to the launcher's own output.
    speaker: Arc<AtomicU32>,
    sender: Sender<Report>,
}

impl Launcher {
    fn supervise(&mut self, reports: &Receiver<Report>) -> Result<()> {
        while self.supervisor.is_running() {
            let wait = self.supervisor.deadline().map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            match reports.recv_timeout(wait) {
                Ok(report) => self.reported(report)?,
                // Reports do not end: this launcher holds a sender itself.
                Err(_) => self.on(Event::Tick)?,
            }
        }
        Ok(())
    }

    fn reported(&mut self, report: Report) -> Result<()> {
        match (report, &mut self.job) {
            (Report::Local(event), _) => self.on(event),
            // Servers end with the job, too.
            (Report::Server(number, end), Job::Elastic(job)) if !self.supervisor.is_decided() => {
                job.servers.ended(number, end)
            }
            (Report::Told(event), Job::Elastic(_)) => self.told(&event),
            (Report::Server(..) | Report::Told(_), _) => Ok(()),
        }
    }

    /// Waits for the report that the job has ended. It is needed because members of a job that another
    /// launcher coordinates may end before that launcher has reported the result.
    fn hear_of_the_end(&mut self, reports: &Receiver<Report>) -> Result<()> {
        let deadline = Instant::now() + LAST_REPORT;
        while let Job::Elastic(job) = &self.job
            && job.coordinator.is_shared()
            && !self.supervisor.is_decided()
        {
            match reports.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Report::Told(event)) => self.told(&event)?,
                Ok(Report::Local(_) | Report::Server(..)) => {}
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn on(&mut self, event: Event) -> Result<()> {
        // A job that is told to end fails by what happens from then on.
        if matches!(event, Event::Signal(_)) && !self.supervisor.is_over() {
            self.forget_dead();
        }
        if let Event::Ended { member, .. } = event {
            self.clear(member);
        }
        let is_failure = matches!(event, Event::Ended { end, .. } if end != End::Code(0));
        let actions = self.supervisor.on(event, Instant::now());
        self.perform(actions)?;
        let stopped = if is_failure { self.stopped() } else { Vec::new() };
        stopped.into_iter().try_for_each(|member| self.on(Event::Stopped { member }))
    }

    /// Ends processes that a member has left running, because they may use its device.
    fn clear(&mut self, member: u32) {
        if let Job::Elastic(job) = &mut self.job {
            job.children.ended(member);
            self.signal(member, SIGKILL);
            self.groups[member as usize] = None;
        }
    }

    fn told(&mut self, event: &elastic::Event) -> Result<()> {
        let Job::Elastic(job) = &mut self.job else { return Ok(()) };
        let events = job.children.note(&event.json);
        say(job.children.named(&event.text));
        if let Some(first) = job.children.first() {
            self.speaker.store(first, Ordering::Relaxed);
        }
        if events.iter().any(|event| matches!(event, Event::Epoch { .. })) {
            self.forget_dead();
        }
        events.into_iter().try_for_each(|event| self.on(event))
    }

    /// Removes the errors of members that have died, because the job has survived them.
    fn forget_dead(&self) {
        let dead = (0..).zip(&self.groups).filter(|(_, group)| group.is_none());
        dead.for_each(|(member, _)| self.errors.forget(member));
    }

    fn perform(&mut self, actions: Vec<Action>) -> Result<()> {
        for action in actions {
            match (action, &self.job) {
                (Action::Start { member }, _) => self.start(member)?,
                (Action::Lost { member }, Job::Elastic(job)) => {
                    job.coordinator.ended(job.children.id(member));
                }
                (Action::Dismiss, Job::Elastic(job)) => job.coordinator.stop(),
                (Action::Signal { members, signal }, _) => {
                    members.into_iter().for_each(|member| self.signal(member, signal));
                }
                (Action::Say(notice), _) => self.say(&notice),
                // Ranks of a fixed job have no coordinator.
                (Action::Lost { .. } | Action::Dismiss, Job::Fixed(_)) => {}
            }
        }
        Ok(())
    }

    fn start(&mut self, number: u32) -> Result<()> {
        let variables = match &mut self.job {
            Job::Fixed(shared) => {
                let places = ["RANK", "LOCAL_RANK"].map(|name| (name, number.to_string()));
                [&shared[..], &places[..]].concat()
            }
            Job::Elastic(job) => job.variables(number)?,
        };
        let mut command = self.program.start(variables, &self.errors.path(number))?;
        // Rank 0 of a fixed job has the launcher's own terminal.
        if number > 0 || matches!(self.job, Job::Elastic(_)) {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let word = self.supervisor.word();
        let mut child = command.spawn().with_context(|| format!("starting {word} {number}"))?;
        self.groups.push(Some(Pid::from_child(&child)));
        if is_verbose() {
            say(format!("{word} {number} is process {}", child.id()));
        }
        // The launcher is gone only when the job is over.
        let (unread, ends) = (self.sender.clone(), self.sender.clone());
        let prefix = format!("[{word} {number}] ");
        let outputs = process::forward(&mut child, number, prefix, &self.speaker, move || {
            drop(unread.send(Report::Local(Event::Unread)));
        });
        process::watch_end(child, outputs, move |end| {
            drop(ends.send(Report::Local(Event::Ended { member: number, end })));
        });
        Ok(())
    }

    /// Returns the processes that a signal has suspended, if the system reports it.
    fn stopped(&self) -> Vec<u32> {
        let is_stopped = |group: &Option<Pid>| {
            let Some(group) = group else { return false };
            let path = format!("/proc/{}/stat", group.as_raw_nonzero());
            let stat = std::fs::read_to_string(path).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['T', 't']))
        };
        let stopped = (0..).zip(&self.groups).filter(|(_, group)| is_stopped(group));
        stopped.map(|(member, _)| member).collect()
    }

    fn signal(&self, member: u32, signal: i32) {
        let group = self.groups.get(member as usize).copied().flatten();
        if let (Some(group), Some(signal)) = (group, Signal::from_named_raw(signal)) {
            // A group that has ended cannot be signalled, and need not be.
            let _ = kill_process_group(group, signal);
        }
    }

    fn say(&self, notice: &Notice) {
        if let Notice::Died { member, .. } = notice
            && let Some(message) = self.errors.message(*member)
        {
            say(format!("member {member}: {message}"));
        }
        say(notice);
    }

    fn verdict(&self) -> Result<u8> {
        let started = self.supervisor.started();
        match self.supervisor.verdict() {
            Verdict::Done | Verdict::Interrupted(SIGPIPE) => Ok(0),
            Verdict::Interrupted(signal) => self.errors.interrupted(signal, started),
            Verdict::Failed { member, end } => Err(self.errors.failure(member, end, started)),
            Verdict::TooFew { have, min, cause } => {
                let cause = cause.map(|(member, end)| self.errors.failure(member, end, started));
                Err(self.too_few(have, min, cause))
            }
        }
    }

    fn too_few(&self, have: u32, min: u32, cause: Option<Error>) -> Error {
        let left =
            if have == 1 { "1 rank is left".to_owned() } else { format!("{have} ranks are left") };
        let left = format!("{left}, expected at least {min}");
        let Some(cause) = cause else { return anyhow!("{left}: the others were told to leave") };
        let (message, hint) = failure::lines(&cause);
        let replaces = matches!(&self.job, Job::Elastic(job) if job.replaces);
        let replace = "--restarts N starts replacements for ranks that die".to_owned();
        let hints = hint.into_iter().chain(replaces.then_some(replace));
        errors::advised(format!("{left}: {message}"), hints.collect())
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        (0..self.supervisor.started()).for_each(|member| self.signal(member, SIGKILL));
    }
}
