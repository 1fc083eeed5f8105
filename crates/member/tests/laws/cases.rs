//! Single faults in calm networks, with the times that users are promised.

use std::time::Duration;

use thinwire_member::{CoordinatorMode, Gone, Id, Note, Options, Wait};
use thinwire_testkit::net::{Fault, Weather};

use crate::job::Job;
use crate::worker::{Packet, Setup, Worker};

const S: Duration = Duration::from_secs(1);
const MODES: [CoordinatorMode; 2] = [CoordinatorMode::Saved, CoordinatorMode::Unsaved];

/// Node of the first worker; node 0 is the coordinator.
const FIRST: usize = 1;

/// A job of `workers` ranks that has trained for a while.
fn job(mode: CoordinatorMode, workers: usize, min: u32) -> Job {
    let options = Options::new(mode, min, workers as u32);
    let mut job = Job::new(Setup { options, seed: 7, nodes: workers + FIRST }, Weather::calm());
    job.run(3 * S);
    assert!(job.is_whole(), "{mode:?}");
    assert_eq!(job.ledger.records.len(), 1, "all ranks of a new job start together");
    job
}

fn number(job: &Job) -> u32 {
    job.ledger.latest().unwrap().number
}

fn size(job: &Job) -> usize {
    job.ledger.latest().unwrap().members.len()
}

fn id(job: &Job, node: usize) -> Id {
    job.net.node(node).unwrap().id()
}

/// Time until a step of a later epoch of `size` ranks is applied.
fn recovery(job: &mut Job, ranks: usize) -> Duration {
    let (before, now) = (number(job), job.net.now());
    let trains = |job: &Job| {
        let latest = job.ledger.latest().unwrap();
        let has_stepped =
            |worker: &Worker| worker.trains() == Some(latest.number) && worker.done > latest.done;
        latest.number > before && latest.members.len() == ranks && job.workers().any(has_stepped)
    };
    job.run_until(now + 60 * S, trains).expect("it recovers")
}

fn gone(job: &Job) -> Vec<Gone> {
    let started = job.ledger.notes.iter().filter_map(|note| match note {
        Note::Started { gone, .. } => Some(gone.iter().map(|(_, why)| *why)),
        _ => None,
    });
    started.flatten().collect()
}

#[test]
fn survivors_of_a_killed_rank_step_within_a_second() {
    for mode in MODES {
        let mut job = job(mode, 4, 1);
        job.fault(Fault::Kill(FIRST + 2));
        assert!(recovery(&mut job, 3) < S, "{mode:?}");
        assert_eq!(gone(&job), [Gone::Closed]);
        job.fault(Fault::Boot(FIRST + 2));
        assert!(recovery(&mut job, 4) < 2 * S, "{mode:?}: it joins again");
    }
}

#[test]
fn two_ranks_killed_at_once_are_one_change() {
    for mode in MODES {
        let mut job = job(mode, 4, 1);
        job.fault(Fault::Kill(FIRST + 1));
        job.fault(Fault::Kill(FIRST + 3));
        assert!(recovery(&mut job, 2) < S, "{mode:?}");
    }
}

#[test]
fn silence_of_two_seconds_is_noticed_within_three() {
    for mode in MODES {
        for fault in [Fault::Pause, Fault::PowerOff] {
            let mut job = job(mode, 4, 1);
            job.fault(fault(FIRST + 2));
            assert!(recovery(&mut job, 3) < 3 * S, "{mode:?}");
        }
    }
}

#[test]
fn a_process_or_a_link_that_is_back_within_two_seconds_changes_nothing() {
    for mode in MODES {
        for node in 0..4 {
            for pause in [S, S * 3 / 2, S * 19 / 10] {
                let mut job = job(mode, 4, 1);
                job.fault(Fault::Pause(node));
                job.net.fault(job.net.now() + pause, Fault::Resume(node));
                job.run(job.net.now() + 10 * S);
                assert_eq!(number(&job), 1, "{mode:?}: node {node} was stopped for {pause:?}");
                assert!(job.is_whole());
            }
        }
    }
}

/// Cuts the links between two groups of nodes, and none of the others.
fn cut(job: &mut Job, groups: [&[usize]; 2]) {
    for (a, b) in groups[0].iter().flat_map(|a| groups[1].iter().map(move |b| (*a, *b))) {
        job.fault(Fault::Cut { from: a, to: b });
        job.fault(Fault::Cut { from: b, to: a });
    }
}

