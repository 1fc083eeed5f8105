//! Random faults of one schedule.

use std::time::Duration;

use thinwire_member::{CoordinatorMode, Options};
use thinwire_testkit::net::{Fault, Random, Weather};

use crate::job::Job;
use crate::worker::{Packet, Setup};

/// Time after all faults have ended within which the job must be whole.
const RECOVERY: Duration = Duration::from_secs(30);
/// Time after which a job that cannot continue must say so.
const PATIENCE: Duration = Duration::from_secs(15);

fn setup(seed: u64, random: &mut Random) -> Setup {
    let mode = [CoordinatorMode::Saved, CoordinatorMode::Unsaved][seed as usize % 2];
    let workers = 2 + random.below(4);
    let min = 1 + random.below(workers.min(3)) as u32;
    let max = if random.chance(0.2) { workers as u32 - 1 } else { workers as u32 };
    let mut options = Options::new(mode, min, max.max(min));
    options.quarantine_max = Duration::from_secs(4);
    options.resume = Duration::from_secs(3);
    options.leave = Duration::from_secs(5);
    Setup { options, seed, nodes: 1 + workers as usize }
}

fn weather(random: &mut Random) -> Weather {
    let calm = Weather::calm();
    match random.below(4) {
        0 => Weather { loss: 0.05, duplication: 0.05, ..calm },
        1 => Weather {
            lateness: 0.05,
            late: Duration::from_millis(random.range(10..2000)),
            duplication: 0.02,
            ..calm
        },
        2 => Weather { delay: Duration::from_millis(1)..Duration::from_millis(60), ..calm },
        _ => calm,
    }
}

fn fault(job: &mut Job, at: Duration, random: &mut Random) {
    let nodes = job.setup.nodes as u64;
    let node = random.below(nodes) as usize;
    let later = at + Duration::from_millis(random.range(20..3000));
    let mut plan = |at, fault| job.net.fault(at, fault);
    match random.below(13) {
        0 | 1 => plan(at, Fault::Kill(node)),
        2 => plan(at, Fault::PowerOff(node)),
        3 => plan(at, Fault::Falter { node, after: random.below(4) as usize }),
        4 | 5 => {
            plan(at, Fault::Pause(node));
            plan(later, Fault::Resume(node));
        }
        6 | 7 => {
            let other = random.below(nodes) as usize;
            plan(at, Fault::Cut { from: node, to: other });
            if random.chance(0.7) {
                plan(at, Fault::Cut { from: other, to: node });
            }
        }
        8 | 9 => plan(at, Fault::Split { side: random.bits() }),
        10 => plan(at, Fault::Heal),
        11 => job.net.order(at, node, Packet::Leave),
        _ => {
            let packet = Packet::Resize(1 + random.below(nodes) as u32);
            (0..nodes as usize).for_each(|node| job.net.order(at, node, packet.clone()));
        }
    }
    if random.chance(0.6) {
        job.net.fault(later, Fault::Boot(node));
    }
}

/// Ends all faults.
fn heal(job: &mut Job) {
    job.fault(Fault::Weather(Weather::calm()));
    job.fault(Fault::Heal);
    for node in 0..job.setup.nodes {
        job.fault(Fault::Resume(node));
        if !job.directory.borrow().left[node] {
            job.fault(Fault::Boot(node));
            // A node that was to falter does so at its next event.
            job.net.fault(job.net.now() + Duration::from_millis(300), Fault::Boot(node));
        }
    }
}

/// Builds a job, lets faults happen to it, and ends them.
fn afflicted(seed: u64) -> Job {
    let mut random = Random::new(seed);
    let setup = setup(seed, &mut random);
    let mut job = Job::new(setup, weather(&mut random));
    if std::env::var_os("THINWIRE_SEED").is_some() {
        job.record();
    }
    let end = Duration::from_millis(random.range(1500..5000));
    let mut at = Duration::ZERO;
    for _ in 0..random.range(1..7) {
        // Faults that follow each other closely meet a change in all of its phases.
        at = if at > Duration::ZERO && random.chance(0.4) {
            at + random.time(&(Duration::ZERO..Duration::from_millis(10)))
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

/// End of a schedule.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// All that want to train do.
    Whole,
    /// Too few are left, and the coordinator says so.
    Waits,
}

/// Checks all laws over the schedule of one seed.
pub fn roster_laws(seed: u64) -> (Job, End) {
    let mut job = afflicted(seed);
    let start = job.net.now();
    let is_over =
        |job: &Job| job.is_whole() || (job.net.now() > start + PATIENCE && job.waits_rightly());
    if job.run_until(start + RECOVERY, is_over).is_none() {
        panic!("the job does not recover: {}", describe(&job));
    }
    let end = if job.is_whole() { End::Whole } else { End::Waits };
    (job, end)
}

pub fn describe(job: &Job) -> String {
    let mut text = format!("{:?}\n{}", job.setup, job.net.trace());
    for node in 0..job.setup.nodes {
        let Some(worker) = job.net.node(node) else {
            text += &format!("node {node} is down\n");
            continue;
        };
        let member = worker.member();
        text += &format!(
            "node {node} {:?} done {} trains {:?} leaving {} {:?} roster {:?}\n",
            worker.id(),
            worker.done,
            worker.trains(),
            worker.is_leaving(),
            member,
            worker.roster(),
        );
    }
    text
}
