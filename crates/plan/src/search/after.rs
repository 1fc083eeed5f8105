//! Codecs after shardings: what others do, to show beside what is planned together.

use super::Planner;
use super::candidate::Candidate;
use super::chain::Chain;
use super::evaluation::Evaluation;
use super::outcome::{Outcome, simulated_s};
use super::settings::{Recompute, costs};
use super::spread::Spread;
use crate::Error;
use crate::cluster::Cluster;
use crate::cost::{Division, Sharding};

/// A plan made without codecs, whose gradients are then encoded as well as its strategies, stages
/// and schedule allow; `planner` knows which codecs and the budget. Its optimiser's state may stop
/// being divided, if it then fits and is faster.
///
/// # Errors
/// If the planner has not planned for this cluster.
pub fn codecs_after(
    planner: &Planner,
    cluster: &Cluster,
    plan: &Outcome,
) -> Result<Outcome, Error> {
    let settings = planner.settings();
    let unplanned = || Error::impossible("the planner has not made this plan");
    let prepared = planner.prepared(&plan.candidate).ok_or_else(unplanned)?;
    let divisions = match plan.candidate.division {
        Division::Alike(Sharding::Optimizer) => {
            vec![plan.candidate.division, Division::Alike(Sharding::None)]
        }
        division => vec![division],
    };
    // Played through, encoding may take longer than the closed form says: then nothing is encoded.
    let mut best = plan.clone();
    for division in divisions {
        let candidate = Candidate { division, ..plan.candidate.clone() };
        let costs = costs(cluster, &candidate, settings);
        let chain = Chain::new(prepared, &costs, candidate.rule)?;
        let spread = Spread::new(&chain, &costs, &candidate)?;
        let evaluation = Evaluation {
            candidate: &candidate,
            settings,
            costs: &costs,
            chain: &chain,
            spread: spread.as_ref(),
            recompute: Recompute::Free,
            given: Some(&plan.spared),
            enough_s: &|| f64::INFINITY,
        };
        let cuts: Vec<_> = plan.stages.iter().map(|stage| stage.blocks.clone()).collect();
        let outcome = evaluation.staged(&plan.choice, &cuts, &[plan.schedule]);
        let mut outcome = outcome.ok_or_else(unplanned)?;
        outcome.seconds = simulated_s(&outcome, settings.overlap).unwrap_or(outcome.seconds);
        if outcome.seconds < best.seconds && outcome.over(settings.reserve) <= 0.0 {
            best = outcome;
        }
    }
    Ok(best)
}
