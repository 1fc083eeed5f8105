//! Report of a training, as a table, as JSON and as report.html: one file, nothing from elsewhere, readable
//! offline, in the dark and without script.

mod bars;
mod comparison;
mod curves;
mod graph;
mod planned;
mod summary;
mod timeline;
mod values;

use thinwire_plan::report::counted;

use crate::figures;
use crate::html::{document, escape, header, legend, section, table};
pub use comparison::{Record, compared, read};
use curves::{Across, Curve, chart};
pub use graph::{GraphTraining, PassFigures, graph_page};
pub use summary::summary;
use summary::{chosen, figures as figures_of};
pub use values::{
    Adjusted, Bucket, Change, Floors, Line, Passed, Planned, PlannedRank, Point, Report, Run,
    Split, lines,
};

/// Returns the page of a training, or of several that are compared.
pub fn page(report: &Report) -> String {
    let title = title(report);
    let sections = [
        headline(report),
        losses(report),
        step_time(report),
        figures_table(report),
        comparison::on_page(report),
        planned::on_page(report),
        changes(report),
        adjusted(report),
        timelines(report),
        buckets(report),
        samples(report),
        how_to_reproduce(report),
    ];
    document(&title, &sections.concat())
}

fn title(report: &Report) -> String {
    let names: Vec<_> = report.runs.iter().map(Run::name).collect();
    escape(&format!("thinwire: {}{}", names.join(", "), on_ranks(report)))
}

/// The number of ranks, where all runs have the same.
fn on_ranks(report: &Report) -> String {
    match report.ranks {
        0 => String::new(),
        ranks => format!(" on {}", counted(ranks as usize, "rank")),
    }
}

fn headline(report: &Report) -> String {
    let Some(best) = fastest(report) else {
        return String::new();
    };
    let what = if report.runs.len() == 1 { "Training" } else { "Comparison" };
    let title = format!("{what}{}", on_ranks(report));
    header(&title, &lead(report, best), &tiles(best))
}

fn lead(report: &Report, best: &Run) -> String {
    let fastest = if report.runs.len() == 1 { "A step" } else { "The fastest step" };
    let (with, arithmetic) = match best.planned {
        Some(_) => (" under the plan".to_owned(), "the busiest rank’s arithmetic"),
        None => {
            let mode =
                best.mode.as_ref().map(|mode| format!(" in mode <code>{}</code>", escape(mode)));
            let with =
                format!(" with <code>{}</code>{}", escape(best.name()), mode.unwrap_or_default());
            (with, "the arithmetic alone")
        }
    };
    // As many bytes, but for headers and rounding, are nothing to tell of.
    let fewer = match best.compression() {
        times if times.is_finite() && times >= 1.005 => {
            format!(", with {} fewer bytes on the wire than raw f32", figures::ratio(times))
        }
        _ => String::new(),
    };
    let link = match report.link.is_empty() {
        true => String::new(),
        false => format!("Link: {}.", escape(&report.link)),
    };
    format!(
        "{fastest} took {}{with}: {} the time of {arithmetic}{fewer}. {}{link}",
        figures::seconds(best.time.step_s),
        figures::ratio(best.over_compute()),
        accuracy(report, best),
    )
}

/// Time is never told without accuracy.
fn accuracy(report: &Report, best: &Run) -> String {
    let loss = |run: &Run| run.last_validation().unwrap_or(f64::INFINITY);
    let lowest = report.runs.iter().min_by(|a, b| loss(a).total_cmp(&loss(b)));
    match lowest {
        // Losses that are shown alike are not told apart.
        Some(lowest) if (1e-3..f64::INFINITY).contains(&(loss(best) - loss(lowest))) => format!(
            "{} its validation loss was {:.3}, the lowest {:.3} with <code>{}</code>. ",
            if best.steps == lowest.steps { "After as many steps" } else { "At the end" },
            loss(best),
            loss(lowest),
            escape(lowest.name())
        ),
        _ => String::new(),
    }
}

fn tiles(run: &Run) -> Vec<(String, &'static str)> {
    let validation = run.last_validation().map_or("–".to_owned(), |loss| format!("{loss:.3}"));
    let last = match run.buckets.is_empty() {
        true => (figures::ratio(run.compression()), "raw over sent"),
        false => (figures::percent(run.overlap), "of the exchange hidden"),
    };
    vec![
        (validation, "validation loss"),
        (figures::seconds(run.time.step_s), "per step"),
        (figures::bytes(run.sent_bytes), "sent per step and rank"),
        last,
    ]
}

