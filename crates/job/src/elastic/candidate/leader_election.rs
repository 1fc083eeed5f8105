//! The thread of a candidate. It leads the job or follows the leader, and switches between the two.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::HostedCoordinator;
use crate::elastic::coordinator::Coordinator;
use crate::elastic::envelope::End;
use crate::elastic::etcd::{Directory, Failure, Leader, Leadership, Novice, Upkeep, is_refused};
use crate::elastic::event::Event;
use crate::elastic::operator::Operator;
use crate::elastic::persistence::Persistence;
use crate::elastic::views::Job;
use crate::error::Error;

/// Pause between two checks of the store or of the coordinator.
const PAUSE: Duration = Duration::from_millis(300);
/// Pause between two checks of a process that is about to lead, or of whether this one still leads.
const SHORT: Duration = Duration::from_millis(50);
/// Pause before the next check whether a process has ended.
const MOMENT: Duration = Duration::from_millis(10);
/// Time within which a coordinator answers a follower.
const TIMEOUT: Duration = Duration::from_secs(2);

type Tell = Arc<Mutex<dyn FnMut(&Event) + Send>>;

/// State of the thread.
pub struct LeaderElection {
    directory: Directory,
    /// Address at which a coordinator here listens, and the token.
    place: Place,
    job: Job,
    hosted: Arc<HostedCoordinator>,
    tell: Tell,
    novice: Novice,
    is_storeless: bool,
    seen: Seen,
}

/// State of the job that this process has reported last.
#[derive(Debug, Default)]
struct Seen {
    leader: Option<String>,
    epoch: u64,
    target: Option<u64>,
    is_over: bool,
}

/// Reason why this process no longer leads, or does not lead yet.
enum Setback {
    Store(Failure),
    Here(Error),
}

impl From<Failure> for Setback {
    fn from(failure: Failure) -> Setback {
        Setback::Store(failure)
    }
}

/// Address and token with which a process hosts the coordinator while it leads.
pub struct Place {
    /// Address that the coordinator listens on, as host:port.
    pub listen: String,
    pub token: String,
}

impl LeaderElection {
    pub fn new(
        directory: Directory,
        place: Place,
        job: Job,
        hosted: Arc<HostedCoordinator>,
        tell: Tell,
    ) -> LeaderElection {
        let seen = Seen::default();
        let (novice, is_storeless) = (Novice::Yes, false);
        LeaderElection { directory, place, job, hosted, tell, novice, is_storeless, seen }
    }

    /// Leads and follows until the candidate is dropped.
    pub fn run(mut self) {
        while !self.hosted.is_over() {
            let turn = self.turn();
            match turn {
                Ok(()) => self.store_answers(),
                Err(Setback::Store(failure)) => {
                    self.store_fails(&failure);
                    self.pause(PAUSE);
                }
                Err(Setback::Here(error)) => {
                    self.say(&Event::idle(&error.to_string()));
                    // Longer, so that a candidate that can host the coordinator leads in its place.
                    self.pause(TIMEOUT);
                }
            }
        }
    }

    fn turn(&mut self) -> Result<(), Setback> {
        match self.directory.leader()? {
            Some(Leader { address: None, .. }) => self.pause(SHORT),
            Some(leader) => self.follow(&leader)?,
            None => {
                if let Some(leadership) = Leadership::take(&self.directory)? {
                    self.lead(leadership)?;
                }
            }
        }
        Ok(())
    }

    /// Hosts the coordinator for as long as this process leads.
    fn lead(&mut self, mut leadership: Leadership) -> Result<(), Setback> {
        let registry = leadership.registry(self.novice)?;
        self.novice = Novice::No;
        let persistence = Persistence::to(registry);
        let over = persistence.over();
        let tell = Arc::clone(&self.tell);
        let tell = Box::new(move |event: &Event| (tell.lock().expect("no holder panics"))(event));
        let Place { listen, token } = &self.place;
        let coordinator = Coordinator::begin(listen, token, &mut self.job, persistence, tell)
            .map_err(Setback::Here)?;
        let address = coordinator.address();
        *self.hosted.lock() = Some(coordinator);
        let published = leadership.publish(&address);
        // If another process leads, or the store is away, the coordinator ends before anybody knows its address.
        if let Ok(true) = published {
            self.say(&Event::leading(&address));
            self.tell_end(over);
            self.keep(&mut leadership);
        }
        // Members connect to the next coordinator once this one has let go of them.
        let coordinator = self.hosted.lock().take();
        drop(coordinator);
        // Whoever leads next is told of, even at the address that was known before this process led.
        self.seen.leader = None;
        published?;
        Ok(())
    }

