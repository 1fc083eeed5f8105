//! Processes that the coordinator knows, with their last report.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Epoch, Id, Options, Report, Standing};

/// Process that has reported to the coordinator, or that its epoch names.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) heard: Duration,
    closed: Option<Duration>,
    /// Time from which on a restored coordinator no longer waits for this process if the epoch cannot
    /// continue.
    awaited: Option<Duration>,
    ended: bool,
    /// Time of its first join request since it was last a member.
    pub(super) asked: Duration,
    pub(super) report: Option<Report>,
    /// Numbers of the epochs that this process has reported in full.
    told: Option<(u32, u32)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    all: BTreeMap<Id, Peer>,
}

impl Peers {
    /// Adds a process that has not reported yet; its silence counts from `now`.
    pub(super) fn expect(&mut self, id: Id, now: Duration) -> &mut Peer {
        let new = Peer {
            heard: now,
            closed: None,
            awaited: None,
            ended: false,
            asked: now,
            report: None,
            told: None,
        };
        self.all.entry(id).or_insert(new)
    }

    /// Adds a member that is expected to come back. Its silence counts from `now`; if the epoch is broken, it
    /// is lost at `awaited`.
    pub(super) fn await_return(&mut self, id: Id, awaited: Duration, now: Duration) {
        self.expect(id, now).awaited = Some(awaited);
    }

    /// Stores a report; returns false if a newer one is known, or the process has ended.
    pub(super) fn hear(&mut self, id: Id, report: Report, now: Duration) -> bool {
        let peer = self.expect(id, now);
        let is_stale =
            peer.report.as_ref().is_some_and(|known| known.heartbeat >= report.heartbeat);
        if is_stale || peer.ended {
            return false;
        }
        let was_newcomer =
            peer.report.as_ref().is_some_and(|known| known.standing == Standing::Newcomer);
        if !was_newcomer {
            peer.asked = now;
        }
        if report.known.is_some() {
            peer.told = Some((report.epoch, report.accepted));
        }
        (peer.heard, peer.closed, peer.awaited) = (now, None, None);
        peer.report = Some(report);
        true
    }

    /// Returns whether this coordinator also knows the epochs that a process knows.
    pub(super) fn has_told(&self, id: Id) -> bool {
        self.all.get(&id).is_some_and(|peer| {
            let numbers = peer.report.as_ref().map(|report| (report.epoch, report.accepted));
            numbers == Some((0, 0)) || (numbers.is_some() && numbers == peer.told)
        })
    }

    pub(super) fn closed(&mut self, id: Id, now: Duration) {
        if let Some(peer) = self.all.get_mut(&id) {
            peer.closed.get_or_insert(now);
        }
    }

    /// Subtracts `late` from the silence of all, up to `now`.
    pub(super) fn excuse(&mut self, late: Duration, now: Duration) {
        // A time after `now` is a grace, and stays.
        let excused = |time: Duration| time.max((time + late).min(now));
        for peer in self.all.values_mut() {
            (peer.heard, peer.closed) = (excused(peer.heard), peer.closed.map(excused));
        }
    }

    pub(super) fn ended(&mut self, id: Id, now: Duration) {
        self.expect(id, now).ended = true;
    }

    pub(super) fn has_ended(&self, id: Id) -> bool {
        self.all.get(&id).is_some_and(|peer| peer.ended)
    }

    pub(super) fn report(&self, id: Id) -> Option<&Report> {
        self.all.get(&id)?.report.as_ref()
    }

    /// Returns whether a process is lost at time `now`: ended, silent, or without a connection for a heartbeat.
    pub(super) fn is_gone(&self, id: Id, options: &Options, now: Duration) -> bool {
        let Some(peer) = self.all.get(&id) else { return true };
        let is_closed = peer.closed.is_some_and(|closed| now > closed + options.heartbeat());
        peer.ended || is_closed || now > peer.heard + options.patience()
    }

