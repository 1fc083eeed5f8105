//! Robust plans: those that do well whatever befalls the cluster.
//!
//! Plans are looked for in the calm case and in every scenario's network, and all that are found
//! are timed in all scenarios. A plan is timed as it is: same stages, same cuts, with what is
//! encoded chosen anew. A device that is slower holds up its whole stage, and the worst stage is
//! taken. Where a unit is lost, the plan goes on with the parts of the outer mesh dimension that
//! are left, if that dimension cuts batches alone, or is planned anew for the devices that are left,
//! whichever is faster.
//!
//! Members of a level stand in the order that the fastest calm plan wants, and no other is tried.
//!
//! No plan's worst case is below the largest of the bounds of the calm case and of the scenarios'
//! networks, whatever the order of members.

use rayon::prelude::*;

use super::chain::Chain;
use super::evaluation::Evaluation;
use super::outcome::{Outcome, simulated_s};
use super::scenario::{Scenario, unit};
use super::settings::{Recompute, costs};
use super::spread::Spread;
use super::{Found, Planner};
use crate::Error;
use crate::cluster::Cluster;

/// What the case is called in which nothing befalls.
const CALM: &str = "calm";

/// What is made as small as can be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// The longest step of all scenarios.
    Worst,
    /// The mean of the longest steps, of which together this is the probability.
    Tail(f64),
}

/// A robust plan beside the fastest one.
#[derive(Clone, Debug)]
pub struct Robust {
    /// The cluster with its members in the order in which plans were looked for.
    pub cluster: Cluster,
    /// The search in the calm case, with the robust plan as the best.
    pub found: Found,
    /// What was made small.
    pub measure: Measure,
    /// The calm case first: what it is called, its probability, and the seconds of a step of the
    /// robust plan and of the one that is fastest in the calm case.
    pub rows: Vec<(String, f64, [f64; 2])>,
    /// No plan's worst case is below these seconds, which is no plan's step in this case.
    pub bound: (String, f64),
}

impl Robust {
    /// The measure of the robust plan, and of the one that is fastest in the calm case.
    pub fn measures(&self) -> [f64; 2] {
        [0, 1].map(|place| {
            let rows: Vec<_> =
                self.rows.iter().map(|(_, part, both)| (*part, both[place])).collect();
            self.measure.of(&rows)
        })
    }
}

impl Measure {
    /// The measure of probabilities with seconds.
    pub fn of(self, rows: &[(f64, f64)]) -> f64 {
        let mut rows = rows.to_vec();
        rows.sort_by(|a, b| b.1.total_cmp(&a.1));
        match self {
            Measure::Worst => rows.first().map_or(0.0, |(_, seconds)| *seconds),
            Measure::Tail(tail) => {
                let mut left = tail;
                let mut sum = 0.0;
                for (probability, seconds) in rows.iter().filter(|(part, _)| *part > 0.0) {
                    let part = probability.min(left);
                    sum += part * seconds;
                    left -= part;
                }
                sum / (tail - left).max(f64::MIN_POSITIVE)
            }
        }
    }
}

/// The plan whose measure over the calm case and all scenarios is least.
///
/// # Errors
/// As [`Planner::plan`].
pub fn robust(
    planner: &mut Planner,
    cluster: &Cluster,
    scenarios: &[Scenario],
    measure: Measure,
) -> Result<Robust, Error> {
    let (cluster, calm) = planner.placed(cluster)?;
    let mut pool = vec![calm.best.clone()];
    pool.extend(calm.others.iter().cloned());
    let mut bound = (CALM.to_owned(), calm.bound_s);
    let mut anew = Vec::new();
    for scenario in scenarios {
        let links = scenario.links(&cluster);
        if links != cluster && scenario.lost == 0 {
            let found = planner.plan(&links)?;
            let bound_s = planner.bound_of_orders_s(&links, found.bound_s)?;
            if bound_s > bound.1 {
                bound = (scenario.name.clone(), bound_s);
            }
            pool.extend([found.best].into_iter().chain(found.others));
        }
        let left = (scenario.lost > 0).then(|| scenario.survivors(&cluster)).flatten();
        let planned = left.and_then(|left| planner.plan(&left).ok());
        anew.push(planned.map_or(f64::INFINITY, |found| found.best.seconds));
    }
    let times = times(planner, &cluster, &pool, scenarios, &anew)?;
    let likely: f64 = scenarios.iter().map(|scenario| scenario.probability).sum();
    let parts = scenarios.iter().map(|scenario| scenario.probability);
    let parts: Vec<f64> = std::iter::once((1.0 - likely).max(0.0)).chain(parts).collect();
    let best = least(&times, &parts, measure);
    let names = std::iter::once(CALM).chain(scenarios.iter().map(|one| one.name.as_str()));
    let both = times[best].iter().zip(&times[0]).map(|(robust, calm)| [*robust, *calm]);
    let rows = names.map(str::to_owned).zip(parts).zip(both);
    let rows: Vec<_> = rows.map(|((name, part), both)| (name, part, both)).collect();
    // It may come from a search where links are others.
    let Outcome { stages, shares, rounds, .. } = staged(planner, &cluster, &pool[best])?;
    let plan = Outcome { stages, shares, rounds, seconds: times[best][0], ..pool[best].clone() };
    let found = Found { best: plan, ..calm };
    Ok(Robust { cluster, found, measure, rows, bound })
}

