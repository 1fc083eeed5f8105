//! Several trainings in one report: records are read, common facts stay, and differences become a
//! table.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::values::{Report, Run};
use crate::html::{self, section};
use crate::table::Table;

/// One training, as `--json` prints it.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(default)]
    steps: u64,
    #[serde(flatten)]
    run: Run,
    #[serde(flatten)]
    report: Report,
}

/// Trainings of one file.
#[derive(Clone, Debug)]
pub struct Record {
    /// Name of the file.
    pub name: String,
    /// Trainings, each as a report of one run.
    pub trainings: Vec<Report>,
}

/// Reads trainings, a line of JSON each.
///
/// # Errors
/// If a line is not the record of a training. The error has the number of the line, from 1 on.
pub fn read(text: &str) -> Result<Vec<Report>, (usize, serde_json::Error)> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(index, line)| one(line).map_err(|error| (index + 1, error))).collect()
}

fn one(line: &str) -> Result<Report, serde_json::Error> {
    use serde::de::Error;
    let value: Value = serde_json::from_str(line)?;
    if !(value["codec"].is_string() && value["losses"].is_array()) {
        return Err(Error::custom("no codec and losses"));
    }
    let Line { steps, mut run, report } = serde_json::from_value(without_nulls(value))?;
    run.steps = steps;
    run.is_of_images = run.accuracy.is_some();
    Ok(Report { runs: vec![run], ..report })
}

/// Removes nulls, which JSON has in place of numbers that are not finite.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, value)| !value.is_null());
            kept.map(|(name, value)| (name, without_nulls(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(without_nulls).collect(),
        value => value,
    }
}

/// Returns the report of all trainings. Each is named after its codec or, if several have the same
/// codec, after its file.
pub fn compared(records: Vec<Record>) -> Report {
    let codecs = records.iter().flat_map(|record| &record.trainings).flat_map(|it| &it.runs);
    let codecs: Vec<String> = codecs.map(|run| run.codec.clone()).collect();
    let are_told_apart = codecs.iter().collect::<BTreeSet<_>>().len() == codecs.len();
    let mut all: Vec<Report> = Vec::new();
    for Record { name, trainings } in records {
        let is_alone = trainings.len() == 1;
        for mut training in trainings {
            for run in &mut training.runs {
                let label = match is_alone {
                    true => name.clone(),
                    false => format!("{name} {}", run.codec),
                };
                run.label = (!are_told_apart).then_some(label);
            }
            all.push(training);
        }
    }
    let facts = facts(&all);
    let common = |name: &str| {
        let found = facts.iter().find(|(fact, _)| fact == name);
        found.and_then(|(_, values)| same(values)).unwrap_or_default()
    };
    let is_own = |name: &str| OWN.contains(&name);
    let (mut settings, mut differences) = (Vec::new(), Vec::new());
    for (name, values) in facts.iter().filter(|(_, values)| !values.is_empty()) {
        match same(values) {
            Some(value) if !is_own(name) => settings.push((name.clone(), value)),
            Some(_) => {}
            // The codecs are the names of the columns.
            None if name == "codec" && are_told_apart => {}
            None if name != COMMAND => differences.push((name.clone(), values.clone())),
            None => {}
        }
    }
    let commands: BTreeSet<&str> = all.iter().map(|report| &report.command[..]).collect();
    let rate = |report: &Report| report.link_bytes_per_s;
    let first = all.first().map(rate).unwrap_or_default();
    Report {
        command: commands.into_iter().collect::<Vec<_>>().join("\n"),
        version: common("version"),
        date: common("date"),
        machine: common("machine"),
        ranks: common("ranks").parse().unwrap_or(0),
        link: common("link"),
        link_bytes_per_s: first.filter(|_| all.iter().all(|report| rate(report) == first)),
        settings,
        differences,
        runs: all.into_iter().flat_map(|report| report.runs).collect(),
    }
}

const COMMAND: &str = "command";
/// Facts for which a report has fields of their own.
const OWN: [&str; 6] = ["version", "date", "machine", "ranks", "link", COMMAND];

/// Returns the facts of all trainings by name: the value of each training, or a dash if it has none.
fn facts(all: &[Report]) -> Vec<(String, Vec<String>)> {
    let of = |report: &Report| {
        let run = report.runs.first();
        let codec = run.map_or(String::new(), |run| run.codec.clone());
        let mode = run.and_then(|run| run.mode.clone()).unwrap_or_else(|| "all-reduce".to_owned());
        let Report { version, date, machine, ranks, link, .. } = report;
        let ranks = ranks.to_string();
        let own = [("codec", &codec), ("mode", &mode), ("ranks", &ranks), ("link", link)];
        let about = [("machine", machine), ("version", version), ("date", date)];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.clone()));
        let about = about.into_iter().map(|(name, value)| (name.to_owned(), value.clone()));
        let steps = run.map_or(0, |run| run.steps).to_string();
        own.chain([("steps".to_owned(), steps)])
            .chain(report.settings.iter().filter(|(name, _)| name != "steps").cloned())
            .chain(about)
            .collect::<Vec<_>>()
    };
    let all: Vec<Vec<(String, String)>> = all.iter().map(of).collect();
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in all.iter().flatten() {
        if !names.contains(&&name[..]) {
            names.push(name);
        }
    }
    let value = |facts: &[(String, String)], name: &str| {
        let found = facts.iter().find(|(fact, _)| fact == name);
        found.map_or("–".to_owned(), |(_, value)| value.clone())
    };
    let values = |name: &str| all.iter().map(|facts| value(facts, name)).collect();
    names.into_iter().map(|name| (name.to_owned(), values(name))).collect()
}