#[test]
fn of_two_sides_that_reach_the_coordinator_one_goes_on_at_once() {
    for mode in MODES {
        let sides: [(&[usize], &[usize], u32); 4] = [
            (&[1, 2], &[3, 4], 1),
            (&[1, 3], &[2, 4], 2),
            (&[1, 4], &[2, 3, 5], 3),
            (&[2], &[1, 3, 4], 1),
        ];
        for (one, other, min) in sides {
            let workers = one.len() + other.len();
            let mut job = job(mode, workers, min);
            let oldest = job.ledger.latest().unwrap().members[0];
            cut(&mut job, [one, other]);
            let has_oldest = one.iter().any(|node| id(&job, *node) == oldest);
            let is_first = one.len() > other.len() || (one.len() == other.len() && has_oldest);
            let side = if is_first { one } else { other };
            let time = recovery(&mut job, side.len());
            assert!(time < 6 * S, "{mode:?} {one:?}: {time:?}");
            let mut expected: Vec<Id> = side.iter().map(|node| id(&job, *node)).collect();
            expected.sort();
            let mut members = job.ledger.latest().unwrap().members.clone();
            members.sort();
            assert_eq!(members, expected, "{mode:?} {one:?}");
            let (cut, epoch) = (job.net.now(), number(&job));
            job.run(cut + 60 * S);
            assert_eq!(number(&job), epoch, "nobody is invited who cannot reach all");
            job.fault(Fault::Heal);
            let whole = job.run_until(cut + 63 * S, |job| job.is_whole() && size(job) == workers);
            assert!(whole.is_some());
        }
    }
}

#[test]
fn a_stopped_rank_is_fenced_and_comes_back() {
    for mode in MODES {
        let mut job = job(mode, 3, 1);
        job.fault(Fault::Pause(FIRST + 1));
        recovery(&mut job, 2);
        assert_eq!(gone(&job), [Gone::Silent]);
        job.fault(Fault::Resume(FIRST + 1));
        assert!(recovery(&mut job, 3) < 10 * S, "{mode:?}");
        assert!(job.run_until(job.net.now() + 5 * S, Job::is_whole).is_some());
    }
}

#[test]
fn of_a_cut_pair_one_goes_and_comes_back_when_the_link_does() {
    for mode in MODES {
        let mut job = job(mode, 4, 1);
        let (a, b) = (FIRST + 1, FIRST + 2);
        job.fault(Fault::Cut { from: a, to: b });
        job.fault(Fault::Cut { from: b, to: a });
        assert!(recovery(&mut job, 3) < 6 * S, "{mode:?}");
        assert_eq!(gone(&job), [Gone::Cut]);
        let cut = job.net.now();
        job.run(cut + 30 * S);
        assert!(number(&job) < 14, "the pair is tried again less and less often");
        job.fault(Fault::Heal);
        assert!(job.run_until(cut + 120 * S, |job| job.is_whole() && size(job) == 4).is_some());
    }
}

#[test]
fn training_goes_on_without_the_coordinator_and_no_step_is_lost() {
    for mode in MODES {
        let mut job = job(mode, 4, 1);
        job.fault(Fault::Kill(0));
        job.run(5 * S);
        let before = job.ledger.steps;
        job.run(15 * S);
        assert!(job.ledger.steps > before + 200, "{mode:?}: it trains meanwhile");
        job.fault(Fault::Boot(0));
        job.run(25 * S);
        assert_eq!(number(&job), 1, "{mode:?}: its return changes nothing");
        assert_eq!(job.net.node(0).unwrap().roster().unwrap().waiting(), None);
        job.fault(Fault::Kill(3));
        assert!(recovery(&mut job, 3) < S, "{mode:?}: it decides again");
    }
}

#[test]
fn a_coordinator_without_state_waits_for_more_than_half() {
    let mut job = job(CoordinatorMode::Unsaved, 4, 1);
    for node in [0, 1, 2] {
        job.fault(Fault::Kill(node));
    }
    job.fault(Fault::Boot(0));
    job.run(20 * S);
    assert_eq!(number(&job), 1);
    let waiting = job.net.node(0).unwrap().roster().unwrap().waiting();
    assert_eq!(waiting, Some(Wait::Quorum { have: 2, need: 3 }));
}

#[test]
fn a_saved_coordinator_goes_on_with_any_survivor() {
    let mut job = job(CoordinatorMode::Saved, 4, 1);
    for node in [0, 1, 2, 3] {
        job.fault(Fault::Kill(node));
    }
    job.net.fault(job.net.now() + S, Fault::Boot(0));
    assert!(recovery(&mut job, 1) < 5 * S);
}

#[test]
fn fewer_than_the_least_wait_and_say_so() {
    for mode in MODES {
        let mut job = job(mode, 4, 3);
        job.fault(Fault::Kill(FIRST + 2));
        job.fault(Fault::Kill(FIRST + 3));
        job.run(10 * S);
        assert_eq!(number(&job), 1, "{mode:?}");
        assert!(job.ledger.waits.contains(&Wait::Members { have: 2, min: 3 }), "{mode:?}");
        job.fault(Fault::Boot(FIRST + 3));
        assert!(recovery(&mut job, 3) < 2 * S, "{mode:?}");
    }
}

