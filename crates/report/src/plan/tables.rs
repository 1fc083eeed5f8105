//! Tables of a plan: memory, bytes, expert plans, operators.

use thinwire_plan::report::{
    LevelTraffic, NO_EXPERT, PlanFile, TensorTraffic, Traffic, WayFile, describe,
};
use thinwire_plan::search::{Found, Outcome, StageOutcome};

use crate::figures;
use crate::html::{escape, legend, table};
use crate::svg::{drawing, rect, text};

const LEFT: f64 = 80.0;
const RIGHT: f64 = 860.0;
const ROW: f64 = 20.0;

/// Returns a bar per stage; the outline is the memory of its devices.
pub fn memory(plan: &Outcome) -> String {
    let most = plan.stages.iter().map(|stage| stage.memory_bytes).fold(1.0, f64::max);
    let scale = (RIGHT - LEFT) / most;
    let row = |(at, stage): (usize, &StageOutcome)| {
        let top = ROW * at as f64 + 3.0;
        let (state, all) = (stage.cost.state_bytes, stage.bytes());
        let counted = ((all - stage.fixed_bytes) / (1.0 + stage.slack)).max(state);
        let bar = |class: &str, from: f64, to: f64, what: &str| {
            let title = format!("{what}: {}", figures::binary(to - from));
            rect(class, [LEFT + scale * from, top, scale * (to - from), 14.0], &title)
        };
        [
            text("small", [LEFT - 10.0, top + 11.0], "end", &format!("stage {at}")),
            bar("ghost", 0.0, stage.memory_bytes, "memory"),
            bar("compute", 0.0, state, "parameters and optimiser"),
            bar("wire", state, counted, "waiting for backward"),
            bar("slowed", counted, all, "besides"),
            text("value small", [RIGHT + 8.0, top + 11.0], "start", &figures::binary(all)),
        ]
        .concat()
    };
    let rows: String = plan.stages.iter().enumerate().map(row).collect();
    let legend = legend(&[
        ("compute", "parameters and optimiser"),
        ("wire", "waiting for backward"),
        ("slowed", "besides: the program, and what an allocator keeps"),
    ]);
    legend + &drawing("memory", ROW * plan.stages.len() as f64 + 6.0, &rows)
}

/// Returns a table with a row per level of the cluster.
pub fn levels(levels: &[LevelTraffic]) -> String {
    let row = |one: &LevelTraffic| {
        let bytes = [one.collective_bytes, one.parameter_bytes, one.message_bytes];
        let [collective, parameter, message] = bytes.map(figures::binary);
        [one.level.clone(), collective, parameter, message, figures::seconds(one.busy_s)]
    };
    table(["", "collectives", "parameters", "between stages", "busy"], levels.iter().map(row))
}

/// Returns a table with a row for each codec of gradients, then one for each codec of activations.
pub fn codecs(plan: &PlanFile) -> String {
    let row = |what: String, name: &String, level: &Option<String>| {
        [what, name.clone(), level.clone().unwrap_or_else(|| "–".to_owned())]
    };
    let gradients = plan.codec.iter().map(|one| {
        row(format!("gradients of {} parameters", one.parameters.len()), &one.name, &one.level)
    });
    let activations = plan
        .activation
        .iter()
        .map(|one| row("activations and their gradients".to_owned(), &one.name, &one.level));
    table(["", "codec", "from level"], gradients.chain(activations))
}

/// Returns a table with a row per tensor that is sent, the most bytes first, and one for all tensors.
pub fn tensors(traffic: &Traffic) -> String {
    let row = |name: &str, sent: f64, least: f64, blocks: String| {
        let times = if least > 0.0 { format!("{:.2}", sent / least) } else { "–".to_owned() };
        [name.to_owned(), figures::binary(sent), figures::binary(least), times, blocks]
    };
    let of_tensor = |one: &TensorTraffic| {
        row(&one.name, one.sent_bytes, one.least_bytes, one.blocks.to_string())
    };
    let all = row("all, mean over stages", traffic.sent_bytes, traffic.least_bytes, String::new());
    let rows = std::iter::once(all).chain(traffic.tensors.iter().map(of_tensor));
    table(["", "sent", "least", "times the least", "blocks"], rows)
}

/// Returns a table with a row per expert plan.
pub fn experts(found: &Found) -> String {
    let none = || "–".to_owned();
    let row = |(name, plan): (&str, &Result<Outcome, f64>)| {
        let [step, longer, told] = match plan {
            Ok(plan) => {
                let slower = 100.0 * (plan.seconds / found.best.seconds - 1.0);
                [figures::seconds(plan.seconds), format!("{slower:+.1} %"), describe(plan)]
            }
            Err(bytes) if bytes.is_finite() => {
                [none(), none(), format!("needs {} a device", figures::binary(*bytes))]
            }
            Err(_) => [none(), none(), NO_EXPERT.to_owned()],
        };
        [name.to_owned(), step, longer, told]
    };
    let best = &found.best;
    let this = ["this plan".to_owned(), figures::seconds(best.seconds), none(), describe(best)];
    let experts = found.experts.iter().map(|(expert, plan)| row((expert.name(), plan)));
    table(["", "step", "longer", "plan"], std::iter::once(this).chain(experts))
}

/// Returns a table for each way in which blocks are computed.
pub fn ways(plan: &PlanFile) -> String {
    plan.way.iter().map(way).collect()
}

fn way(way: &WayFile) -> String {
    let blocks = match way.blocks.as_slice() {
        [one] => one.clone(),
        [first, .., last] => format!("{first} … {last} ({} blocks)", way.blocks.len()),
        [] => String::new(),
    };
    let table = table(["", "cuts"], way.nodes.iter().map(|(node, cuts)| [node, cuts]));
    format!("<details><summary>{}</summary>\n{table}</details>\n", escape(&blocks))
}
