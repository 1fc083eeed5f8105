//! plan.html: a plan as one page, in the style of the report of a training. It loads nothing from
//! elsewhere, and is readable offline, in dark mode and without scripts.

mod mesh;
mod stages;
mod tables;

use thinwire_plan::pipeline;
use thinwire_plan::report::{PlanFile, counted, describe, traffic};
use thinwire_plan::search::{Found, Outcome, Overlap, Planner, done_s, timeline as played};
use thinwire_plan::{Cluster, Error};

use crate::figures;
use crate::gantt::{Bar, PASSES, Row, gantt, pass};
use crate::html::{document, escape, header, legend, section};

/// Returns the page of a plan that `command` made.
///
/// # Errors
/// If the planner has not made this plan.
pub fn page(
    plan: &PlanFile,
    planner: &Planner,
    cluster: &Cluster,
    found: &Found,
    command: &str,
) -> Result<String, Error> {
    let overlap = planner.settings().overlap;
    let traffic = traffic(planner, cluster, found)?;
    let title = title(plan, cluster, found);
    let headline = headline(plan, found, &title);
    let cluster = found.used(cluster);
    let body = [
        headline,
        section(
            "Pipeline",
            "What every stage does in a step. Forward, backward, and gradients of weights where they are apart; numbers of micro-batches under the pointer.",
            &timeline(&found.best, overlap),
        ),
        section("Mesh", &mesh::caption(&found.best), &mesh::mesh(&found.best)),
        section(
            "Stages",
            "The blocks of every stage, in the order in which they are done, and its devices: numbers of the cluster file, counted from 0, in the order of ranks.",
            &stages::stages(planner, cluster, found)?,
        ),
        section(
            "Memory",
            "Of one device of every stage: parameters and optimiser state, and what waits for backward.",
            &tables::memory(&found.best),
        ),
        section(
            "Bytes per link",
            "What a device of the busiest stage sends in a step, encoded where the plan encodes.",
            &tables::levels(&traffic.levels),
        ),
        codecs(plan),
        section(
            "Bytes per tensor",
            "What a device sends in a step, beside the least that it could with every operator cut as it is; encoded where the plan encodes, without the headers of messages.",
            &tables::tensors(&traffic),
        ),
        section(
            "Expert plans",
            "What people would run, each at its best.",
            &tables::experts(found),
        ),
        section(
            "Operators",
            "The axis that each operator puts on every dimension of the mesh; a dash is none.",
            &tables::ways(plan),
        ),
        section(
            "How to reproduce",
            "",
            &format!("<pre class=\"command\">{}</pre>\n", escape(command)),
        ),
    ];
    Ok(document(&escape(&format!("thinwire: {title}")), &body.concat()))
}

/// Returns the model, and the devices in use.
fn title(plan: &PlanFile, cluster: &Cluster, found: &Found) -> String {
    let (used, all) = (found.best.candidate.devices(), counted(cluster.size(), "device"));
    match used == cluster.size() {
        true => format!("{} on {all}", plan.model),
        false => format!("{} on {used} of {all}", plan.model),
    }
}

/// Returns the codecs; an empty text if everything travels raw.
fn codecs(plan: &PlanFile) -> String {
    if plan.codec.is_empty() && plan.activation.is_empty() {
        return String::new();
    }
    let lead = "What is encoded, and from which level of the cluster on; a dash is all levels.";
    section("Codecs", lead, &tables::codecs(plan))
}

fn headline(plan: &PlanFile, found: &Found, title: &str) -> String {
    let best = &found.best;
    let lead = format!(
        "{}. No plan of this search takes less than {}.",
        describe(best).replace(" x ", " × "),
        figures::seconds(found.bound_s)
    );
    let tiles = [
        (figures::seconds(best.seconds), "per step"),
        (figures::digits(plan.batch as f64 / best.seconds), "sequences a second"),
        (figures::percent(found.gap()), "of a step, at most, could another plan save"),
        (figures::binary(best.bytes()), "of the fullest device"),
    ];
    header(&escape(title), &escape(&lead), &tiles)
}

/// Work that follows the last pass.
const END: (&str, &str) = ("decode", "gradients travel, optimiser");

/// Returns the timeline of a plan's step.
fn timeline(plan: &Outcome, overlap: Overlap) -> String {
    let Some(run) = played(plan, overlap) else { return String::new() };
    let done_s = done_s(plan, overlap, &run);
    let whole_s = done_s.iter().copied().fold(run.seconds, f64::max);
    let stage = |(rank, (runs, done_s)): (usize, (&Vec<pipeline::Run>, &f64))| {
        let (class, what) = END;
        let from_s = runs.last().map_or(0.0, |run| run.end_s);
        let end = Bar { class, from_s, to_s: *done_s, what: what.to_owned() };
        let bars = runs.iter().map(bar).chain([end]).collect();
        Row { name: format!("stage {rank}"), bars }
    };
    let rows: Vec<Row> = run.ranks.iter().zip(&done_s).enumerate().map(stage).collect();
    legend(&[&PASSES[..], &[END]].concat()) + &gantt("pipeline", &rows, whole_s)
}

fn bar(run: &pipeline::Run) -> Bar {
    let (class, what) = pass(run.pass.kind, run.pass.micro_batch, run.pass.chunk);
    Bar { class, from_s: run.start_s, to_s: run.end_s, what }
}
