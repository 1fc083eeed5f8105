//! Training of one epoch: hand-over of the state, then steps that need every member.

use std::collections::BTreeMap;
use std::time::Duration;

use thinwire_member::{Epoch, Id};
use thinwire_testkit::net::Random;

/// Message of the training.
#[derive(Clone, Debug)]
pub enum Data {
    /// State of a state source.
    State { epoch: u32, done: u64, hash: u64 },
    /// Share of a step's sum, made from the state `hash`.
    Share { epoch: u32, step: u64, hash: u64, is_last: bool },
    /// Heartbeat of a link.
    Ping { epoch: u32 },
}

impl Data {
    pub fn epoch(&self) -> u32 {
        match self {
            Data::State { epoch, .. } | Data::Share { epoch, .. } | Data::Ping { epoch } => *epoch,
        }
    }
}

/// Time after which a member that is missing counts as lost, as [`Options::link_silence`] has it.
///
/// [`Options::link_silence`]: thinwire_member::Options::link_silence
const STALL: Duration = Duration::from_secs(4);

/// What a training wants its worker to do.
#[derive(Default)]
pub struct Output {
    pub sends: Vec<(Id, Data)>,
    pub synced: Option<(u64, u64)>,
    pub applied: Option<(u64, u64)>,
    pub has_finished: bool,
    pub lost: Vec<Id>,
}

struct Share {
    from: Id,
    step: u64,
    is_last: bool,
}

pub struct Training {
    me: Id,
    pub epoch: Epoch,
    is_synced: bool,
    done: u64,
    hash: u64,
    /// When the gradient of the next step is ready; none once it was sent, or before the state is here.
    ready: Option<Duration>,
    must_finish: bool,
    /// Whether the share that was sent for this step says that it is the last.
    said_last: bool,
    shares: Vec<Share>,
    progress: Duration,
    /// When each other member was last heard.
    heard: BTreeMap<Id, Duration>,
    /// When the next heartbeat is due.
    ping: Duration,
}

impl Training {
    pub fn new(
        me: Id,
        epoch: Epoch,
        (done, hash): (u64, u64),
        now: Duration,
        output: &mut Output,
    ) -> Training {
        let is_synced = epoch.has_state(me) || epoch.state_sources == 0;
        if is_synced {
            output.synced = Some((done, hash));
        }
        if let Some(place) = epoch.place(me).filter(|_| epoch.has_state(me)) {
            let state_sources = epoch.state_sources as usize;
            let heirs = epoch.members.iter().enumerate().skip(state_sources);
            for (_, to) in heirs.filter(|(heir, _)| heir % state_sources == place) {
                output.sends.push((*to, Data::State { epoch: epoch.number, done, hash }));
            }
        }
        let heard = epoch.members.iter().filter(|id| **id != me).map(|id| (*id, now)).collect();
        let ready = is_synced.then(|| now + Duration::from_millis(60));
        Training {
            me,
            epoch,
            is_synced,
            done,
            hash,
            ready,
            must_finish: false,
            said_last: false,
            shares: Vec::new(),
            progress: now,
            heard,
            ping: now + STALL / 5,
        }
    }

    pub fn finish(&mut self) {
        self.must_finish = true;
    }

    pub fn deadline(&self) -> Duration {
        let next = self.ping.min(self.progress + STALL);
        self.ready.map_or(next, |ready| ready.min(next))
    }

    pub fn receive(&mut self, from: Id, data: Data, now: Duration, output: &mut Output) {
        self.heard.insert(from, now);
        match data {
            Data::Ping { .. } => {}
            Data::State { done, hash, .. } if !self.is_synced => {
                (self.is_synced, self.done, self.hash) = (true, done, hash);
                (self.ready, self.progress) = (Some(now + Duration::from_millis(60)), now);
                output.synced = Some((done, hash));
            }
            Data::State { .. } => {}
            Data::Share { step, hash, is_last, .. } => {
                if self.is_synced && step == self.done + 1 {
                    assert_eq!(
                        hash, self.hash,
                        "{from:?} and {:?} share step {step} from other states",
                        self.me
                    );
                }
                if !self.shares.iter().any(|share| share.from == from && share.step == step) {
                    self.shares.push(Share { from, step, is_last });
                }
                self.apply(now, output);
            }
        }
    }

    pub fn tick(&mut self, now: Duration, random: &mut Random, output: &mut Output) {
        if now >= self.ping {
            self.ping = now + STALL / 5;
            let ping = Data::Ping { epoch: self.epoch.number };
            output.sends.extend(self.heard.keys().map(|to| (*to, ping.clone())));
        }
        if self.ready.is_some_and(|ready| now >= ready) {
            (self.ready, self.said_last) = (None, self.must_finish);
            let (epoch, step) = (self.epoch.number, self.done + 1);
            let share = Data::Share { epoch, step, hash: self.hash, is_last: self.said_last };
            let peers = self.epoch.members.iter().filter(|id| **id != self.me);
            output.sends.extend(peers.map(|to| (*to, share.clone())));
            self.apply(now, output);
            // Ranks compute for unequal times.
            if let Some(ready) = &mut self.ready {
                *ready += Duration::from_nanos(random.below(80_000_000));
            }
        } else if now >= self.progress + STALL {
            output.lost = self.silent(now);
            if output.lost.is_empty() {
                output.lost.extend(self.missing());
            }
            self.progress = now;
        }
    }

    /// Members whose links are silent by now, or will be before long.
    pub fn silent(&self, now: Duration) -> Vec<Id> {
        let is_silent = |heard: &Duration| now >= *heard + STALL * 3 / 4;
        self.heard.iter().filter(|(_, heard)| is_silent(heard)).map(|(id, _)| *id).collect()
    }

    fn missing(&self) -> Option<Id> {
        let has_share = |id: &Id| {
            self.shares.iter().any(|share| share.from == *id && share.step == self.done + 1)
        };
        let others = || self.epoch.members.iter().copied().filter(|id| *id != self.me);
        match self.is_synced {
            true => others().find(|id| !has_share(id)),
            false => {
                let place = self.epoch.place(self.me).expect("it is a member");
                Some(self.epoch.members[place % self.epoch.state_sources as usize])
            }
        }
    }

    /// Applies the next step if all shares of it are here and the own one was sent.
    fn apply(&mut self, now: Duration, output: &mut Output) {
        let step = self.done + 1;
        let of_step = || self.shares.iter().filter(|share| share.step == step);
        let is_whole = of_step().count() + 1 == self.epoch.members.len();
        if !self.is_synced || self.ready.is_some() || !is_whole {
            return;
        }
        let is_last = self.said_last || of_step().any(|share| share.is_last);
        self.shares.retain(|share| share.step > step);
        self.done = step;
        self.hash = mixed(self.hash, self.epoch.number, step);
        (self.ready, self.progress) = (Some(now + Duration::from_millis(60)), now);
        output.applied = Some((self.done, self.hash));
        output.has_finished = is_last;
    }
}

fn mixed(hash: u64, epoch: u32, step: u64) -> u64 {
    Random::new(hash ^ u64::from(epoch) << 40 ^ step).bits()
}
