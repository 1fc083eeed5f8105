//! Metrics of a rank of a training.

use std::sync::{Arc, Mutex};

use thinwire_train::session::Adapted;

use super::page::{Kind, Page};

/// Step of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Taken {
    /// Completed steps of the training.
    pub step: u64,
    /// Mean loss of the step, if the training reports it.
    pub loss: Option<f64>,
    /// Seconds that the step took.
    pub step_s: f64,
    /// Batch and noise scale of the step, if policies adapt the training.
    pub adapted: Option<Adapted>,
}

/// Figures of an exchange between this rank and others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exchanged {
    /// Seconds for which this rank waited for other ranks.
    pub wait_s: f64,
    /// Bytes sent by this rank.
    pub sent_bytes: u64,
    /// Bytes that this rank would have sent without a codec.
    pub raw_bytes: u64,
    /// Whether the exchange was discarded because a value was not finite.
    pub skipped: bool,
}

/// Sums over the work of a rank.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    last: Taken,
    steps: u64,
    step_s: f64,
    wait_s: f64,
    sent_bytes: u64,
    raw_bytes: u64,
    skipped: u64,
}

/// Metrics of a rank, shared between its training and its page.
#[derive(Clone, Debug, Default)]
pub struct RankMetrics(Arc<Mutex<Sums>>);

impl RankMetrics {
    /// Adds a step.
    pub fn step(&self, step: Taken) {
        let mut sums = self.0.lock().expect("no holder panics");
        sums.steps += 1;
        sums.step_s += step.step_s;
        sums.last = step;
    }

    /// Adds an exchange.
    pub fn exchange(&self, exchange: Exchanged) {
        let mut sums = self.0.lock().expect("no holder panics");
        sums.wait_s += exchange.wait_s;
        sums.sent_bytes += exchange.sent_bytes;
        sums.raw_bytes += exchange.raw_bytes;
        sums.skipped += u64::from(exchange.skipped);
    }

    /// Returns the page of metrics.
    pub fn page(&self) -> Page {
        let sum = *self.0.lock().expect("no holder panics");
        let mut page = Page::default();
        page.single(
            "thinwire_rank_step",
            Kind::Gauge,
            "Steps of the training that are done.",
            sum.last.step as f64,
        );
        if let Some(loss) = sum.last.loss {
            page.single("thinwire_rank_loss", Kind::Gauge, "Mean loss of the last step.", loss);
        }
        if let Some(Adapted { batch, noise_scale }) = sum.last.adapted {
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
            (
                "thinwire_rank_raw_bytes_total",
                "Bytes that this process would have sent raw.",
                sum.raw_bytes as f64,
            ),
            (
                "thinwire_rank_skipped_total",
                "Exchanges that were skipped, since a value was not finite.",
                sum.skipped as f64,
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
            metrics.step(Taken { step, loss: Some(loss), step_s: 0.5, adapted });
            let (wait_s, sent_bytes, raw_bytes) = (0.125, 10, 40);
            metrics.exchange(Exchanged { wait_s, sent_bytes, raw_bytes, skipped: step == 8 });
        }
        let text = metrics.page().to_string();
        for line in [
            "thinwire_rank_step 8",
            "thinwire_rank_loss 2.25",
            "thinwire_rank_steps_total 2",
            "thinwire_rank_step_seconds_total 1",
            "thinwire_rank_wait_seconds_total 0.25",
            "thinwire_rank_sent_bytes_total 20",
            "thinwire_rank_raw_bytes_total 80",
            "thinwire_rank_skipped_total 1",
            "thinwire_rank_batch_rows 64",
            "thinwire_rank_noise_scale_rows 210.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        // A framework's loop keeps its loss to itself.
        assert!(!RankMetrics::default().page().to_string().contains("loss"));
    }
}