    /// Returns whether a process has lost its connection and has not come back.
    pub(super) fn is_closed(&self, id: Id) -> bool {
        self.all.get(&id).is_some_and(|peer| peer.closed.is_some())
    }

    /// Returns whether a process is known to be dead at time `now`: it has ended, or its connection was
    /// closed `silence` ago and it has not come back. Silence alone shows nothing, since a process that is
    /// cut off closes no connection.
    pub(super) fn is_dead(&self, id: Id, silence: Duration, now: Duration) -> bool {
        let is_closed = |peer: &Peer| peer.closed.is_some_and(|closed| now > closed + silence);
        self.all.get(&id).is_some_and(|peer| peer.ended || is_closed(peer))
    }

    /// Returns whether a process did not come back in time to end a broken epoch.
    pub(super) fn is_overdue(&self, id: Id, now: Duration) -> bool {
        let awaited = self.all.get(&id).and_then(|peer| peer.awaited);
        awaited.is_some_and(|awaited| now >= awaited)
    }

    /// Returns the newcomers that are asking to join, in the order of their first join requests.
    pub(super) fn newcomers(&self, options: &Options, now: Duration) -> Vec<(Id, Duration)> {
        let is_newcomer = |peer: &Peer| {
            let report = peer.report.as_ref();
            report.is_some_and(|report| report.standing == Standing::Newcomer && !report.leaving)
        };
        let asking = self.all.iter().filter(|(_, peer)| is_newcomer(peer));
        let mut asking: Vec<_> = asking
            .filter(|(id, _)| !self.is_gone(**id, options, now))
            .map(|(id, peer)| (*id, peer.asked))
            .collect();
        asking.sort_by_key(|(id, asked)| (*asked, *id));
        asking
    }

    /// Forgets processes outside the epoch that have been silent for a long time.
    pub(super) fn prune(&mut self, now: Duration, silence: Duration, epoch: Option<&Epoch>) {
        // Long after its silence has had consequences (`is_gone`).
        self.all.retain(|id, peer| {
            now <= peer.heard + 4 * silence || epoch.is_some_and(|epoch| epoch.contains(*id))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CoordinatorMode, Member, MemberAction, MemberEvent, Message};

    const ID: Id = Id(1);

    /// Returns the first reports of a process that asks to join.
    fn reports(count: usize) -> Vec<Report> {
        let options = Options::new(CoordinatorMode::Saved, 1, 1);
        let mut member = Member::new(ID, options, 7);
        member.on(MemberEvent::Coordinator(Id(100)), Duration::ZERO);
        let heartbeats = (0..100).map(|heartbeat| heartbeat * options.silence);
        let said = heartbeats.flat_map(|now| member.on(MemberEvent::Tick, now));
        let report = |action| match action {
            MemberAction::Send { message: Message::Report(report), .. } => Some(report),
            _ => None,
        };
        said.filter_map(report).take(count).collect()
    }

    #[test]
    fn only_a_process_whose_connection_stays_closed_is_dead() {
        let (second, silence) = (Duration::from_secs(1), Duration::from_secs(2));
        let [first, again] = &reports(2)[..] else { panic!("two reports") };
        let mut peers = Peers::default();
        peers.hear(ID, first.clone(), Duration::ZERO);
        assert!(!peers.is_dead(ID, silence, 100 * second), "it may be cut off");
        peers.closed(ID, 100 * second);
        assert!(!peers.is_dead(ID, silence, 102 * second), "it may come back");
        assert!(peers.is_dead(ID, silence, 103 * second));
        peers.hear(ID, again.clone(), 103 * second);
        assert!(!peers.is_dead(ID, silence, 200 * second), "it came back");
        assert!(!peers.is_dead(Id(2), silence, 200 * second), "it was never there");
        peers.ended(ID, 200 * second);
        assert!(peers.is_dead(ID, silence, 200 * second));
    }
}