#[test]
fn a_leaver_goes_after_a_whole_step() {
    for mode in MODES {
        for place in [0, 3] {
            let mut job = job(mode, 4, 1);
            job.order(FIRST + place, Packet::Leave);
            assert!(recovery(&mut job, 3) < S, "{mode:?}");
            assert_eq!(gone(&job), [Gone::Left]);
            let latest = job.ledger.latest().unwrap();
            assert_eq!(latest.state_sources, 3, "{mode:?}: all stopped after one step");
            job.run(job.net.now() + 5 * S);
            assert!(job.net.node(FIRST + place).is_none());
        }
    }
}

#[test]
fn a_job_is_made_smaller_and_larger_while_it_trains() {
    for mode in MODES {
        let mut job = job(mode, 4, 1);
        job.order(0, Packet::Resize(2));
        assert!(recovery(&mut job, 2) < S, "{mode:?}");
        assert_eq!(gone(&job), [Gone::Resized; 2]);
        let kept = [id(&job, FIRST), id(&job, FIRST + 1)];
        let oldest: Vec<Id> = job.ledger.records[&1].epoch.members[..2].to_vec();
        assert_eq!(job.ledger.latest().unwrap().members, oldest, "{mode:?} {kept:?}");
        job.run(job.net.now() + 5 * S);
        assert_eq!(size(&job), 2, "{mode:?}: the others are spares");
        job.order(0, Packet::Resize(4));
        assert!(recovery(&mut job, 4) < S, "{mode:?}");
        job.order(0, Packet::Resize(9));
        job.run(job.net.now() + S);
        assert_eq!(size(&job), 4, "{mode:?}: a size beyond the limits is refused");
    }
}

#[test]
fn a_spare_takes_the_place_of_a_lost_rank() {
    let options = Options::new(CoordinatorMode::Saved, 1, 3);
    let mut job = Job::new(Setup { options, seed: 7, nodes: 5 }, Weather::calm());
    job.run(3 * S);
    assert!(job.is_whole() && size(&job) == 3);
    let lost = job.ledger.latest().unwrap().members[2];
    job.fault(Fault::Kill(crate::worker::node_of(lost)));
    assert!(recovery(&mut job, 3) < S);
}

#[test]
fn without_holders_all_resume_from_the_checkpoint_and_that_is_said() {
    let mut job = job(CoordinatorMode::Saved, 2, 2);
    for node in [FIRST, FIRST + 1] {
        job.fault(Fault::Kill(node));
        job.net.fault(job.net.now() + S, Fault::Boot(node));
    }
    let time = recovery(&mut job, 2);
    assert!(time > job.setup.options.resume, "holders are waited for: {time:?}");
    let is_said = |note: &Note| matches!(note, Note::Rewound { to: None, .. });
    assert!(job.ledger.notes.iter().any(is_said), "{:?}", job.ledger.notes);
}

/// Changes of membership.
fn changes() -> [Option<Packet>; 4] {
    [Some(Packet::Resize(1)), Some(Packet::Resize(2)), Some(Packet::Leave), None]
}

/// Cuts the nodes whose bits are set in `side` off, `events` events after a change has begun, for five
/// seconds, and kills the coordinator half of the time.
fn interrupted(mode: CoordinatorMode, change: &Option<Packet>, (side, events): (u64, usize)) {
    let mut job = job(mode, 4, 1);
    match change {
        Some(Packet::Leave) => job.order(FIRST + 1, Packet::Leave),
        Some(packet) => job.order(0, packet.clone()),
        None => job.fault(Fault::Kill(FIRST + 1)),
    }
    job.run_events(events);
    let cut = job.net.now();
    job.fault(Fault::Split { side });
    if events % 2 == 1 {
        job.net.fault(cut + 2 * S, Fault::Kill(0));
        job.net.fault(cut + 3 * S, Fault::Boot(0));
    }
    job.net.fault(cut + 5 * S, Fault::Heal);
    job.run(cut + 5 * S);
    let end = job.run_until(cut + 40 * S, |job| job.is_whole() || job.waits_rightly());
    assert!(end.is_some(), "{mode:?} {change:?} {side:#b} {events}");
}

#[test]
fn a_partition_after_any_event_of_a_change_splits_nothing() {
    for mode in MODES {
        for side in [0b1, 0b11, 0b101, 0b110] {
            for (change, events) in changes().iter().flat_map(|it| (0..180).map(move |n| (it, n))) {
                interrupted(mode, change, (side, events));
            }
        }
    }
}
