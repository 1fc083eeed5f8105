//! Tables of a plan: memory, bytes, expert plans, operators.

use thinwire_plan::output::{
    LevelTraffic, NO_EXPERT, PlanFile, TensorTraffic, Traffic, WayFile, describe,
};
use thinwire_plan::search::{Found, Outcome};

use crate::figures;
use crate::report::{escape, legend};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 860.0;
const ROW: f64 = 20.0;

/// A bar per stage; the outline is what its devices have.
pub fn memory(plan: &Outcome) -> String {
    let most = plan.stages.iter().map(|stage| stage.memory_bytes).fold(1.0, f64::max);
    let scale = (RIGHT - LEFT) / most;
    let height = ROW * plan.stages.len() as f64 + 6.0;
    let mut svg = legend(&[
        ("compute", "parameters and optimiser"),
        ("wire", "waiting for backward"),
        ("slowed", "besides: the program, and what an allocator keeps"),
    ]);
    svg += &format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"memory\">\n"
    );
    for (at, stage) in plan.stages.iter().enumerate() {
        let top = ROW * at as f64 + 3.0;
        let (state, all) = (stage.cost.state_bytes, stage.bytes());
        let counted = (all - stage.fixed_bytes) / (1.0 + stage.slack);
        let bar = |class: &str, from: f64, to: f64, what: &str| {
            format!(
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"14\"><title>{what}: {}</title></rect>\n",
                LEFT + scale * from,
                scale * (to - from),
                figures::binary(to - from)
            )
        };
        let (label, middle) = (LEFT - 10.0, top + 11.0);
        svg += &format!(
            "<text class=\"small\" x=\"{label}\" y=\"{middle}\" text-anchor=\"end\">stage {at}</text>\n"
        );
        svg += &bar("ghost", 0.0, stage.memory_bytes, "memory");
        svg += &bar("compute", 0.0, state, "parameters and optimiser");
        svg += &bar("wire", state, counted.max(state), "waiting for backward");
        svg += &bar("slowed", counted.max(state), all, "besides");
        svg += &format!(
            "<text class=\"value small\" x=\"{}\" y=\"{middle}\">{}</text>\n",
            RIGHT + 8.0,
            figures::binary(all)
        );
    }
    svg + "</svg>\n"
}

/// A row per level of the cluster.
pub fn levels(levels: &[LevelTraffic]) -> String {
    let row = |one: &LevelTraffic| {
        let bytes = [one.collective_bytes, one.parameter_bytes, one.message_bytes];
        let cells = bytes.map(figures::binary);
        cells.into_iter().chain([figures::seconds(one.busy_s)]).collect()
    };
    let rows: Vec<(String, Vec<String>)> =
        levels.iter().map(|one| (one.level.clone(), row(one))).collect();
    table(&["collectives", "parameters", "between stages", "busy"], &rows)
}

/// A row per codec of gradients, then of activations.
pub fn codecs(plan: &PlanFile) -> String {
    let from = |level: &Option<String>| level.clone().unwrap_or_else(|| "–".to_owned());
    let gradients = plan.codec.iter().map(|one| {
        let what = format!("gradients of {} parameters", one.parameters.len());
        (what, vec![one.name.clone(), from(&one.level)])
    });
    let activations = plan.activation.iter().map(|one| {
        let what = "activations and their gradients".to_owned();
        (what, vec![one.name.clone(), from(&one.level)])
    });
    table(&["codec", "from level"], &gradients.chain(activations).collect::<Vec<_>>())
}

/// A row per tensor of which anything is sent, the most first, and one for all.
pub fn tensors(traffic: &Traffic) -> String {
    let cells = |sent: f64, least: f64, blocks: String| {
        let times = if least > 0.0 { format!("{:.2}", sent / least) } else { "–".to_owned() };
        vec![figures::binary(sent), figures::binary(least), times, blocks]
    };
    let row = |one: &TensorTraffic| {
        let cells = cells(one.sent_bytes, one.least_bytes, one.blocks.to_string());
        (one.name.clone(), cells)
    };
    let all = cells(traffic.sent_bytes, traffic.least_bytes, String::new());
    let mut rows = vec![("all, mean over stages".to_owned(), all)];
    rows.extend(traffic.tensors.iter().map(row));
    table(&["sent", "least", "times the least", "blocks"], &rows)
}

/// A row per expert plan.
pub fn experts(found: &Found) -> String {
    let row = |plan: &Result<Outcome, f64>| match plan {
        Ok(plan) => {
            let slower = format!("{:+.1} %", 100.0 * (plan.seconds / found.best.seconds - 1.0));
            vec![figures::seconds(plan.seconds), slower, describe(plan)]
        }
        Err(bytes) if bytes.is_finite() => {
            vec![
                "–".to_owned(),
                "–".to_owned(),
                format!("needs {} a device", figures::binary(*bytes)),
            ]
        }
        Err(_) => vec!["–".to_owned(), "–".to_owned(), NO_EXPERT.to_owned()],
    };
    let this = vec![figures::seconds(found.best.seconds), "–".to_owned(), describe(&found.best)];
    let mut rows = vec![("this plan".to_owned(), this)];
    rows.extend(found.experts.iter().map(|(expert, plan)| (expert.name().to_owned(), row(plan))));
    table(&["step", "longer", "plan"], &rows)
}

/// A table per way in which blocks are done.
pub fn ways(plan: &PlanFile) -> String {
    plan.way.iter().map(way).collect()
}

fn way(way: &WayFile) -> String {
    let blocks = match way.blocks.as_slice() {
        [one] => one.clone(),
        [first, .., last] => format!("{first} … {last} ({} blocks)", way.blocks.len()),
        [] => String::new(),
    };
    let rows: Vec<(String, Vec<String>)> =
        way.nodes.iter().map(|(node, cuts)| (node.clone(), vec![cuts.clone()])).collect();
    let blocks = escape(&blocks);
    format!("<details><summary>{blocks}</summary>\n{}</details>\n", table(&["cuts"], &rows))
}

pub(super) fn table(header: &[&str], rows: &[(String, Vec<String>)]) -> String {
    let header: String = header.iter().map(|name| format!("<th>{name}</th>")).collect();
    let row = |(name, cells): &(String, Vec<String>)| {
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        format!("<tr><th>{}</th>{cells}</tr>\n", escape(name))
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "<div class=\"wide\"><table>\n<thead><tr><th></th>{header}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}