fn losses(report: &Report) -> String {
    let runs = &report.runs;
    let curves: Vec<Curve> = runs.iter().map(Curve::of_loss).collect();
    let charts = if runs.len() == 1 {
        chart("loss", &curves, Across::Steps, [960.0, 340.0])
    } else {
        let half =
            |across| format!("<div>{}</div>\n", chart("loss", &curves, across, [480.0, 320.0]));
        format!("<div class=\"pair\">\n{}{}</div>\n", half(Across::Steps), half(Across::Seconds))
    };
    section(
        "Loss",
        &format!(
            "In nats per {}. Faint: every step; bold: its moving average; rings: validation.",
            if runs.iter().any(|run| run.is_of_images) { "image" } else { "byte" }
        ),
        &charts,
    )
}

/// Meaning of the colours of a step's bars; the last three are those of buckets.
const BARS: [(&str, &str); 6] = [
    ("compute", "compute"),
    ("slowed", "compute, slowed by the exchange beside it"),
    ("wait", "wait"),
    ("encode", "encode"),
    ("wire", "wire"),
    ("decode", "decode"),
];

/// Number of the colours that a step without buckets has.
const OF_STEP: usize = 3;

fn step_time(report: &Report) -> String {
    let has_buckets = report.has_buckets();
    let legend = legend(if has_buckets { &BARS } else { &BARS[..OF_STEP] });
    let compute = match report.is_planned() {
        true => "floor: compute of the busiest rank",
        false => "floor: compute alone",
    };
    let mut floors = format!("<span><i class=\"mark\"></i>{compute}</span>");
    if report.runs.iter().any(|run| run.floors.wire_s.is_some()) {
        floors += "<span><i class=\"mark dashed\"></i>floor: bytes over bandwidth</span>";
    }
    let floors = format!("<p class=\"legend\">{floors}</p>\n");
    let note = match has_buckets {
        true => {
            "The wide bar is the step as it passed on rank 0; the narrow one is what the communication thread did beside it. No step ends before a floor."
        }
        false => "The step as it passed on rank 0. None ends before a floor.",
    };
    let bars = legend + &floors + &bars::step_time(&report.runs);
    section("Where a step’s time goes", note, &bars) + &pace(report)
}

/// The time of every step of several runs over each other; nothing of one.
fn pace(report: &Report) -> String {
    if report.runs.len() < 2 {
        return String::new();
    }
    let curves: Vec<Curve> = report.runs.iter().map(Curve::of_steps).collect();
    let note = "In milliseconds. Faint: every step; bold: the moving average.";
    section("Time of a step", note, &chart("time", &curves, Across::Steps, [960.0, 300.0]))
}

fn figures_table(report: &Report) -> String {
    let names = report.runs.iter().map(Run::name);
    let rows = figures_of(report).into_iter().map(|(name, figure)| {
        std::iter::once(name.to_owned()).chain(report.runs.iter().map(figure))
    });
    let table = table(std::iter::once("").chain(names), rows);
    section(
        "Figures",
        "Medians over the second half of the steps, on rank 0. Losses: the training loss is the mean of the last tenth.",
        &table,
    )
}

fn changes(report: &Report) -> String {
    let all = report.runs.iter().flat_map(|run| &run.changes);
    let row = |change: &Change| {
        [
            change.epoch.to_string(),
            change.step.to_string(),
            change.ranks.to_string(),
            change.joined.to_string(),
            figures::seconds(change.pause_s),
        ]
    };
    let rows: Vec<_> = all.map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let note = "Ranks that were lost, left or joined. A pause is the time from the end of the last step before a change to that of the first one after it.";
    let table = table(["epoch", "first step", "ranks", "joined", "pause"], rows);
    section("Changes of membership", note, &table)
}

fn adjusted(report: &Report) -> String {
    let all = report.runs.iter().flat_map(|run| &run.adjusted);
    let row = |adjusted: &Adjusted| {
        let Adjusted { step, reason, .. } = adjusted;
        [step.to_string(), adjusted.asked(), reason.clone()]
    };
    let rows: Vec<_> = all.map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let note = "What policies have asked for. Batch, learning rate and error budget are in force one step later; ranks come and go when the job has them.";
    section("Policies", note, &table(["after step", "asked for", "why"], rows))
}

