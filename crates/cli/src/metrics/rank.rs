//! Metrics of a rank of a training.

use std::sync::{Arc, Mutex};

use thinwire_train::session::Adapted;

use super::page::{Kind, Page};

/// Progress of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Taken {
    /// Completed steps of the training.
    pub step: u64,
    /// Mean loss of the last step.
    pub loss: f64,
    /// Steps that this process has made.
    pub steps: u64,
    /// Seconds that these steps took.
    pub step_s: f64,
    /// Seconds of these steps in which this rank waited for other ranks.
    pub wait_s: f64,
    /// Bytes sent by this rank.
    pub sent_bytes: u64,
    /// Batch and noise scale of the last step, where policies adapt the training.
    pub adapted: Option<Adapted>,
}

/// Metrics of a rank, shared between its training and its page.
#[derive(Clone, Debug, Default)]
pub struct RankMetrics(Arc<Mutex<Taken>>);

impl RankMetrics {
    /// Adds the figures of one step: `steps` is 1, and `step` the number of completed steps.
    pub fn add(&self, step: Taken) {
        let mut sum = self.0.lock().expect("no holder panics");
        sum.steps += step.steps;
        sum.step_s += step.step_s;
        sum.wait_s += step.wait_s;
        sum.sent_bytes += step.sent_bytes;
        (sum.step, sum.loss, sum.adapted) = (step.step, step.loss, step.adapted);
    }

    /// Returns the page of metrics.
    pub fn page(&self) -> Page {
        let sum = *self.0.lock().expect("no holder panics");
        let mut page = Page::default();
        page.single(
            "thinwire_rank_step",
            Kind::Gauge,
            "Steps of the training that are done.",
            sum.step as f64,
        );
        page.single("thinwire_rank_loss", Kind::Gauge, "Mean loss of the last step.", sum.loss);
        if let Some(Adapted { batch, noise_scale }) = sum.adapted {
            let help = "Rows of the last step, all ranks together.";
            page.single("thinwire_rank_batch_rows", Kind::Gauge, help, batch as f64);
            let help = "Gradient noise scale.";
            if let Some(scale) = noise_scale {
                page.single("thinwire_rank_noise_scale_rows", Kind::Gauge, help, scale);
            }
        }
        let counters = [
            ("thinwire_rank_steps_total", "Steps that this process has taken.", sum.steps as f64),
            ("thinwire_rank_step_seconds_total", "Seconds that these steps took.", sum.step_s),
            ("thinwire_rank_wait_seconds_total", "Seconds of its steps spent waiting.", sum.wait_s),
            (
                "thinwire_rank_sent_bytes_total",
                "Bytes that this process has sent.",
                sum.sent_bytes as f64,
            ),
        ];
        for (name, help, value) in counters {
            page.single(name, Kind::Counter, help, value);
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up() {
        let metrics = RankMetrics::default();
        for (step, loss) in [(7, 2.5), (8, 2.25)] {
            let adapted = Some(Adapted { batch: 64, noise_scale: Some(210.5) });
            let (steps, step_s, wait_s, sent_bytes) = (1, 0.5, 0.125, 10);
            metrics.add(Taken { step, loss, steps, step_s, wait_s, sent_bytes, adapted });
        }
        let text = metrics.page().to_string();
        for line in [
            "thinwire_rank_step 8",
            "thinwire_rank_loss 2.25",
            "thinwire_rank_steps_total 2",
            "thinwire_rank_step_seconds_total 1",
            "thinwire_rank_wait_seconds_total 0.25",
            "thinwire_rank_sent_bytes_total 20",
            "thinwire_rank_batch_rows 64",
            "thinwire_rank_noise_scale_rows 210.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
