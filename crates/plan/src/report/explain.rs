//! The explanation of a node's cuts: every strategy with the time and memory that it needs, and the increase
//! of the step time with it.
//!
//! For every strategy of a node, the whole candidate is planned again; the node and all equal nodes must
//! have the strategy, and everything else is free. So the figures of a strategy are for the best plan
//! with this strategy, in which neighbouring nodes may also have other strategies than before.

use std::collections::HashSet;

use thinwire_model::{NodeId, Strategy};
use thinwire_program::counted;

use super::text::{seconds, tensor};
use super::traffic::of_node;
use super::{describe, traffic};
use crate::error::size;
use crate::search::{
    Chain, Evaluated, Found, Given, Outcome, Part, Planner, Prepared, Rule, best_of, costs,
};
use crate::stage::Weights;
use crate::{Cluster, Error};

/// Node names that a hint repeats.
const NAMES: usize = 8;

/// A node, with the nodes at the same place of equal blocks.
struct Place {
    block: usize,
    /// The node itself.
    asked: NodeId,
    /// The node of the first block of the class.
    node: NodeId,
}

/// Column heads of the table of strategies.
const HEADS: [[&str; 6]; 2] = [
    ["", "computing", "transfers", "transfers", "memory of", "the step"],
    ["cuts", "a micro-batch", "a micro-batch", "once a step", "a device", "takes more"],
];

/// A question about one node of a plan.
struct Question<'a> {
    planner: &'a Planner,
    cluster: &'a Cluster,
    best: &'a Outcome,
    prepared: &'a Prepared,
    place: Place,
}

/// A strategy, and the best step with it.
struct Row {
    strategy: String,
    /// Seconds of the step, or the bytes of memory that a device lacks.
    step: Result<f64, f64>,
    /// Seconds of computing one micro-batch.
    compute_s: f64,
    /// Seconds of the collectives of one micro-batch, and of the parameters once per step.
    travel_s: [f64; 2],
    /// Memory of one device: activations that are kept, and parameters with their state.
    bytes: f64,
}

/// Returns every strategy of a node with its costs, and the reason for the chosen one, which is marked by
/// `*`.
///
/// # Errors
/// If no node has this name, or this planner has not made the plan.
pub fn explain(
    planner: &Planner,
    cluster: &Cluster,
    found: &Found,
    name: &str,
) -> Result<String, Error> {
    let (best, cluster) = (&found.best, found.used(cluster));
    let prepared = planner.prepared_of(best)?;
    let place = place(prepared, name)?;
    let here = costs(cluster, &best.candidate, &planner.settings_of(best));
    let chain = Chain::new(prepared, &here, best.candidate.rule)?;
    let way = best.choice.of_block[place.block];
    let part = chain.part(&best.choice, way, place.node).ok_or_else(unplanned)?;
    let declaration = prepared.graph.declaration(&prepared.graph.nodes[place.node]);
    // Along a dimension of one device nothing is cut, whatever a strategy says of it.
    let shown = |strategy: &Strategy| shown(&declaration.describe(strategy), &best.candidate.mesh);
    let chosen = shown(&part.strategies[part.chosen]);
    let alike = prepared.of_block.iter().filter(|of| **of == prepared.of_block[place.block]);
    let alike = alike.count();
    let question = Question { planner, cluster, best, prepared, place };
    let mut told = HashSet::from([chosen.clone()]);
    let others = part.strategies.iter().filter(|strategy| told.insert(shown(strategy)));
    let all: Vec<&Strategy> = [&part.strategies[part.chosen]].into_iter().chain(others).collect();
    let row = |strategy: &&Strategy| question.row(strategy, shown(strategy));
    let mut rows = all.iter().map(row).collect::<Result<Vec<_>, _>>()?;
    rows.sort_by(|a, b| a.key().total_cmp(&b.key()));
    let axes = declaration.axes.iter().map(|axis| format!("{} {}", axis.name, axis.length));
    let node = &prepared.graph.nodes[question.place.asked];
    let mut lines = vec![
        format!("{} in {}", node.name, describe(best)),
        format!("axes {}; {} alike", axes.collect::<Vec<_>>().join(", "), counted(alike, "block")),
        String::new(),
    ];
    lines.extend(HEADS.map(|heads| columns(' ', heads.map(str::to_owned))));
    let least = rows.first().map_or(f64::INFINITY, Row::key);
    lines.extend(rows.iter().map(|row| row.line(&chosen, least)));
    lines.push(String::new());
    let (block, node) = (question.place.block, question.place.asked);
    let sent = of_node(prepared, &traffic(planner, cluster, found)?, block, node);
    if !sent.is_empty() {
        let title = "a device sends in a step, mean of all stages, of what it reads and writes:";
        lines.push(title.to_owned());
        lines.extend(sent.iter().map(tensor));
        lines.push(String::new());
    }
    lines.push(why(&rows, &chosen));
    if let Some(narrow) = narrow(found.best.candidate.rule) {
        lines.push(narrow);
    }
    Ok(lines.join("\n") + "\n")
}