fn timelines(report: &Report) -> String {
    if !(report.is_planned() || report.has_buckets()) {
        return String::new();
    }
    let note = match report.is_planned() {
        true => {
            "What every rank did in the last step; what it waited for in a pass is drawn where the pass begins. Numbers of micro-batches under the pointer."
        }
        false => {
            "Above, what the rank computes; below, each bucket of gradients from the moment it is ready."
        }
    };
    section("One step", note, &per_run(report, timeline::timeline))
}

fn buckets(report: &Report) -> String {
    if !report.has_buckets() {
        return String::new();
    }
    let body = per_run(report, |run| bars::bucket_bytes(&run.buckets));
    section("Bytes per bucket", "Outline: as f32. Filled: as sent, headers included.", &body)
}

/// A drawing of every run; of several, all but the fastest are folded.
fn per_run(report: &Report, draw: impl Fn(&Run) -> String) -> String {
    if let [run] = report.runs.as_slice() {
        let choice = match choice(run) {
            none if none.is_empty() => none,
            choice => format!("<p class=\"chosen\">{}</p>\n", escape(&choice)),
        };
        return choice + &draw(run);
    }
    let fastest = fastest(report).map(Run::name);
    let fold = |run: &Run| {
        let open = if Some(run.name()) == fastest { " open" } else { "" };
        let (name, choice) = (escape(run.name()), escape(&choice(run)));
        let summary = format!("<summary>{name} <small>{choice}</small></summary>");
        format!("<details{open}>{summary}\n{}</details>\n", draw(run))
    };
    report.runs.iter().map(fold).collect()
}

fn fastest(report: &Report) -> Option<&Run> {
    report.runs.iter().min_by(|a, b| a.time.step_s.total_cmp(&b.time.step_s))
}

