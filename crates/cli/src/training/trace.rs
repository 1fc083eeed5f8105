//! Trace of a training, with one line of JSON per step. A line has the exchange of every bucket and the plan
//! made in the step, or under a plan the passes of rank 0. `thinwire plan sync` reads it. A timeline with the
//! same data is written to a second file in the same folder.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result};
use serde::{Deserialize, Serialize};
use thinwire_report::training::Passed;
use thinwire_sync::StepRecord;
use thinwire_train::session::Step;

use super::timeline::Timeline;
use crate::failure::OrHint;
use crate::file::{self, Sort};

/// A trace. The limit is enough for a million steps with a few dozen buckets.
const TRACE: Sort = Sort {
    name: "a trace",
    bytes_max: 1 << 32,
    hint: "thinwire train --codec auto --trace FILE writes one",
};

/// Extension of a timeline, which replaces the extension of its trace.
const TIMELINE: &str = "trace.json";

/// One line of a trace: a step of the training with one codec.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The requested codec.
    pub codec: String,
    /// Record of the step's exchange.
    #[serde(flatten)]
    pub record: StepRecord,
    /// Passes of rank 0 in the step, under a plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<Passed>,
}

/// A trace that is being written, or no trace.
#[derive(Debug, Default)]
pub struct Trace {
    codec: String,
    file: Option<(PathBuf, BufWriter<File>)>,
    timeline: Option<(PathBuf, Timeline)>,
}

/// Checks before the training that a trace can be written to `path`.
///
/// # Errors
/// If it cannot be written.
pub fn ensure(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    file::ensure_place(Some(path), "the trace", "--trace")?;
    ensure_written(path)?;
    timeline_of(path).map_or(Ok(()), |path| ensure_written(&path))
}

fn ensure_written(path: &Path) -> Result<()> {
    let made = !path.exists();
    // Appending changes nothing of what is there; whoever opens a pipe waits for its reader.
    if made || path.is_file() {
        let opened = File::options().create(true).append(true).open(path);
        opened
            .with_context(|| format!("cannot write the trace {}", path.display()))
            .or_hint("give the path of a writable file with --trace")?;
    }
    if made {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Returns the path of a trace's timeline, or `None` if the trace is a pipe or a device.
fn timeline_of(trace: &Path) -> Option<PathBuf> {
    let is_file = !trace.exists() || trace.is_file();
    is_file.then(|| trace.with_extension(TIMELINE))
}

impl Trace {
    /// Continues the trace at `path` after `trainings` trainings. The first training creates the file.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: Option<&Path>, codec: &str, trainings: usize) -> Result<Trace> {
        let Some(path) = path else { return Ok(Trace::default()) };
        let mut options = File::options();
        options.create(true).write(true).truncate(trainings == 0).append(trainings > 0);
        let file =
            options.open(path).with_context(|| format!("cannot write {}", path.display()))?;
        let file = Some((path.to_owned(), BufWriter::new(file)));
        let timeline = timeline_of(path).map(|path| {
            let opened = Timeline::open(&path, codec, trainings);
            let timeline = opened.with_context(|| format!("cannot write {}", path.display()))?;
            Ok::<_, Error>((path, timeline))
        });
        Ok(Trace { codec: codec.to_owned(), file, timeline: timeline.transpose()? })
    }

    /// Adds a step.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn step(&mut self, step: &Step, passes: impl FnOnce() -> Vec<Passed>) -> Result<()> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let line =
            Line { codec: self.codec.clone(), record: step.record.clone(), passes: passes() };
        let text = serde_json::to_string(&line)?;
        // Whoever watches sees whole steps.
        let written = writeln!(file, "{text}").and_then(|()| file.flush());
        written.with_context(|| format!("cannot write {}", path.display()))?;
        let Some((path, timeline)) = &mut self.timeline else { return Ok(()) };
        let written = timeline.step(&line.record, &line.passes, step.step_s);
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns the steps of a trace.
///
/// # Errors
/// If the file cannot be read, or a line is not a step of a trace.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let parse = |(number, line): (usize, &str)| {
        let place = || format!("{}, line {}, is no step of a trace", path.display(), number + 1);
        serde_json::from_str(line).with_context(place)
    };
    let lines = file::text(path, &TRACE)?;
    lines.lines().enumerate().map(parse).collect::<Result<_>>().or_hint(TRACE.hint)
}