/// Returns the node with this name, or the first node whose name ends with it.
fn place(prepared: &Prepared, name: &str) -> Result<Place, Error> {
    let graph = &prepared.graph;
    let ends = format!(".{name}");
    let exact = graph.nodes.iter().position(|node| node.name == name);
    let found = exact.or_else(|| graph.nodes.iter().position(|node| node.name.ends_with(&ends)));
    let unknown = || {
        let names: Vec<&str> = graph.nodes.iter().take(NAMES).map(|node| &*node.name).collect();
        let count = graph.nodes.len();
        Error::impossible(format!("'{name}' is none of the model's {count} nodes"))
            .with_hint(format!("nodes are called {}, ...", names.join(", ")))
    };
    let id = found.ok_or_else(unknown)?;
    let block = graph.blocks.iter().position(|block| block.nodes.contains(&id));
    let block = block.ok_or_else(unknown)?;
    let class = &prepared.classes[prepared.of_block[block]];
    let node = class.nodes.start + id - graph.blocks[block].nodes.start;
    Ok(Place { block, asked: id, node })
}

/// Returns the text of a strategy without the mesh dimensions that have only one device.
fn shown(text: &str, mesh: &[usize]) -> String {
    let cuts = text.split(',').zip(mesh).filter(|(_, size)| **size > 1);
    match cuts.map(|(cut, _)| cut).collect::<Vec<_>>().join(",") {
        none if none.is_empty() => "-".to_owned(),
        cuts => cuts,
    }
}

/// Formats a line of the table of strategies.
fn columns(mark: char, [cuts, cells @ ..]: [String; 6]) -> String {
    let cells: String = cells.iter().map(|cell| format!(" {cell:>13}")).collect();
    format!("{mark} {cuts:10}{cells}")
}

impl Question<'_> {
    /// Plans the step again with the node's strategy fixed.
    fn row(&self, strategy: &Strategy, text: String) -> Result<Row, Error> {
        let candidate = &self.best.candidate;
        let settings = &self.planner.settings_of(self.best);
        let here = costs(self.cluster, candidate, settings);
        let given = Given::from([(self.place.node, strategy.clone())]);
        let chain = Chain::given_by(self.prepared, &here, candidate.rule, &given)?;
        let (step, choice) = match best_of(&chain, &here, candidate, settings, &|| f64::INFINITY) {
            Evaluated::Found(outcome) => (Ok(outcome.seconds), outcome.choice),
            Evaluated::TooLarge(all) => (Err(all.needed_bytes), chain.solve(&Weights::ONCE, 0.0).1),
            Evaluated::TooSlow(_) | Evaluated::Impossible => return Err(unplanned()),
        };
        let way = choice.of_block[self.place.block];
        let Part { cost, wire, .. } =
            chain.part(&choice, way, self.place.node).ok_or_else(unplanned)?;
        let micro_s = cost.forward_wire_s + cost.backward_wire_s + wire.forward_s + wire.backward_s;
        Ok(Row {
            strategy: text,
            step,
            compute_s: cost.forward_s + cost.backward_s,
            travel_s: [micro_s, cost.sync_s + cost.all_gather_s],
            bytes: cost.state_bytes + cost.activation_bytes,
        })
    }
}

fn unplanned() -> Error {
    Error::impossible("the planner has not made this plan")
}

impl Row {
    fn key(&self) -> f64 {
        *self.step.as_ref().unwrap_or(&f64::INFINITY)
    }

    fn line(&self, chosen: &str, least: f64) -> String {
        let mark = if self.strategy == chosen { '*' } else { ' ' };
        let step = match self.step {
            Ok(seconds) => format!("{:.2} %", 100.0 * (seconds / least - 1.0)),
            Err(bytes) => format!("needs {}", size(bytes)),
        };
        let cells = [seconds(self.compute_s), seconds(self.travel_s[0]), seconds(self.travel_s[1])];
        let [compute, transfers, once] = cells;
        columns(mark, [self.strategy.clone(), compute, transfers, once, size(self.bytes), step])
    }
}

/// Describes the restriction of an expert plan's rule, if the plan is one.
fn narrow(rule: Rule) -> Option<String> {
    let what = match rule {
        Rule::Free => return None,
        Rule::Data => "batches alone are cut",
        Rule::Grid => {
            "batches are cut along its first dimension, and anything else along the second"
        }
        Rule::PlainGrid => {
            "batches are cut along its first dimension, and along the second anything but sequences"
        }
    };
    Some(format!("the plan is an expert's: on its mesh {what}"))
}

/// Compares the strategy that was chosen with the best one of the others.
fn why(rows: &[Row], chosen: &str) -> String {
    let Some(mine) = rows.iter().find(|row| row.strategy == chosen) else { return String::new() };
    let Some(other) = rows.iter().find(|row| row.strategy != chosen) else {
        return format!("{chosen}: nothing else is allowed");
    };
    let Ok(next) = other.step else {
        return format!("{chosen}: with any other strategy the model does not fit");
    };
    let slower = 100.0 * (next / mine.key() - 1.0);
    if slower < 0.005 {
        return format!(
            "{chosen}: as fast as {}, with which the step takes as long",
            other.strategy
        );
    }
    let reasons = [
        ("its work takes", other.compute_s - mine.compute_s),
        ("its operands travel", other.travel_s[0] - mine.travel_s[0]),
        ("its parameters travel", other.travel_s[1] - mine.travel_s[1]),
    ];
    let most = reasons.iter().max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, more)| *more > 0.0);
    let reason = match most {
        Some((what, more)) => format!("{what} {} longer", seconds(*more)),
        None => "what its neighbours must do for it takes longer".to_owned(),
    };
    let other = &other.strategy;
    format!("{chosen}: with {other}, the next best, a step takes {slower:.2} % longer: {reason}")
}
