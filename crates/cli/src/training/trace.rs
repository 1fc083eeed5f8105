//! The trace of a training: one line of JSON per step, with what every bucket's exchange took and
//! what was planned, or under a plan what rank 0 did when. `thinwire plan sync` reads it. Beside it lies the
//! same as a timeline.

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

/// A trace; one of a million steps whose gradients travel in some dozen buckets is shorter.
const TRACE: Sort = Sort {
    name: "a trace",
    bytes_max: 1 << 32,
    hint: "thinwire train --codec auto --trace FILE writes one",
};

/// Extension of a timeline, in place of that of its trace.
const TIMELINE: &str = "trace.json";

/// One line: a step of the training under one codec.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The codec that was asked for.
    pub codec: String,
    /// Record of the step's exchange.
    #[serde(flatten)]
    pub record: StepRecord,
    /// Under a plan, what rank 0 did in the step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<Passed>,
}

/// A trace that is being written, or none.
#[derive(Debug, Default)]
pub struct Trace {
    codec: String,
    file: Option<(PathBuf, BufWriter<File>)>,
    timeline: Option<(PathBuf, Timeline)>,
}

/// Makes sure that a trace can be written to `path`, before anything is trained.
///
/// # Errors
/// If it cannot.
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

/// Returns the path of the timeline beside a trace; none beside a pipe or a device.
fn timeline_of(trace: &Path) -> Option<PathBuf> {
    let is_file = !trace.exists() || trace.is_file();
    is_file.then(|| trace.with_extension(TIMELINE))
}

impl Trace {
    /// Continues with the trace at `path` after so many trainings, of which the first one makes it.
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

/// The steps of a trace.
///
/// # Errors
/// If the file cannot be read, or a line is none of a trace.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let parse = |(number, line): (usize, &str)| {
        let place = || format!("{}, line {}, is no step of a trace", path.display(), number + 1);
        serde_json::from_str(line).with_context(place)
    };
    let lines = file::text(path, &TRACE)?;
    lines.lines().enumerate().map(parse).collect::<Result<_>>().or_hint(TRACE.hint)
}
