//! Progress of a training: a bar on a terminal, or a few lines elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use thinwire_report::figures::{bytes, seconds};
use thinwire_sync::Planning;
use thinwire_train::session::Step;

use crate::output::{is_lively, is_quiet, is_verbose, say};

/// Approximate number of lines without a bar.
const LINES: u64 = 10;

/// The progress of one training. The default prints nothing, as on all ranks but the first.
#[derive(Default)]
pub struct Progress {
    bar: Option<ProgressBar>,
    lines: Option<u64>,
    steps: u64,
    /// The last printed line about a plan.
    planned: String,
}

impl Progress {
    /// Returns the progress of `steps` steps, beginning with step `first`.
    pub fn new(first: u64, steps: u64) -> Progress {
        if is_quiet() {
            return Progress::default();
        }
        if is_verbose() || !is_lively() {
            let every = if is_verbose() { 1 } else { (steps - first).div_ceil(LINES).max(1) };
            let lines = Some(every);
            return Progress { bar: None, lines, steps, planned: String::new() };
        }
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta} left");
        bar.set_style(style.expect("the template is valid").progress_chars("━╸─"));
        bar.set_position(first);
        Progress { bar: Some(bar), lines: None, steps, planned: String::new() }
    }

    /// Prints the current trials of `auto` and their results, if they have changed.
    pub fn planned(&mut self, planning: &Planning) {
        let is_tried = planning.trials > 0 || !planning.trying.is_empty();
        if !is_tried || planning.line == self.planned {
            return;
        }
        self.planned.clone_from(&planning.line);
        self.say(&self.planned);
    }

    /// Prints a line without disturbing the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None if self.lines.is_some() => say(line),
            None => {}
        }
    }

    /// Shows a step with the current seconds and bytes per step, and a validation if it is new.
    pub fn tell(&self, step: &Step, [step_s, sent_bytes]: [f64; 2], validation: Option<f64>) {
        let (done, loss) = (step.number + 1, format!("loss {:.3}", step.loss));
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(format!("{loss}  {} per step", seconds(step_s)));
            if let Some(validation) = validation {
                bar.println(format!("step {}: {loss}, validation {validation:.3}", done));
            }
        }
        let due = |every: u64| done.is_multiple_of(every) || done == self.steps;
        if self.lines.is_some_and(|every| due(every) || validation.is_some()) {
            let validation =
                validation.map_or(String::new(), |loss| format!("  validation {loss:.3}"));
            let (each, sent) = (seconds(step_s), bytes(sent_bytes));
            say(format!(
                "step {:>5}/{}  {loss}{validation}  {each} and {sent} per step",
                done, self.steps
            ));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
