//! Timelines of actors: a row for each, bars on a common axis of time.

use thinwire_plan::pipeline::Kind;

use crate::figures;
use crate::svg::{Axis, drawing, rect, text, time_axis};

const LEFT: f64 = 116.0;
const RIGHT: f64 = 930.0;
const ROW: f64 = 20.0;
/// Largest number of bars that a page draws; later bars are left out, and the page says so.
const BARS_MAX: usize = 6000;

/// Colours of a pipeline's passes.
pub const PASSES: [(&str, &str); 3] =
    [("compute", "forward"), ("wire", "backward"), ("encode", "gradients of weights")];

/// Returns the colour of a pass, and the text that the pointer shows.
pub fn pass(kind: Kind, micro_batch: usize, chunk: usize) -> (&'static str, String) {
    let (class, what) = match kind {
        Kind::Forward => PASSES[0],
        Kind::Backward => PASSES[1],
        Kind::Weight => PASSES[2],
    };
    (class, format!("{what} of micro-batch {micro_batch}, chunk {chunk}"))
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The class of its colour.
    pub class: &'static str,
    /// Time of its beginning, in seconds.
    pub from_s: f64,
    /// Time of its end, in seconds.
    pub to_s: f64,
    /// Text that the pointer shows, in addition to the duration.
    pub what: String,
}

/// Row of one actor's work, in the order of time.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the actor.
    pub name: String,
    /// Bars of work; bars that take no time are not drawn.
    pub bars: Vec<Bar>,
}

/// Returns a drawing called `name` of these rows. It ends at `end_s`, or earlier if there are too
/// many bars.
pub fn gantt(name: &str, rows: &[Row], end_s: f64) -> String {
    let each = BARS_MAX / rows.len().max(1);
    let left_out = rows.iter().filter_map(|row| bars(row).nth(each)).map(|bar| bar.from_s);
    let shown_s = left_out.fold(end_s, f64::min);
    let x = Axis::new(0.0, 1e3 * shown_s, LEFT, RIGHT);
    let height = ROW * rows.len() as f64 + 42.0;
    let mut body = time_axis(&x, height - 26.0);
    for (at, row) in rows.iter().enumerate() {
        let top = ROW * at as f64 + 4.0;
        body += &text("row small", [LEFT - 12.0, top + 12.0], "end", &row.name);
        let shown = bars(row).filter(|bar| bar.from_s < shown_s);
        body += &shown.map(|bar| drawn(bar, &x, top)).collect::<String>();
    }
    let mut svg = drawing(name, height, &body);
    if shown_s < end_s {
        let (shown, whole) = (figures::seconds(shown_s), figures::seconds(end_s));
        svg += &format!("<p class=\"note\">The first {shown} of {whole}.</p>\n");
    }
    svg
}

/// Returns the bars that take any time.
fn bars(row: &Row) -> impl Iterator<Item = &Bar> {
    row.bars.iter().filter(|bar| bar.from_s < bar.to_s)
}

fn drawn(bar: &Bar, x: &Axis, top: f64) -> String {
    let (from, to) = (x.at(1e3 * bar.from_s), x.at(1e3 * bar.to_s));
    let title = format!("{} ({})", bar.what, figures::seconds(bar.to_s - bar.from_s));
    rect(bar.class, [from, top, (to - from - 0.3).max(0.3), 14.0], &title)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bars: usize) -> Row {
        let bar = |at: usize| Bar {
            class: "compute",
            from_s: at as f64,
            to_s: at as f64 + 1.0,
            what: "a < b".to_owned(),
        };
        Row { name: "rank 0".to_owned(), bars: (0..bars).map(bar).collect() }
    }

    #[test]
    fn what_there_is_no_room_for_is_said() {
        let svg = gantt("step", &[row(3)], 3.0);
        assert_eq!(svg.matches("<rect class=\"compute\"").count(), 3);
        assert!(svg.contains("a &lt; b (1.00 s)") && !svg.contains("The first"), "{svg}");
        let many = gantt("step", &[row(BARS_MAX), row(BARS_MAX)], BARS_MAX as f64);
        assert_eq!(many.matches("<rect").count(), BARS_MAX);
        assert!(many.contains("The first ") && many.contains(" of "), "{many}");
    }

    #[test]
    fn what_takes_no_time_is_not_drawn() {
        let mut empty = row(1);
        empty.bars[0].to_s = 0.0;
        assert!(!gantt("step", &[empty], 1.0).contains("<rect"));
    }
}
