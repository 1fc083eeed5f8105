//! Planning of one candidate, for which everything but the strategies is given.

use super::round::Unfound;
use super::simulate::{refined, simulate_schedules};
use super::{
    Candidate, Evaluated, Found, Planner, Settings, check_counts, evaluate, fastest, shortfall,
};
use crate::pipeline::Schedule;
use crate::{Cluster, Error};
use thinwire_program::counted;

impl Planner {
    /// Returns the best plan of one candidate, with a bound for this candidate alone.
    ///
    /// # Errors
    /// Returns an error if the candidate contradicts the cluster, the batch or itself, or does not
    /// fit.
    pub fn plan_for(&mut self, cluster: &Cluster, candidate: &Candidate) -> Result<Found, Error> {
        let devices = candidate.devices();
        let Candidate { stages, mesh, micro_batches, .. } = candidate;
        if devices > cluster.size() || devices < cluster.size() && !self.settings().idle {
            let (stages, size) = (counted(*stages, "stage"), cluster.size());
            let devices = match candidate.devices() {
                usize::MAX => "too many devices to count".to_owned(),
                devices => format!("{devices} devices"),
            };
            let found = format!("{stages} of mesh {mesh:?} are {devices}");
            let hint = format!("stages times the mesh make {size} at most: 1 stage of [{size}]");
            return Err(Error::impossible(format!("{found}, but the cluster has {size}"))
                .with_hint(format!("{hint}, for instance")));
        }
        check_counts(self.batch(), *micro_batches)?;
        if *micro_batches == 0 || !self.batch().is_multiple_of(*micro_batches) {
            let batch = self.batch();
            let parts = counted(*micro_batches, "micro-batch");
            return Err(Error::impossible(format!(
                "batch of {batch} does not divide into {parts}"
            ))
            .with_hint("micro-batches are equal parts of the batch"));
        }
        self.prepare(std::iter::once(candidate))?;
        let prepared = self.prepared(candidate).expect("it was prepared just now");
        let blocks = prepared.of_block.len();
        if *stages > blocks {
            let found = format!("{} for {blocks} blocks", counted(*stages, "stage"));
            return Err(Error::impossible(format!("{found}, expected at most one for each"))
                .with_hint(format!("at most {blocks} stages")));
        }
        if let Some(schedule) = self.settings().schedule {
            check_schedule(schedule, *stages, blocks, *micro_batches)?;
        }
        let budgets = self.settings().activation_budgets(cluster).into_iter();
        let settings = budgets.map(|budget| self.settings().with_activation_budget(budget));
        let all = settings.map(|settings| self.planned_for(cluster, candidate, &settings));
        let found = all.reduce(fastest).expect("there is a budget");
        found.map_err(|unfound| unfound.error)
    }

    /// Returns the best plan of a candidate with one activation budget.
    fn planned_for(
        &self,
        cluster: &Cluster,
        candidate: &Candidate,
        settings: &Settings,
    ) -> Result<Found, Unfound> {
        let prepared = self.prepared(candidate).expect("it was prepared before");
        match evaluate(cluster, prepared, candidate, settings, &|| f64::INFINITY) {
            Evaluated::Found(mut best) => {
                // Before the simulation, which keeps one of the schedules that the bound is over.
                let least_s = best.least_s();
                simulate_schedules(&mut best, settings.overlap);
                let best = refined(cluster, prepared, settings, &best, f64::INFINITY);
                let bound_s = least_s.min(best.bound_s).min(best.seconds);
                let (others, experts) = (Vec::new(), Vec::new());
                Ok(Found { best, others, experts, bound_s, candidates: [1, 1], subset: None })
            }
            Evaluated::TooLarge(all) => {
                let error = shortfall::too_large("this plan", all, cluster, settings.reserve)
                    .with_hint(
                        "more stages or micro-batches, ZeRO 3 or recomputation need less memory",
                    );
                Err(Unfound { error, bound_s: all.bound_s, candidates: [1, 1] })
            }
            Evaluated::TooSlow(_) | Evaluated::Impossible => {
                let Candidate { stages, mesh, micro_batches, .. } = candidate;
                let (stages, parts) =
                    (counted(*stages, "stage"), counted(*micro_batches, "micro-batch"));
                let found = format!("{stages} of {mesh:?}, {parts}");
                let error = Error::impossible(format!("no strategies and schedule for {found}"));
                Err(error.with_hint("give another mesh or other cuts, or leave pins out").into())
            }
        }
    }
}

/// Refuses chunks without blocks, and numbers of micro-batches that interleaving cannot divide into groups.
fn check_schedule(
    schedule: Schedule,
    stages: usize,
    blocks: usize,
    micro_batches: usize,
) -> Result<(), Error> {
    let Schedule::Interleaved { chunks } = schedule else { return Ok(()) };
    if chunks.saturating_mul(stages) > blocks {
        let found = format!("{schedule} on {stages} stages for {blocks} blocks");
        return Err(Error::impossible(format!("{found}, expected a block for each chunk"))
            .with_hint("give fewer chunks or stages, or the schedule 1f1b"));
    }
    if !micro_batches.is_multiple_of(stages) {
        let found = format!("{schedule} on {stages} stages with {micro_batches} micro-batches");
        return Err(Error::impossible(format!("{found}, expected a multiple of {stages}"))
            .with_hint("give another number of micro-batches, or the schedule 1f1b"));
    }
    Ok(())
}
