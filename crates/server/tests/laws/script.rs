//! Schedules of random faults.

use std::time::Duration;

use thinwire_server::{Consistency, Options};
use thinwire_testkit::net::{Fault, Random, Weather};

use crate::job::{Job, Setup};
use crate::node::{COORDINATOR, Packet, SILENCE};

/// Time after the end of all faults within which the job must be whole.
const RECOVERY: Duration = Duration::from_secs(3);

fn setup(seed: u64, random: &mut Random) -> Setup {
    let consistency = match seed % 4 {
        0 => Consistency::Sync,
        1 => Consistency::Async,
        _ => Consistency::Bounded(1 + random.below(3) as u32),
    };
    let mut options = Options::new(consistency);
    options.beat = Duration::from_millis(3);
    options.uncommitted_max = 1 + random.below(4);
    let servers = 2 + random.below(3) as usize;
    let copies = (1 + random.below(3) as usize).clamp(2, servers);
    Setup { options, seed, servers, workers: 1 + random.below(3) as usize, copies }
}

fn weather(random: &mut Random) -> Weather {
    let calm = Weather::calm();
    match random.below(4) {
        0 => Weather { loss: 0.05, duplication: 0.05, ..calm },
        1 => Weather {
            lateness: 0.05,
            late: Duration::from_millis(random.range(1..40)),
            duplication: 0.02,
            ..calm
        },
        2 => Weather { delay: Duration::from_micros(100)..Duration::from_millis(4), ..calm },
        _ => calm,
    }
}

fn fault(job: &mut Job, at: Duration, random: &mut Random) {
    let nodes = job.setup.nodes() as u64;
    let node = random.below(nodes) as usize;
    let server = 1 + random.below(job.setup.servers as u64) as usize;
    let later = at + Duration::from_millis(random.range(1..60));
    let mut plan = |at, fault| job.net.fault(at, fault);
    match random.below(14) {
        0 | 1 => plan(at, Fault::Kill(server)),
        2 => plan(at, Fault::PowerOff(node)),
        3 => plan(at, Fault::Falter { node: server, after: random.below(4) as usize }),
        4 | 5 => {
            plan(at, Fault::Pause(node));
            plan(later, Fault::Resume(node));
        }
        6 | 7 => {
            let other = random.below(nodes) as usize;
            plan(at, Fault::Cut { from: node, to: other });
            if random.chance(0.5) {
                plan(at, Fault::Cut { from: other, to: node });
            }
        }
        8 => plan(at, Fault::Split { side: random.bits() }),
        // A server that reaches everybody except the coordinator.
        9 => {
            plan(at, Fault::Cut { from: server, to: COORDINATOR });
            plan(at, Fault::Cut { from: COORDINATOR, to: server });
        }
        10 => plan(at, Fault::Heal),
        11 => silence_servers(job, at, random),
        _ => job.net.order(at, COORDINATOR, Packet::Move),
    }
    if random.chance(0.7) {
        job.net.fault(later, Fault::Boot(node));
        job.net.fault(later, Fault::Boot(server));
    }
}

/// Silences all servers for longer than the coordinator waits: they stop, or only the coordinator cannot reach them.
fn silence_servers(job: &mut Job, at: Duration, random: &mut Random) {
    for server in 1..=job.setup.servers {
        let end = at + SILENCE + Duration::from_millis(random.range(5..60));
        if random.chance(0.5) {
            job.net.fault(at, Fault::Pause(server));
            job.net.fault(end, Fault::Resume(server));
        } else {
            job.net.fault(at, Fault::Cut { from: server, to: COORDINATOR });
            job.net.fault(end, Fault::Heal);
        }
    }
}

/// Ends all faults, and ends the workers after their next push.
fn heal(job: &mut Job) {
    job.fault(Fault::Weather(Weather::calm()));
    job.fault(Fault::Heal);
    let now = job.net.now();
    for node in 0..job.setup.nodes() {
        job.fault(Fault::Resume(node));
        job.fault(Fault::Boot(node));
        // A node that was scheduled to fail does so at its next event.
        job.net.fault(now + Duration::from_millis(20), Fault::Boot(node));
    }
    job.order_workers(now + Duration::from_millis(60), &Packet::Stop);
}

/// Returns a job that has been through random faults, all ended.
fn afflicted(seed: u64) -> Job {
    let mut random = Random::new(seed);
    let setup = setup(seed, &mut random);
    let mut job = Job::new(setup, weather(&mut random));
    if std::env::var_os("THINWIRE_SEED").is_some() {
        job.net.record();
    }
    let end = Duration::from_millis(random.range(40..160));
    let mut at = Duration::ZERO;
    for _ in 0..random.range(1..7) {
        // Faults in quick succession hit a change in each of its phases.
        at = if at > Duration::ZERO && random.chance(0.6) {
            at + random.time(&(Duration::ZERO..Duration::from_millis(6)))
        } else {
            random.time(&(Duration::ZERO..end))
        };
        at = at.min(end - Duration::from_nanos(1));
        fault(&mut job, at, &mut random);
    }
    job.run(end);
    heal(&mut job);
    job
}

/// Outcome of a schedule.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// All copies exist and are equal, and all workers have finished.
    Whole,
    /// All replicas of a view were killed.
    Lost,
}

/// Checks all laws over the schedule of one seed.
pub fn shard_laws(seed: u64) -> (Job, End) {
    let mut job = afflicted(seed);
    let start = job.net.now();
    // Nodes that were scheduled to fail have done so by then.
    job.run(start + Duration::from_millis(30));
    let is_over = |job: &Job| job.is_whole() || job.is_lost();
    if job.run_until(start + RECOVERY, is_over).is_none() {
        panic!("the shard does not recover: {}", job.describe());
    }
    if job.is_lost() {
        return (job, End::Lost);
    }
    job.check_copies();
    (job, End::Whole)
}