/// Returns the value of all, if they are equal.
fn same(values: &[String]) -> Option<String> {
    let first = values.first()?;
    values.iter().all(|value| value == first).then(|| first.clone())
}

/// Returns the differences as a section of a page; empty if there are none.
pub fn on_page(report: &Report) -> String {
    if report.differences.is_empty() {
        return String::new();
    }
    let names = std::iter::once("").chain(report.runs.iter().map(Run::name));
    let rows = report.differences.iter();
    let rows = rows.map(|(name, values)| std::iter::once(name).chain(values));
    section("What differs", "Everything else is the same.", &html::table(names, rows))
}

/// Returns the differences as a table in plain text; empty if there are none.
pub fn differences(report: &Report) -> String {
    if report.differences.is_empty() {
        return String::new();
    }
    let names = std::iter::once("differences").chain(report.runs.iter().map(Run::name));
    let mut table = Table::new(names);
    for (name, values) in &report.differences {
        table.row(std::iter::once(name).chain(values));
    }
    format!("\n{table}")
}

#[cfg(test)]
mod tests {
    use super::super::{Point, lines, page, summary};
    use super::*;

    fn training(codec: &str, lr: &str) -> Report {
        let point = |step| Point { step, at_s: 0.5 * step as f64, value: 3.0 - step as f64 };
        let run = Run {
            codec: codec.to_owned(),
            steps: 3,
            losses: (0..3).map(point).collect(),
            raw_bytes: 40.0,
            sent_bytes: 10.0,
            ..Run::default()
        };
        let settings = [("lr", lr), ("seed", "1")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Report { ranks: 2, settings, runs: vec![run], ..Report::default() }
    }

    fn printed(report: &Report) -> String {
        let line = |line| serde_json::to_string(&line).unwrap() + "\n";
        lines(report).into_iter().map(line).collect()
    }

    fn record(name: &str, training: Report) -> Record {
        Record { name: name.to_owned(), trainings: vec![training] }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        let mut written = training("int8", "0.1");
        assert_eq!(read(&printed(&written)).unwrap(), [written.clone()]);
        // A loss that is no number stays none, and the rest is there.
        written.runs[0].losses[1].value = f64::NAN;
        let read = read(&printed(&written)).unwrap();
        let values: Vec<f64> = read[0].runs[0].losses.iter().map(|point| point.value).collect();
        assert!(values[0] == 3.0 && values[1].is_nan() && values[2] == 1.0, "{values:?}");
    }

    #[test]
    fn other_lines_are_refused_by_their_number() {
        let text = printed(&training("int8", "0.1")) + "\n{\"pass\": 1}\n";
        assert_eq!(read(&text).unwrap_err().0, 3);
        assert_eq!(read("text").unwrap_err().0, 1);
    }

    #[test]
    fn what_differs_is_a_table_and_the_rest_is_told_once() {
        let [first, second] = [training("int8", "0.1"), training("int8", "0.2")];
        let report = compared(vec![record("a", first), record("b", second)]);
        let lr = ("lr".to_owned(), vec!["0.1".to_owned(), "0.2".to_owned()]);
        assert_eq!(report.differences, [lr]);
        assert!(report.settings.contains(&("seed".to_owned(), "1".to_owned())));
        let names: Vec<&str> = report.runs.iter().map(Run::name).collect();
        assert_eq!((names, report.ranks), (vec!["a", "b"], 2));
        let page = page(&report);
        for part in ["<th>a</th><th>b</th>", "<h2>What differs</h2>", "<h2>Time of a step</h2>"] {
            assert!(page.contains(part), "{part}");
        }
        assert!(summary(&report).contains("differences    a    b\nlr           0.1  0.2\n"));
    }

    #[test]
    fn trainings_of_different_codecs_are_named_by_them() {
        let trainings = vec![training("none", "0.1"), training("int8", "0.1")];
        let report = compared(vec![Record { name: "a".to_owned(), trainings }]);
        let names: Vec<&str> = report.runs.iter().map(Run::name).collect();
        assert_eq!(names, ["none", "int8"]);
    }
}