/// Returns the codecs that the buckets travelled with; for `auto` what it said of those it chose.
fn choice(run: &Run) -> String {
    if let Some(line) = &run.auto {
        return line.clone();
    }
    let choices = chosen(run).into_iter();
    let all = run.buckets.len();
    choices
        .map(|(codec, buckets)| format!("{codec} for {buckets} of {all}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn samples(report: &Report) -> String {
    let body: String = report
        .runs
        .iter()
        .filter(|run| !run.sample.is_empty())
        .map(|run| {
            let name = if report.runs.len() > 1 {
                format!("<h3>{}</h3>\n", escape(run.name()))
            } else {
                String::new()
            };
            format!("{name}<pre>{}</pre>\n", escape(&run.sample))
        })
        .collect();
    if body.is_empty() { body } else { section("What the model writes", "", &body) }
}

/// The command, the machine and all settings.
fn how_to_reproduce(report: &Report) -> String {
    let facts =
        [("machine", &report.machine), ("date", &report.date), ("version", &report.version)];
    let facts = facts.into_iter().filter(|(_, value)| !value.is_empty());
    let facts = facts.map(|(name, value)| (name.to_owned(), value.clone()));
    let rows: String = facts
        .chain(report.settings.iter().cloned())
        .map(|(name, value)| {
            format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(&name), escape(&value))
        })
        .collect();
    let body = format!(
        "<pre class=\"command\">{}</pre>\n<dl class=\"settings\">\n{rows}</dl>\n",
        escape(&report.command)
    );
    section(
        "How to reproduce",
        "The same command with the same seed on the same data gives the same losses; times depend on the machine.",
        &body,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run as it might be: `speed` scales what the exchange costs.
    fn run(codec: &str, speed: f64) -> Run {
        let step_s = 0.42 + 0.3 * speed;
        let point = |step: u64| {
            let noise = ((step * 7919) % 101) as f64 / 400.0;
            let value = 1.6 + 3.9 * (-(step as f64) / 60.0).exp() + noise;
            Point { step, at_s: step as f64 * step_s, value }
        };
        let bucket = |index: usize| Bucket {
            name: format!("block.{index}.mlp.up.weight … block.{index}.attention.out.weight"),
            codec: codec.to_owned(),
            algorithm: "two-shot".to_owned(),
            raw_bytes: 1.6e6,
            sent_bytes: 1.6e6 * speed,
            ready_s: 0.1 + 0.05 * index as f64,
            done_s: 0.11 + 0.05 * index as f64 + 0.08 * speed,
            encode_s: 0.004,
            decode_s: 0.003,
            ..Bucket::default()
        };
        let time = Split { step_s, compute_s: 0.41, wait_s: 0.3 * speed, ..Split::default() };
        Run {
            codec: codec.to_owned(),
            losses: (0..300).map(point).collect(),
            validation: (0..300).step_by(50).map(point).collect(),
            time: Split { wire_s: 0.42 * speed, commit_s: 0.01, backward_s: 0.38, ..time },
            floors: Floors { compute_s: 0.38, wire_s: Some(0.5 * speed) },
            raw_bytes: 9.6e6,
            sent_bytes: 9.6e6 * speed,
            overlap: 0.9,
            buckets: (0..6).map(bucket).collect(),
            sample: "fn main() {\n    let x = <T>::new(\"&\");\n}".to_owned(),
            ..Run::default()
        }
    }

    fn report(runs: Vec<Run>) -> Report {
        let settings = vec![("layers".to_owned(), "6".to_owned())];
        let link = "100 Mbit/s per rank and direction".to_owned();
        Report { ranks: 2, link, settings, runs, ..Report::default() }
    }

    /// The page needs nothing else: no address in it is ever fetched.
    #[test]
    fn the_page_is_self_contained_and_escapes_what_it_shows() {
        let codecs = [("none", 1.0), ("int8", 0.26), ("topk:0.01", 0.02), ("auto", 0.2)];
        let runs = codecs.map(|(codec, speed)| run(codec, speed)).to_vec();
        for (name, runs) in [("one", vec![run("int8", 0.26)]), ("several", runs)] {
            let page = page(&report(runs));
            for foreign in ["http://", "https://", "src=", "href=", "url(", "@import", "NaN"] {
                assert!(!page.contains(foreign), "{foreign}");
            }
            assert!(page.contains("&lt;T&gt;::new(&quot;&amp;&quot;)"));
            if let Some(folder) = std::env::var_os("THINWIRE_KEEP_PAGES") {
                std::fs::write(std::path::Path::new(&folder).join(format!("{name}.html")), page)
                    .unwrap();
            }
        }
    }

    /// Empty sections are not named.
    #[test]
    fn a_page_tells_of_what_the_run_has() {
        let plain = page(&report(vec![run("int8", 0.26)]));
        for part in ["took", "with <code>int8</code>", "3.85× fewer bytes", "bytes over bandwidth<"]
        {
            assert!(plain.contains(part), "{part}");
        }
        let line = "auto: int8 for 5 of 6 buckets, 22 % faster than raw; 1 trial";
        let auto = Run { auto: Some(line.to_owned()), ..run("auto", 0.26) };
        assert!(
            page(&report(vec![auto.clone()])).contains(&format!("<p class=\"chosen\">{line}</p>"))
        );
        assert!(
            page(&report(vec![run("int8", 0.3), auto])).contains(&format!("<small>{line}</small>"))
        );
        let floors = Floors { compute_s: 0.4, wire_s: None };
        let planned = Run { planned: Some(Planned::default()), floors, ..run("plan", 1.0) };
        let planned = page(&report(vec![planned]));
        assert!(planned.contains("under the plan: ") && planned.contains("of the busiest rank<"));
        for part in ["<code>plan</code>", "fewer bytes", "bytes over bandwidth"] {
            assert!(!planned.contains(part), "{part}");
        }
    }

    #[test]
    fn steps_between_rounds_have_no_exchange() {
        let time = Split { step_s: 0.1, compute_s: 0.1, ..Split::default() };
        let mode = Some("diloco:30".to_owned());
        let rounds = Run { mode, time, buckets: Vec::new(), ..run("int4", 0.1) };
        let text = summary(&report(vec![run("int8", 0.3), rounds]));
        let waits = text.lines().find(|line| line.contains("wait for the exchange")).unwrap();
        assert!(waits.ends_with('–') && !text.contains("0 ns"), "{text}");
    }

    #[test]
    fn a_report_of_nothing_is_a_page() {
        let page = page(&Report { runs: vec![Run::default()], ..Report::default() });
        assert!(page.ends_with("</html>\n"));
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }
}