/// For every plan its seconds in the calm case and in every scenario.
fn times(
    planner: &Planner,
    cluster: &Cluster,
    pool: &[Outcome],
    scenarios: &[Scenario],
    anew: &[f64],
) -> Result<Vec<Vec<f64>>, Error> {
    let timed = |outcome: &Outcome| {
        let calm_s = played_s(planner, staged(planner, cluster, outcome)?, &|_| 1.0);
        let cases = scenarios.iter().zip(anew);
        let all =
            cases.map(|(scenario, anew_s)| under(planner, cluster, outcome, scenario, *anew_s));
        std::iter::once(Ok(calm_s)).chain(all).collect()
    };
    pool.par_iter().map(timed).collect()
}

/// The plan whose measure is least; of those that are as good, the fastest in the calm case.
fn least(times: &[Vec<f64>], parts: &[f64], measure: Measure) -> usize {
    let value = |times: &Vec<f64>| {
        let rows: Vec<_> = parts.iter().copied().zip(times.iter().copied()).collect();
        (measure.of(&rows), times[0])
    };
    let values: Vec<(f64, f64)> = times.iter().map(value).collect();
    let order = |a: &usize, b: &usize| {
        let (a, b) = (values[*a], values[*b]);
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    };
    (0..times.len()).min_by(order).unwrap_or(0)
}

/// Seconds of a plan's step in a scenario, in which planning anew gives `anew_s`.
fn under(
    planner: &Planner,
    cluster: &Cluster,
    outcome: &Outcome,
    scenario: &Scenario,
    anew_s: f64,
) -> Result<f64, Error> {
    let left = match scenario.lost {
        0 => 1.0,
        lost => match left(planner, cluster, outcome, lost) {
            Some(left) => left,
            None => return Ok(anew_s),
        },
    };
    let staged = staged(planner, &scenario.links(cluster), outcome)?;
    let stages = if scenario.slower > 1.0 { staged.stages.len() } else { 1 };
    let with_slow = |slow: usize| {
        let scale = |stage: usize| if stage == slow { scenario.slower / left } else { 1.0 / left };
        played_s(planner, staged.clone(), &scale)
    };
    let worst_s = (0..stages).map(with_slow).fold(0.0, f64::max);
    Ok(if scenario.lost > 0 { worst_s.min(anew_s) } else { worst_s })
}

/// The part of the batch's ranks that goes on where units are lost; none if nothing does.
fn left(planner: &Planner, cluster: &Cluster, outcome: &Outcome, lost: usize) -> Option<f64> {
    let candidate = &outcome.candidate;
    let prepared = planner.prepared(candidate)?;
    let costs = costs(cluster, candidate, &planner.settings_of(outcome));
    let chain = Chain::new(prepared, &costs, candidate.rule).ok()?;
    if !chain.cuts_batches(&outcome.choice) {
        return None;
    }
    let outer = candidate.mesh[0];
    let inner: usize = candidate.mesh[1..].iter().product();
    let gone = (lost * unit(cluster)).div_ceil(inner);
    (gone < outer).then(|| (outer - gone) as f64 / outer as f64)
}

/// A plan as it is on another cluster.
fn staged(planner: &Planner, cluster: &Cluster, outcome: &Outcome) -> Result<Outcome, Error> {
    let settings = &planner.settings_of(outcome);
    let unplanned = || Error::impossible("the planner has not made this plan");
    let prepared = planner.prepared(&outcome.candidate).ok_or_else(unplanned)?;
    let costs = costs(cluster, &outcome.candidate, settings);
    let chain = Chain::new(prepared, &costs, outcome.candidate.rule)?;
    let spread = Spread::new(&chain, &costs, &outcome.candidate)?;
    let evaluation = Evaluation {
        candidate: &outcome.candidate,
        settings,
        costs: &costs,
        chain: &chain,
        spread: spread.as_ref(),
        recompute: Recompute::Free,
        given: Some(&outcome.spared),
        enough_s: &|| f64::INFINITY,
    };
    let cuts: Vec<_> = outcome.stages.iter().map(|stage| stage.blocks.clone()).collect();
    let staged = evaluation.staged(&outcome.choice, &cuts, &[outcome.schedule]);
    staged.ok_or_else(unplanned)
}

/// Seconds of a plan's step, with the work of each stage scaled.
fn played_s(planner: &Planner, mut plan: Outcome, scale: &dyn Fn(usize) -> f64) -> f64 {
    for (place, stage) in plan.stages.iter_mut().enumerate() {
        stage.cost.forward_s *= scale(place);
        stage.cost.backward_s *= scale(place);
    }
    simulated_s(&plan, planner.settings().overlap).unwrap_or(plan.seconds)
}
