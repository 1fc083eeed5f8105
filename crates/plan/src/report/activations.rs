//! Codecs of activations and their gradients, by level and as one line.

use thinwire_program::file::ActivationFile;

use crate::Cluster;
use crate::cost::{Coding, Costs};
use crate::search::{Found, Planner, costs};

/// Returns every codec that a plan uses for activations, with the innermost level on which it is used.
/// `crossed` has, for every level, whether activations travel over it.
pub(super) fn activations(costs: &Costs<'_>, crossed: &[bool]) -> Vec<ActivationFile> {
    let cluster = costs.cluster;
    let file = |(level, coding): (usize, Option<Coding>)| ActivationFile {
        name: coding.map_or_else(|| "none".to_owned(), |coding| coding.to_string()),
        level: (level > 0).then(|| cluster.levels[level].name.clone()),
        within: (level > 0)
            .then(|| cluster.levels[..level].iter().map(|inner| inner.size).product()),
    };
    used(costs, crossed).into_iter().map(file).collect()
}

/// Returns in one line how activations travel; `None` if all of them travel raw.
pub(super) fn activation_text(
    planner: &Planner,
    cluster: &Cluster,
    found: &Found,
    crossed: &[bool],
) -> Option<String> {
    let costs = costs(cluster, &found.best.candidate, &planner.settings_of(&found.best));
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
    let lines: Vec<String> = used(&costs, crossed).iter().map(line).collect();
    let budget = planner.settings().activation_budget;
    let text = || {
        format!("activations travel {}; each time within a budget of {budget}", lines.join(", "))
    };
    (!lines.is_empty()).then(text)
}

/// Returns each codec with the innermost level from which on it is used, of the levels over which activations
/// travel.
fn used(costs: &Costs<'_>, crossed: &[bool]) -> Vec<(usize, Option<Coding>)> {
    let mut all: Vec<(usize, Option<Coding>)> = Vec::new();
    if costs.activations.iter().all(Option::is_none) {
        return all;
    }
    for (level, (coding, crossed)) in costs.activations.iter().zip(crossed).enumerate() {
        let other = all.last().and_then(|(_, coding)| coding.as_ref()) != coding.as_ref();
        if other && *crossed {
            all.push((level, coding.clone()));
        }
    }
    all
}