    /// Keeps the leadership alive until it is lost or the candidate is dropped.
    fn keep(&mut self, leadership: &mut Leadership) {
        let held = leadership.held();
        let mut due = Instant::now() + leadership.period();
        while !self.hosted.is_over() {
            // The coordinator has noticed this when it saved its state, and has told people.
            if held.is_lost() {
                return;
            }
            if Instant::now() >= due {
                match leadership.keep() {
                    Ok(Upkeep::Held) => self.store_answers(),
                    Ok(Upkeep::Lost) => {
                        let place = self.directory.place();
                        return self.say(&Event::deposed(&place));
                    }
                    // Without the store nobody else can lead.
                    Err(failure) => self.store_fails(&failure),
                }
                due = Instant::now() + leadership.period();
            }
            self.pause(SHORT);
        }
    }

    /// Watches the coordinator of another process for as long as that process leads.
    fn follow(&mut self, leader: &Leader) -> Result<(), Setback> {
        let Some(address) = &leader.address else { return Ok(()) };
        let Ok(mut operator) = Operator::connect(address, &self.place.token, TIMEOUT) else {
            self.pause(PAUSE);
            return Ok(());
        };
        self.novice = Novice::No;
        self.store_answers();
        if self.seen.leader.as_ref() != Some(address) {
            self.seen.leader = Some(address.clone());
            self.say(&Event::following(address));
        }
        while let Ok(status) = operator.status() {
            self.look(&status);
            if self.hosted.is_over() {
                return Ok(());
            }
            if operator.wait(PAUSE).is_err() {
                break;
            }
        }
        self.depose_if_dead(leader, address)
    }

    /// Deposes a leader if its process has ended before its lease has run out. It checks for a while,
    /// because the listener of a process may end a little after its connections.
    fn depose_if_dead(&mut self, leader: &Leader, address: &str) -> Result<(), Setback> {
        let until = Instant::now() + PAUSE;
        while !self.hosted.is_over() && Instant::now() < until {
            if is_refused(address) {
                return Ok(self.directory.depose(leader)?);
            }
            self.pause(MOMENT);
        }
        Ok(())
    }

    /// Reports what has changed in the job, according to the status of its coordinator.
    fn look(&mut self, status: &str) {
        // Only lines for people follow from the status, so one that cannot be read is passed over.
        let Ok(status) = serde_json::from_str::<Value>(status) else { return };
        let number = |name: &str| status[name].as_u64();
        let ids = status["members"].as_array().into_iter().flatten();
        let members: Vec<String> =
            ids.filter_map(|member| member["id"].as_str()).map(str::to_owned).collect();
        if let Some(epoch) = number("epoch").filter(|epoch| *epoch > self.seen.epoch) {
            self.seen.epoch = epoch;
            self.say(&Event::seen(epoch, number("step").unwrap_or(0), &members));
        }
        let target = number("target").and_then(|target| u32::try_from(target).ok());
        // A new job has its largest number of ranks as its target, which is no news.
        if let Some(target) = target
            && self.seen.target.replace(target.into()).unwrap_or(self.job.workers.max.into())
                != u64::from(target)
        {
            self.say(&Event::resized(target));
        }
        self.tell_end(match status["end"].as_str() {
            Some("complete") => Some(End::Complete),
            Some(_) => Some(End::Stop),
            None => None,
        });
    }

    fn tell_end(&mut self, end: Option<End>) {
        if let Some(end) = end.filter(|_| !self.seen.is_over) {
            self.seen.is_over = true;
            self.say(&Event::over(end));
        }
    }

    fn store_fails(&mut self, failure: &Failure) {
        if !std::mem::replace(&mut self.is_storeless, true) {
            self.say(&Event::storeless(&failure.to_string()));
        }
    }

    fn store_answers(&mut self) {
        if std::mem::replace(&mut self.is_storeless, false) {
            let place = self.directory.place();
            self.say(&Event::stored(&place));
        }
    }

    fn say(&self, event: &Event) {
        (self.tell.lock().expect("no holder panics"))(event);
    }

    /// Waits, unless the candidate is dropped meanwhile.
    fn pause(&self, time: Duration) {
        if !self.hosted.is_over() {
            thread::park_timeout(time);
        }
    }
}
