//! Report of a graph neural network: its passes as curves, bars and a table on a page of HTML.

use serde::Serialize;

use super::curves::{Across, Curve, chart};
use super::{Point, Report, how_to_reproduce};
use crate::figures::{bytes, seconds};
use crate::html::{document, escape, header, legend, section, table};
use crate::svg::{Axis, drawing, rect, text, time_axis};

/// Figures of a pass over the training vertices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PassFigures {
    /// Number of the pass, from 1 on.
    pub pass: u64,
    /// Mean loss of the training vertices; each is measured before the step that trains on it.
    pub loss: f64,
    /// Fraction of the training vertices that were right at that time.
    pub training_accuracy: f64,
    /// Fraction of the validation vertices that are right after the pass, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
    /// Seconds of training.
    pub seconds: f64,
    /// Part of these seconds in which rank 0 waited for batches and their rows.
    pub loading_s: f64,
    /// Part of these seconds in which rank 0 waited for gradients of other ranks.
    pub wait_s: f64,
    /// Bytes that rank 0 sent.
    pub sent_bytes: u64,
}

/// A training of a graph neural network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphTraining {
    /// Network and graph in a line.
    pub title: String,
    /// Its passes.
    pub passes: Vec<PassFigures>,
    /// Fraction of the test vertices that are right at the end, if there are any.
    pub test_accuracy: Option<f64>,
}

/// Returns the page of a training. `report` contains everything about it except runs.
pub fn graph_page(report: &Report, training: &GraphTraining) -> String {
    let sections = [
        headline(report, training),
        curves(training),
        section(
            "Where a pass’s time goes",
            "On rank 0. Loading is what the training had to wait for: batches are sampled ahead of it.",
            &(legend(&PARTS) + &times(&training.passes)),
        ),
        section("Passes", "", &passes(&training.passes)),
        how_to_reproduce(report),
    ];
    document(&escape(&format!("thinwire: {}", training.title)), &sections.concat())
}

fn headline(report: &Report, training: &GraphTraining) -> String {
    let GraphTraining { title, passes, test_accuracy } = training;
    let last = passes.last();
    let accuracy = |share: Option<f64>| share.map_or("–".to_owned(), percent);
    let mean = |figure: fn(&PassFigures) -> f64| {
        passes.iter().map(figure).sum::<f64>() / passes.len().max(1) as f64
    };
    let tiles = [
        (accuracy(*test_accuracy), "test accuracy"),
        (accuracy(last.and_then(|pass| pass.validation_accuracy)), "validation accuracy"),
        (seconds(mean(|pass| pass.seconds)), "per pass"),
        (bytes(mean(|pass| pass.sent_bytes as f64)), "sent per pass and rank"),
    ];
    header(&escape(title), &format!("Link: {}.", escape(&report.link)), &tiles)
}

fn curves(training: &GraphTraining) -> String {
    let curve = |name: &str, figure: fn(&PassFigures) -> Option<f64>| {
        let mut at_s = 0.0;
        let point = |pass: &PassFigures| {
            at_s += pass.seconds;
            Some(Point { step: pass.pass, at_s, value: figure(pass)? })
        };
        let points = training.passes.iter().filter_map(point).collect();
        Curve { name: name.to_owned(), points, rings: Vec::new() }
    };
    let loss = curve("loss", |pass| Some(pass.loss));
    let accuracies = [
        curve("training", |pass| Some(100.0 * pass.training_accuracy)),
        curve("validation", |pass| pass.validation_accuracy.map(|share| 100.0 * share)),
    ];
    let accuracies: Vec<Curve> =
        accuracies.into_iter().filter(|curve| !curve.points.is_empty()).collect();
    let size = [480.0, 300.0];
    let [loss, accuracy] = [
        chart("loss", &[loss], Across::Passes, size),
        chart("accuracy", &accuracies, Across::Passes, size),
    ];
    let note = "Left: the mean loss in nats per vertex. Right: percent of vertices that are right, those for training before the step of each.";
    let body = format!("<div class=\"pair\">\n<div>{loss}</div>\n<div>{accuracy}</div>\n</div>\n");
    section("Loss and accuracy", note, &body)
}

/// Meaning of the colours of a pass's bar.
const PARTS: [(&str, &str); 3] = [
    ("compute", "compute"),
    ("encode", "loading of batches"),
    ("wait", "wait for gradients of other ranks"),
];

const LEFT: f64 = 80.0;
const RIGHT: f64 = 900.0;
const ROW: f64 = 20.0;
/// Largest number of passes that are drawn and listed, the last ones.
const ROWS_MAX: usize = 100;

fn shown(passes: &[PassFigures]) -> &[PassFigures] {
    &passes[passes.len().saturating_sub(ROWS_MAX)..]
}

fn times(passes: &[PassFigures]) -> String {
    let passes = shown(passes);
    let longest_s = passes.iter().map(|pass| pass.seconds).fold(0.0, f64::max);
    let x = Axis::new(0.0, 1e3 * longest_s, LEFT, RIGHT);
    let height = ROW * passes.len() as f64 + 42.0;
    let row = |(at, pass): (usize, &PassFigures)| {
        let top = ROW * at as f64 + 4.0;
        let compute_s = (pass.seconds - pass.loading_s - pass.wait_s).max(0.0);
        let mut from_s = 0.0;
        let parts = [compute_s, pass.loading_s, pass.wait_s].into_iter().zip(PARTS);
        let bar = |(taken_s, (class, what)): (f64, (&str, &str))| {
            let from = x.at(1e3 * from_s);
            from_s += taken_s;
            let width = (x.at(1e3 * from_s) - from).max(0.0);
            rect(class, [from, top, width, 14.0], &format!("{what}: {}", seconds(taken_s)))
        };
        let bars: String = parts.map(bar).collect();
        text("row small", [LEFT - 12.0, top + 12.0], "end", &format!("pass {}", pass.pass)) + &bars
    };
    let rows: String = passes.iter().enumerate().map(row).collect();
    drawing("time of passes", height, &(time_axis(&x, height - 26.0) + &rows))
}

fn passes(passes: &[PassFigures]) -> String {
    let row = |pass: &PassFigures| {
        [
            pass.pass.to_string(),
            format!("{:.4}", pass.loss),
            percent(pass.training_accuracy),
            pass.validation_accuracy.map_or("–".to_owned(), percent),
            seconds(pass.seconds),
            seconds(pass.loading_s),
            seconds(pass.wait_s),
            bytes(pass.sent_bytes as f64),
        ]
    };
    let header = ["pass", "loss", "training", "validation", "time", "loading", "waiting", "sent"];
    table(header, shown(passes).iter().map(row))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_pass() {
        let pass = |pass| PassFigures {
            pass,
            loss: 1.5 / pass as f64,
            training_accuracy: 0.5,
            validation_accuracy: Some(0.25),
            seconds: 2.0,
            loading_s: 0.5,
            wait_s: 0.25,
            sent_bytes: 1000,
        };
        let passes = (1..=3).map(pass).collect();
        let training =
            GraphTraining { title: "a < b".to_owned(), passes, test_accuracy: Some(0.75) };
        let page = graph_page(&Report::default(), &training);
        for part in
            ["a &lt; b", "75.0 %", "<th>3</th><td>0.5000</td>", "loading of batches: 500 ms"]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
        let empty = graph_page(&Report::default(), &GraphTraining::default());
        assert!(empty.ends_with("</html>\n") && !empty.contains("NaN"));
    }
}
