//! What activations and their gradients are encoded with, level by level and in a line.

use super::file::ActivationFile;
use super::moved::Step;
use crate::Error;
use crate::cluster::Cluster;
use crate::cost::{Coding, Costs, Group};
use crate::search::{Chain, Found, Outcome, Planner, costs};

/// Every codec that activations of a plan travel by, from the innermost level on which it is used.
///
/// # Errors
/// If the planner has not made this plan.
pub(super) fn activations(
    planner: &Planner,
    cluster: &Cluster,
    found: &Found,
) -> Result<Vec<ActivationFile>, Error> {
    let levels = used(planner, cluster, &found.best)?;
    let file = |(level, coding): (usize, Option<Coding>)| ActivationFile {
        name: coding.map_or_else(|| "none".to_owned(), |coding| coding.to_string()),
        level: (level > 0).then(|| cluster.levels[level].name.clone()),
        within: (level > 0)
            .then(|| cluster.levels[..level].iter().map(|inner| inner.size).product()),
    };
    Ok(levels.into_iter().map(file).collect())
}

/// How activations travel, in a line; none if everything travels as it is.
///
/// # Errors
/// If the planner has not made this plan.
pub fn activation_text(
    planner: &Planner,
    cluster: &Cluster,
    found: &Found,
) -> Result<Option<String>, Error> {
    let levels = used(planner, cluster, &found.best)?;
    let line = |(level, coding): &(usize, Option<Coding>)| {
        let level = &cluster.levels[*level].name;
        match coding {
            None => format!("as they are over level '{level}'"),
            Some(coding) => {
                let lost = coding.loss;
                format!("as {coding} over level '{level}', which loses {lost:.2e} of them")
            }
        }
    };
    let lines: Vec<String> = levels.iter().map(line).collect();
    let budget = planner.settings().activation_budget;
    let text = || {
        format!("activations travel {}; each time within a budget of {budget}", lines.join(", "))
    };
    Ok((!lines.is_empty()).then(text))
}

/// The innermost level from which on each codec is used, of levels over which activations travel.
fn used(
    planner: &Planner,
    cluster: &Cluster,
    outcome: &Outcome,
) -> Result<Vec<(usize, Option<Coding>)>, Error> {
    let costs = costs(cluster, &outcome.candidate, &planner.settings_of(outcome));
    let mut all: Vec<(usize, Option<Coding>)> = Vec::new();
    if costs.activations.iter().all(Option::is_none) {
        return Ok(all);
    }
    for (level, coding) in costs.activations.iter().enumerate() {
        let other = all.last().and_then(|(_, coding)| coding.as_ref()) != coding.as_ref();
        if other && travels(planner, &costs, outcome, level)? {
            all.push((level, coding.clone()));
        }
    }
    Ok(all)
}

/// Whether activations travel over a level.
fn travels(
    planner: &Planner,
    costs: &Costs<'_>,
    outcome: &Outcome,
    level: usize,
) -> Result<bool, Error> {
    let candidate = &outcome.candidate;
    let devices = candidate.mesh.iter().product();
    let next = |stage| Group::next_stage(costs.cluster, devices, stage).level;
    if (1..candidate.stages).any(|stage| next(stage - 1) == level) {
        return Ok(true);
    }
    let unplanned = || Error::impossible("the planner has not made this plan");
    let prepared = planner.prepared(candidate).ok_or_else(unplanned)?;
    let chain = Chain::new(prepared, costs, candidate.rule)?;
    let step = Step::new((prepared, &chain), costs, outcome);
    Ok(step.micro(Some(level)).iter().any(|bytes| *bytes > 0.0))
}
