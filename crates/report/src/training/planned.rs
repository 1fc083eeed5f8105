//! Predictions of a planned training, next to the measurements.

use super::values::{Planned, PlannedRank, Report};
use crate::figures::{binary, bytes, ratio, seconds};
use crate::html::{self, escape, section};
use crate::table::Table;

/// If a step takes this many times the predicted time, the report looks for the reason.
const FAR: f64 = 1.3;

const HEADER: [&str; 7] = [
    "rank",
    "stage",
    "sent, predicted",
    "sent, counted",
    "memory, predicted",
    "memory, grown",
    "busy",
];

impl Planned {
    /// Returns the cells of every rank, in the order of [`HEADER`].
    fn rows(&self) -> impl Iterator<Item = [String; HEADER.len()]> {
        let steps = self.steps.max(1) as f64;
        let row = move |rank: &PlannedRank| {
            [
                rank.rank.to_string(),
                rank.stage.to_string(),
                bytes(rank.predicted_bytes as f64 / steps),
                bytes(rank.counted_bytes as f64 / steps),
                binary(rank.predicted_memory_bytes as f64),
                binary(rank.memory_bytes as f64),
                seconds(rank.busy_s),
            ]
        };
        self.ranks.iter().map(row)
    }

    fn verdicts(&self) -> Vec<String> {
        let equal = self.ranks.iter().all(|rank| rank.predicted_bytes == rank.counted_bytes);
        let verdict = if equal { "as many as predicted" } else { "NOT as many as predicted" };
        let (predicted, measured) = (self.predicted_step_s, self.step_s);
        let longer = measured > FAR * predicted && predicted > 0.0;
        let why = "the step takes longer than predicted: are links and cores here those that the plan was made for? thinwire plan calibrate with the same --link measures them";
        let told = [
            format!("bytes sent in {} steps: {verdict}", self.steps),
            format!(
                "step: {} predicted, {} measured ({} of it)",
                seconds(predicted),
                seconds(measured),
                ratio(measured / predicted)
            ),
        ];
        told.into_iter().chain(longer.then(|| why.to_owned())).collect()
    }
}

/// Returns the table of all ranks.
pub fn table(planned: &Planned) -> String {
    let mut table = Table::new(HEADER);
    planned.rows().for_each(|row| table.row(row));
    format!("{table}\n{}\n", planned.verdicts().join("\n"))
}

/// Returns the table as a section of a page; empty if there was no plan.
pub fn on_page(report: &Report) -> String {
    let all: Vec<&Planned> = report.runs.iter().filter_map(|run| run.planned.as_ref()).collect();
    if all.is_empty() {
        return String::new();
    }
    let body: String = all.into_iter().map(drawn).collect();
    let note = "What the plan had predicted for every rank beside what was counted. Bytes are those of a step, headers included; busy is a step without waiting for others.";
    section("Predicted and counted", note, &body)
}

fn drawn(planned: &Planned) -> String {
    let verdicts = planned.verdicts();
    let verdicts = verdicts.iter().map(|verdict| format!("<p>{}</p>", escape(verdict)));
    html::table(HEADER, planned.rows()) + &verdicts.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::Run;

    #[test]
    fn a_page_says_of_every_rank_what_was_predicted_and_counted() {
        let rank = |rank| PlannedRank {
            rank,
            predicted_bytes: 2000,
            counted_bytes: 2000 + rank as u64,
            ..PlannedRank::default()
        };
        let planned = Planned { steps: 2, ranks: vec![rank(0), rank(1)], ..Planned::default() };
        let run = Run { planned: Some(planned), ..Run::default() };
        let page = on_page(&Report { runs: vec![run], ..Report::default() });
        for part in ["<th>sent, predicted</th>", "<th>1</th>", "NOT as many as predicted"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let told = |step_s| {
            let planned = Planned { predicted_step_s: 1.0, step_s, ..Planned::default() };
            table(&planned).contains("longer than predicted")
        };
        assert!(!told(1.29) && told(1.31));
        assert_eq!(on_page(&Report { runs: vec![Run::default()], ..Report::default() }), "");
    }
}
