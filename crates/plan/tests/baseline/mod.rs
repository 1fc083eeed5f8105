//! Codecs chosen after shardings: the baseline that planning both together is measured against.

use thinwire_plan::cluster::Cluster;
use thinwire_plan::cost::{Division, Sharding};
use thinwire_plan::search::{
    Candidate, Chain, Evaluated, Outcome, Planner, Settings, best_of, costs, simulated_s,
};

/// Returns `plan`, which was made without codecs, with its gradients encoded by the codecs and within
/// the budget of `planner`. Candidate, strategies and schedule stay as they are; the optimiser's
/// state may stop being sharded where the plan then fits and is faster.
///
/// # Panics
/// If `planner` has not planned for this cluster.
pub fn codecs_after(planner: &Planner, cluster: &Cluster, plan: &Outcome) -> Outcome {
    let settings = Settings { schedule: Some(plan.schedule), ..planner.settings().clone() };
    let prepared = planner.prepared(&plan.candidate).expect("the planner has planned before");
    let divisions = match plan.candidate.division {
        Division::Alike(Sharding::Optimizer) => {
            vec![plan.candidate.division, Division::Alike(Sharding::None)]
        }
        division => vec![division],
    };
    // Simulated, encoding may take longer than the closed form says: then nothing is encoded.
    let mut best = plan.clone();
    for division in divisions {
        let candidate = Candidate { division, ..plan.candidate.clone() };
        let costs = costs(cluster, &candidate, &settings);
        let free = Chain::new(prepared, &costs, candidate.rule).expect("the plan was made on it");
        let given = free.given(&plan.choice);
        let chain = Chain::given_by(prepared, &costs, candidate.rule, &given)
            .expect("the plan has these strategies");
        let verdict = best_of(&chain, &costs, &candidate, &settings, &|| f64::INFINITY);
        let Evaluated::Found(mut outcome) = verdict else { continue };
        outcome.seconds = simulated_s(&outcome, settings.overlap).unwrap_or(outcome.seconds);
        if outcome.seconds < best.seconds && outcome.over(settings.reserve) <= 0.0 {
            best = *outcome;
        }
    }
    best
}
