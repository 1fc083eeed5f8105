//! Simulation of the plans that the closed form finds fast, to find the fastest.
//!
//! The closed form of a step does not include the time in which stages wait for each other. So each plan
//! also keeps its other schedules that fit, and those that may be the fastest are simulated. Of equally
//! fast plans, the plan of the first candidate is taken, whichever thread found it.
//!
//! Law: no schedule of the chosen candidate is faster than the chosen schedule.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::{Candidate, Evaluated, Outcome, Overlap, Prepared, Settings, evaluate, simulated_s};
use crate::Cluster;
use crate::cost::{Division, Sharding};

/// Least and largest number of plans to simulate, if there are enough plans.
const SIMULATED: Range<usize> = 20..200;

/// Factor over its bound from which on a plan is tried with fewer choices.
const NEAR: f64 = 1.05;

/// Ways to shard all parameters alike. ZeRO 2 is left out: `evaluate` tries it where memory is short.
const ALIKE: [Sharding; 3] = [Sharding::None, Sharding::Optimizer, Sharding::Parameters];

/// Largest ratio of the closed form to the simulation: the closed form does not see that waiting stages move
/// their messages, nor that late stages synchronise gradients, in the meantime.
pub(super) const SLACK: f64 = 1.15;

/// Fastest plan found so far; of equally fast ones, the first candidate's.
#[derive(Default)]
pub(super) struct Fastest(Mutex<Option<(f64, Candidate)>>);

impl Fastest {
    /// Returns the seconds that a plan of `candidate` must stay below to become the fastest.
    pub fn enough_s(&self, candidate: &Candidate) -> f64 {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            None => f64::INFINITY,
            Some((seconds, first)) if candidate.before(first) == Ordering::Less => {
                seconds.next_up()
            }
            Some((seconds, _)) => *seconds,
        }
    }

    /// Returns the seconds of the fastest plan.
    pub fn seconds(&self) -> f64 {
        let fastest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fastest.as_ref().map_or(f64::INFINITY, |(seconds, _)| *seconds)
    }

    /// Records a plan that was found.
    pub fn meet(&self, candidate: &Candidate, seconds: f64) {
        let mut fastest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let faster = fastest.as_ref().is_none_or(|(known, first)| {
            seconds.total_cmp(known).then_with(|| candidate.before(first)) == Ordering::Less
        });
        if faster {
            *fastest = Some((seconds, candidate.clone()));
        }
    }
}

/// Orders plans by time, then by candidate.
pub(super) fn order(one: &Outcome, other: &Outcome) -> Ordering {
    let by_candidate = || one.candidate.before(&other.candidate);
    one.seconds.total_cmp(&other.seconds).then_with(by_candidate)
}

/// Simulates a plan under all its schedules and keeps the fastest.
pub(super) fn simulate_schedules(outcome: &mut Outcome, overlap: Overlap) {
    let other_schedules = std::mem::take(&mut outcome.other_schedules);
    outcome.seconds = simulated_s(outcome, overlap).unwrap_or(outcome.seconds);
    for mut other in other_schedules {
        if other.seconds < SLACK * outcome.seconds {
            other.seconds = simulated_s(&other, overlap).unwrap_or(other.seconds);
            if other.seconds < outcome.seconds {
                *outcome = other;
            }
        }
    }
}

/// Simulates plans in the order of their closed forms and returns them with the fastest first.
/// Plans that are too slow to become the fastest are dropped.
pub(super) fn simulate_all(mut found: Vec<Outcome>, overlap: Overlap) -> Vec<Outcome> {
    found.sort_by(order);
    let mut best = f64::INFINITY;
    let mut count = 0;
    for outcome in &mut found {
        // Beyond the least number, only plans that may become the fastest are worth a simulation.
        let needed = outcome.seconds < SLACK * best && count < SIMULATED.end;
        if !needed && count >= SIMULATED.start {
            break;
        }
        simulate_schedules(outcome, overlap);
        best = best.min(outcome.seconds);
        count += 1;
    }
    found.truncate(count);
    found.sort_by(order);
    found
}

/// Returns the plan, or a faster one of the same candidate: first with all parameters sharded alike or raw
/// gradients, and then with strategies chosen for a single schedule. Sharding and codecs per parameter are
/// chosen after the strategies, so a plan with fewer choices may be faster.
pub(super) fn refined(
    cluster: &Cluster,
    prepared: &Prepared,
    settings: &Settings,
    best: &Outcome,
    enough_s: f64,
) -> Outcome {
    let fastest = |best: (Outcome, Settings), others: Vec<(Candidate, Settings)>| {
        let enough_s = || SLACK * best.0.seconds.min(enough_s);
        let of = |(candidate, settings): (Candidate, Settings)| match evaluate(
            cluster, prepared, &candidate, &settings, &enough_s,
        ) {
            Evaluated::Found(mut outcome) => {
                simulate_schedules(&mut outcome, settings.overlap);
                Some((*outcome, settings))
            }
            _ => None,
        };
        let found: Vec<_> = others.into_par_iter().map(of).collect();
        let faster = |best: (Outcome, Settings), one: (Outcome, Settings)| {
            if one.0.seconds < best.0.seconds { one } else { best }
        };
        found.into_iter().flatten().fold(best, faster)
    };
    // Fewer choices cannot beat the bound, so a plan near it has little to gain.
    let far = best.seconds > NEAR * best.bound_s;
    let plainer = if far { plainer(&best.candidate, settings) } else { Vec::new() };
    let (best, settings) = fastest((best.clone(), settings.clone()), plainer);
    // The strategies of a family of one schedule were chosen for it alone already.
    let families = settings.schedules(&best.candidate, prepared.of_block.len());
    let alone = families.into_iter().filter(|family| family.len() > 1).flatten();
    let alone = alone.map(|schedule| {
        let settings = Settings { schedule: Some(schedule), ..settings.clone() };
        (best.candidate.clone(), settings)
    });
    let alone = alone.collect();
    fastest((best, settings), alone).0
}

/// Returns a candidate with fewer choices.
fn plainer(candidate: &Candidate, settings: &Settings) -> Vec<(Candidate, Settings)> {
    let each = candidate.division == Division::Each;
    let alike = ALIKE.iter().filter(|_| each).map(|sharding| {
        let division = Division::Alike(*sharding);
        (Candidate { division, ..candidate.clone() }, settings.clone())
    });
    let raw = (!settings.codings.is_empty()).then(|| {
        let settings = Settings { codings: Vec::new(), ..settings.clone() };
        (candidate.clone(), settings)
    });
    alike.chain(raw).collect()
}
