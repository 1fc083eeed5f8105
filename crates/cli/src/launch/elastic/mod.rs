//! The launcher of an elastic job: its coordinator, and the processes of its members on this machine.
//!
//! Members find each other through the coordinator, which decides who trains together. The launcher tells it
//! when a process has ended, and starts processes where members are missing. Members that are started by hand
//! may join too.

mod crew;
mod lead;
mod member;
mod servers;
mod supervisor;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process_group};
use thinwire_job::elastic::{self, Authority, Options, Seat};

use self::crew::Crew;
pub use self::lead::Lead;
use self::member::{Member, Program, Voice};
use self::servers::Servers;
pub use self::servers::job as with_servers;
pub use self::supervisor::Parting;
use self::supervisor::{Action, Event, Limits, Notice, Others, Supervisor, Verdict};
use super::errors::Errors;
use super::supervisor::{End, SIGKILL, SIGPIPE};
use super::{reserve_descriptors, watch_end, watch_signals};
use crate::failure::{self, hinted};
use crate::output::say;
use crate::place::token_or_fresh;
use crate::size::Elastic;

/// Longest wait for another launcher to tell how the job has ended.
const LAST_NEWS: Duration = Duration::from_secs(3);

/// News that reaches the launcher: of members and signals, of a server that has ended, or of the coordinator.
enum News {
    Local(Event),
    Server(u32, End),
    Told(elastic::Event),
}

/// Options of an elastic job: silence as THINWIRE_HEARTBEAT_TIMEOUT_S says, or two seconds.
///
/// # Errors
/// If the variable is not a time of at least one second.
pub fn options(authority: Authority, ranks: RangeInclusive<u32>) -> Result<Options> {
    let usual = Options::new(authority, *ranks.start(), *ranks.end());
    let silence = thinwire_job::silence(usual.silence, &thinwire_job::process)?;
    Ok(Options { silence, ..usual })
}

/// Runs a program as the members of an elastic job to its end, with the secret `token` or a fresh one, and
/// returns the code to exit with: 0, or 128 + signal if a signal ended it. `parting` is the manner in which a
/// signal to the launcher ends the members.
///
/// # Errors
/// If members cannot be started, or the job fails: which member, how, and what it said.
pub fn run(
    command: Vec<OsString>,
    job: &Elastic,
    token: Option<&String>,
    parting: Parting,
) -> Result<u8> {
    let (sender, news) = channel();
    let secret = match &job.store {
        // All launchers of a job have the same one.
        Some(_) => token.cloned().unwrap_or_default(),
        None => token_or_fresh(token)?,
    };
    // Only ranks that start here are certain to come.
    reserve_descriptors(job.here.min(*job.ranks.end()), job.servers)?;
    let told = sender.clone();
    let options = options(Authority::Saved, job.ranks.clone())?;
    let options = Options { silence: job.silence.unwrap_or(options.silence), ..options };
    let lead = Lead::begin(job, &secret, options, move |event| {
        // The launcher is gone only when the job is over.
        let _ = told.send(News::Told(event.clone()));
    })?;
    watch_signals(sender.clone(), |signal| News::Local(Event::Signal(signal)))?;
    say(invitation(job, &lead.address(), token.is_some_and(|token| !token.is_empty())));
    let limits = Limits {
        ranks: job.ranks.clone(),
        restarts: job.restarts,
        here: job.here,
        others: if lead.is_shared() { Others::May } else { Others::Shown },
        parting,
    };
    let (supervisor, actions) = Supervisor::begin(&limits, Instant::now());
    let of_servers = (job.servers, &job.server_arguments[..]);
    let ends = sender.clone();
    let servers = Servers::start(of_servers, (&lead.address(), &secret), move |number, end| {
        // The launcher is gone only when the job is over.
        let _ = ends.send(News::Server(number, end));
    })?;
    let mut launcher = Launcher {
        supervisor,
        program: Program { command, most: job.here },
        token: secret,
        lead,
        crew: Crew::default(),
        groups: Vec::new(),
        errors: Errors::create()?,
        voice: Voice::default(),
        sender,
        servers,
        replaces: job.replaces,
    };
    launcher.perform(actions)?;
    launcher.supervise(&news)?;
    launcher.hear_of_the_end(&news)?;
    launcher.verdict()
}

/// Returns the line that says how somebody else joins the job.
fn invitation(job: &Elastic, address: &str, is_token_known: bool) -> String {
    let (min, max) = (job.ranks.start(), job.ranks.end());
    let variable = elastic::VARIABLE;
    match is_token_known {
        true => format!(
            "elastic job of {min} to {max} ranks: another one joins with {variable}=new \
             THINWIRE_COORDINATOR={address} and the same THINWIRE_TOKEN"
        ),
        false => format!(
            "elastic job of {min} to {max} ranks at {address}: with a THINWIRE_TOKEN of your own \
             others could join it"
        ),
    }
}

/// State of a job, and all that acts on it.
struct Launcher {
    supervisor: Supervisor,
    program: Program,
    token: String,
    lead: Lead,
    crew: Crew,
    /// Process groups by number of the member, until it has ended.
    groups: Vec<Option<Pid>>,
    errors: Errors,
    voice: Voice,
    sender: Sender<News>,
    /// They end with the launcher.
    servers: Servers,
    /// Whether a replacement of a rank that died could take part, so that hints advise one.
    replaces: bool,
}

