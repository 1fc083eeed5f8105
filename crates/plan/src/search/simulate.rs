//! Plans played through: which of those that the closed form finds fast is fastest.
//!
//! The closed form of a step does not see where stages wait for each other. So of every plan all
//! orders of passes are kept that fit, and those that may be fastest are played. Of equal ones the
//! first candidate is taken, whichever thread found it.
//!
//! Law: no schedule of the candidate that was taken is faster than the one that was.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::candidate::Candidate;
use super::evaluate::{Evaluated, evaluate};
use super::outcome::{Outcome, simulated_s};
use super::overlap::Overlap;
use super::prepare::Prepared;
use super::settings::Settings;
use crate::cluster::Cluster;
use crate::cost::{Division, Sharding};

/// How many plans are played through at least, if there are so many, and at most.
const SIMULATED: Range<usize> = 20..200;

/// A plan that exceeds its bound by less than this factor is not tried with fewer choices.
const NEAR: f64 = 1.05;

/// How all parameters may be divided alike.
const ALIKE: [Sharding; 3] = [Sharding::None, Sharding::Optimizer, Sharding::Parameters];

/// The closed form exceeds what playing gives by less than this factor: it does not see that stages
/// which wait move their messages meanwhile, nor that late ones bring their gradients together.
const SLACK: f64 = 1.15;

/// The fastest plan that was found so far; of equal ones the first.
#[derive(Default)]
pub(super) struct Fastest(Mutex<Option<(f64, Candidate)>>);

impl Fastest {
    /// The seconds that a plan must stay below to take its place.
    pub fn enough_s(&self, candidate: &Candidate) -> f64 {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            None => f64::INFINITY,
            Some((seconds, first)) if candidate.before(first) == Ordering::Less => {
                seconds.next_up()
            }
            Some((seconds, _)) => *seconds,
        }
    }

    /// Its seconds.
    pub fn seconds(&self) -> f64 {
        let fastest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fastest.as_ref().map_or(f64::INFINITY, |(seconds, _)| *seconds)
    }

    /// A plan that was found.
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

/// Which of two plans comes first.
pub(super) fn order(one: &Outcome, other: &Outcome) -> Ordering {
    let by_candidate = || one.candidate.before(&other.candidate);
    one.seconds.total_cmp(&other.seconds).then_with(by_candidate)
}

/// The fastest order of passes of a plan, with the time that it takes when it is played through.
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

/// Plans played through, the fastest first; the closed form says in which order, and which are too
/// slow to be played.
pub(super) fn simulate_all(mut found: Vec<Outcome>, overlap: Overlap) -> Vec<Outcome> {
    found.sort_by(order);
    let mut best = f64::INFINITY;
    let mut count = 0;
    for outcome in &mut found {
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

/// The same candidate with all parameters divided alike, or with gradients as they are, and then with
/// strategies that are chosen for each of its schedules alone, where that is faster: what is divided
/// and encoded parameter by parameter is chosen after the strategies.
pub(super) fn refined(
    cluster: &Cluster,
    prepared: &Prepared,
    settings: &Settings,
    best: &Outcome,
) -> Outcome {
    let fastest = |best: (Outcome, Settings), others: Vec<(Candidate, Settings)>| {
        let enough_s = || SLACK * best.0.seconds;
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
    // What no choice goes below, fewer choices do not either.
    let far = best.seconds > NEAR * best.bound_s;
    let plainer = if far { plainer(&best.candidate, settings) } else { Vec::new() };
    let (best, settings) = fastest((best.clone(), settings.clone()), plainer);
    let families = settings.schedules(&best.candidate, prepared.of_block.len());
    let alone = families.into_iter().filter(|family| family.len() > 1).flatten();
    let alone = alone.map(|schedule| {
        let settings = Settings { schedule: Some(schedule), ..settings.clone() };
        (best.candidate.clone(), settings)
    });
    let alone = alone.collect();
    fastest((best, settings), alone).0
}

/// A candidate with fewer choices.
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
