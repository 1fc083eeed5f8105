//! The stages: their blocks and their devices.

use std::ops::Range;

use thinwire_plan::report::stage_blocks;
use thinwire_plan::search::{Found, Planner};
use thinwire_plan::{Cluster, Error};

use crate::html::table;

/// Returns a table with a row per stage.
///
/// # Errors
/// If the planner has not made this plan.
pub fn stages(planner: &Planner, cluster: &Cluster, found: &Found) -> Result<String, Error> {
    let candidate = &found.best.candidate;
    let prepared = planner.prepared_of(&found.best)?;
    let blocks = &prepared.graph.blocks;
    let named = |Range { start, end }: &Range<usize>| match end - start {
        1 => blocks[*start].name.clone(),
        _ => format!("{} … {}", blocks[*start].name, blocks[end - 1].name),
    };
    let each = candidate.mesh.iter().product::<usize>();
    let numbers = found.devices();
    let number = |rank: usize| numbers.get(rank).copied().unwrap_or(rank);
    let row = |(stage, ranges): (usize, Vec<Range<usize>>)| {
        let ranks = stage * each..(stage + 1) * each;
        let devices = match each {
            1 => number(stage).to_string(),
            _ if numbers.is_empty() => format!("{}–{}", ranks.start, ranks.end - 1),
            _ => ranks.clone().map(|rank| number(rank).to_string()).collect::<Vec<_>>().join(", "),
        };
        let blocks: Vec<String> = ranges.iter().map(named).collect();
        [format!("stage {stage}"), blocks.join(", "), devices, kinds(cluster, ranks).join(", ")]
    };
    let rows = stage_blocks(planner, &found.best)?.into_iter().enumerate().map(row);
    Ok(table(["", "blocks", "devices", "kind"], rows))
}

/// Returns the kinds of some ranks' devices, each once.
pub fn kinds(cluster: &Cluster, ranks: Range<usize>) -> Vec<&str> {
    let kind = |rank: usize| cluster.kinds.get(rank / cluster.levels[0].size).copied().unwrap_or(0);
    let mut kinds: Vec<&str> = ranks.map(|rank| &cluster.devices[kind(rank)].name[..]).collect();
    kinds.dedup();
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

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
