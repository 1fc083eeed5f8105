//! The stages: which blocks each has, and on which devices.

use std::ops::Range;

use anyhow::{Result, anyhow};
use thinwire_plan::Cluster;
use thinwire_plan::output::{PlanFile, placed, stage_blocks};
use thinwire_plan::search::{Found, Planner};

use super::tables::table;
use crate::report::escape;

/// A row per stage, and the order of members where links differ.
///
/// # Errors
/// If the planner has not made this plan.
pub fn stages(
    plan: &PlanFile,
    planner: &Planner,
    cluster: &Cluster,
    found: &Found,
) -> Result<String> {
    let candidate = &found.best.candidate;
    let prepared = planner.prepared(candidate).ok_or_else(|| anyhow!("no plan was made"))?;
    let blocks = &prepared.graph.blocks;
    let named = |Range { start, end }: &Range<usize>| match end - start {
        1 => blocks[*start].name.clone(),
        _ => format!("{} … {}", blocks[*start].name, blocks[end - 1].name),
    };
    let each = candidate.mesh.iter().product::<usize>();
    let row = |(stage, ranges): (usize, Vec<Range<usize>>)| {
        let ranks = stage * each..(stage + 1) * each;
        let devices: Vec<usize> = ranks.clone().map(|rank| device(plan, rank)).collect();
        let blocks: Vec<String> = ranges.iter().map(named).collect();
        let cells = vec![blocks.join(", "), runs(&devices), kinds(cluster, ranks).join(", ")];
        (format!("stage {stage}"), cells)
    };
    let rows: Vec<_> =
        stage_blocks(planner, &found.best)?.into_iter().enumerate().map(row).collect();
    let orders = cluster.levels.iter().filter_map(placed);
    let orders = orders.map(|order| format!("<p class=\"note\">{}.</p>\n", escape(&order)));
    Ok(orders.collect::<String>() + &table(&["blocks", "devices", "kind"], &rows))
}

/// The device of the cluster file on which a rank is.
pub fn device(plan: &PlanFile, rank: usize) -> usize {
    plan.devices.get(rank).copied().unwrap_or(rank)
}

/// The kinds of some ranks' devices, each once.
pub fn kinds(cluster: &Cluster, ranks: Range<usize>) -> Vec<&str> {
    let kind = |rank: usize| cluster.kinds.get(rank / cluster.levels[0].size).copied().unwrap_or(0);
    let mut kinds: Vec<&str> = ranks.map(|rank| &cluster.devices[kind(rank)].name[..]).collect();
    kinds.dedup();
    kinds
}

/// "0–3, 8, 10–11".
fn runs(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let text = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}–{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_run() {
        assert_eq!(runs(&[0, 1, 2, 3, 8, 10, 11, 4]), "0–3, 8, 10–11, 4");
        assert_eq!(runs(&[]), "");
    }

    #[test]
    fn a_device_is_of_the_kind_of_its_unit() {
        let device = |name: &str| {
            format!(
                "[[device]]\nname = \"{name}\"\ntflops = 1\nmemory_gib = 1\nmemory_gbyte_per_s = 1\n"
            )
        };
        let level = |name: &str, size: usize| {
            format!("[[level]]\nname = \"{name}\"\nsize = {size}\nlatency_us = 1\ngbit = 1\n")
        };
        let parts = [device("old"), device("new"), level("node", 2), level("pod", 3)].concat();
        let text = format!("kinds = [\"old\", \"new\", \"new\"]\n{parts}");
        let cluster = Cluster::parse(&text).unwrap();
        assert_eq!(kinds(&cluster, 0..2), ["old"]);
        assert_eq!(kinds(&cluster, 1..6), ["old", "new"]);
    }
}