impl Launcher {
    fn supervise(&mut self, news: &Receiver<News>) -> Result<()> {
        while self.supervisor.is_running() {
            let next = match self.supervisor.deadline() {
                None => news.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(deadline) => {
                    news.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                }
            };
            match next {
                Ok(News::Local(event)) => self.on(event)?,
                // Servers end with the job, too.
                Ok(News::Server(..)) if self.supervisor.is_decided() => {}
                Ok(News::Server(number, end)) => self.servers.ended(number, end)?,
                Ok(News::Told(event)) => self.told(&event)?,
                Err(RecvTimeoutError::Timeout) => self.on(Event::Tick)?,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Waits for the news that the job is over: members of a job that another launcher coordinates may end
    /// before that launcher has told why.
    fn hear_of_the_end(&mut self, news: &Receiver<News>) -> Result<()> {
        let deadline = Instant::now() + LAST_NEWS;
        while self.lead.is_shared() && !self.supervisor.is_decided() {
            match news.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(News::Told(event)) => self.told(&event)?,
                Ok(News::Local(_) | News::Server(..)) => {}
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn on(&mut self, event: Event) -> Result<()> {
        if let Event::Ended { member, .. } = event {
            self.crew.ended(member);
            // Processes that it has left behind may hold its device.
            self.signal(member, SIGKILL);
            self.groups[member as usize] = None;
        }
        // A job that is told to end fails by what happens from then on.
        if matches!(event, Event::Signal(_)) && !self.supervisor.is_over() {
            self.forget_dead();
        }
        let actions = self.supervisor.on(event, Instant::now());
        self.perform(actions)
    }

    fn told(&mut self, event: &elastic::Event) -> Result<()> {
        let events = self.crew.note(&event.json);
        say(self.crew.named(&event.text));
        if let Some(first) = self.crew.first() {
            self.voice.give(first);
        }
        if events.iter().any(|event| matches!(event, Event::Epoch { .. })) {
            self.forget_dead();
        }
        events.into_iter().try_for_each(|event| self.on(event))
    }

    /// Forgets the errors of members that have died: the job has survived them.
    fn forget_dead(&self) {
        let dead = (0..).zip(&self.groups).filter(|(_, group)| group.is_none());
        dead.for_each(|(member, _)| self.errors.forget(member));
    }

    fn perform(&mut self, actions: Vec<Action>) -> Result<()> {
        for action in actions {
            match action {
                Action::Start { member } => self.start(member)?,
                Action::Bury { member } => self.lead.ended(self.crew.id(member)),
                Action::Dissolve => self.lead.stop(),
                Action::Signal { members, signal } => {
                    members.into_iter().for_each(|member| self.signal(member, signal));
                }
                Action::Kill => self.kill(),
                Action::Say(notice) => self.say(notice),
            }
        }
        Ok(())
    }

    fn start(&mut self, number: u32) -> Result<()> {
        let seat = Seat::new(self.lead.address(), self.token.clone())?;
        let slot = self.crew.start(seat.id);
        let error_file = self.errors.path(number);
        let mut child = self.program.start(&Member { number, seat, slot, error_file })?;
        self.groups.push(Some(Pid::from_child(&child)));
        let news = self.sender.clone();
        let unread = move || {
            let _ = news.send(News::Local(Event::Unread));
        };
        let outputs = member::forward(&mut child, number, &self.voice, unread);
        let events = self.sender.clone();
        watch_end(child, outputs, move |end| {
            // The launcher is gone only when the job is over.
            let _ = events.send(News::Local(Event::Ended { member: number, end }));
        });
        Ok(())
    }

    fn signal(&self, member: u32, signal: i32) {
        if let (Some(group), Some(signal)) =
            (self.groups[member as usize], Signal::from_named_raw(signal))
        {
            // A group that has ended cannot be signalled, and need not be.
            let _ = kill_process_group(group, signal);
        }
    }

    fn kill(&self) {
        for group in self.groups.iter().flatten() {
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }

    fn say(&self, notice: Notice) {
        if let Notice::Died { member, .. } = notice
            && let Some(message) = self.errors.message(member)
        {
            say(format!("member {member}: {message}"));
        }
        say(notice);
    }

    fn verdict(&self) -> Result<u8> {
        match self.supervisor.verdict() {
            Verdict::Done | Verdict::Interrupted(SIGPIPE) => Ok(0),
            Verdict::Interrupted(signal) => {
                self.errors.interrupted("member", signal, self.supervisor.started())
            }
            Verdict::Failed { member, end } => Err(self.failure((member, end))),
            Verdict::TooFew { have, min, cause } => Err(self.too_few((have, min), cause)),
        }
    }

    fn failure(&self, first: (u32, End)) -> Error {
        self.errors.failure("member", first, self.supervisor.started())
    }

    fn too_few(&self, (have, min): (u32, u32), cause: Option<(u32, End)>) -> Error {
        let left =
            if have == 1 { "1 rank is left".to_owned() } else { format!("{have} ranks are left") };
        let left = format!("{left}, expected at least {min}");
        let Some(cause) = cause else { return anyhow!("{left}: the others were told to leave") };
        let (message, hint) = failure::lines(&self.failure(cause));
        let replace = "--restarts N starts replacements for ranks that die".to_owned();
        let hints: Vec<String> = hint.into_iter().chain(self.replaces.then_some(replace)).collect();
        let error = anyhow!("{left}: {message}");
        if hints.is_empty() { error } else { hinted(error, hints.join("; ")) }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.kill();
    }
}
