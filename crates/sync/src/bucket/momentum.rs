//! Momentum before encoding, instead of in the optimiser.
//!
//! A codec may hold elements back for many steps. Momentum that the optimiser applies after the
//! exchange then lacks their contribution. Here every rank sums its own momentum, `u = m u + g`, and
//! sends `u`; error feedback keeps what was not sent. The momentum of elements without a residual may
//! be cleared (masked), so that stale momentum does not persist. The optimiser must have no momentum of
//! its own. Lin et al., "Deep gradient compression: reducing the communication bandwidth for
//! distributed training", sections 3.1 to 3.3.
//!
//! Laws, for a codec that loses nothing: without masking, the results are those of momentum SGD; with
//! masking, every element is cleared, and the results are those of plain SGD.

use std::fmt;

use thinwire_codec::Choice;

/// Momentum correction of deep gradient compression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    /// The factor of a rank's momentum from step to step, from 0 to below 1.
    pub factor: f32,
    /// The largest norm of the average gradient, as an optimiser would clip it. Every rank clips its
    /// own gradient, bucket by bucket, to this value divided by the square root of the number of ranks.
    /// `None` clips nothing.
    pub clip: Option<f32>,
    /// Whether the momentum is Nesterov's: `u = m (u + g)`, and `u + g` is sent.
    pub nesterov: bool,
    /// Whether momentum is cleared where everything was sent, in buckets that travel with feedback.
    pub masking: bool,
    /// Number of first steps in which `topk`, `blocktopk`, `dgc` and `graddrop` send more: a quarter of
    /// all elements, a sixteenth, and so on, down to their own ratio.
    pub warm_up_steps: u64,
}

impl Default for Momentum {
    fn default() -> Momentum {
        Momentum { factor: 0.9, clip: None, nesterov: false, masking: true, warm_up_steps: 0 }
    }
}

/// The factor, then whatever else is not as usual: `0.9, clipped to 1, Nesterov's`.
impl fmt::Display for Momentum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Momentum { factor, clip, nesterov, masking, warm_up_steps } = self;
        write!(f, "{factor}")?;
        if let Some(clip) = clip {
            write!(f, ", clipped to {clip}")?;
        }
        f.write_str(if *nesterov { ", Nesterov's" } else { "" })?;
        f.write_str(if *masking { "" } else { ", never cleared" })?;
        match warm_up_steps {
            0 => Ok(()),
            steps => write!(f, ", warmed up for {steps} steps"),
        }
    }
}

/// Stages of the warm-up.
const STAGES: u64 = 4;

/// The codecs that send a part of the elements, the largest ones.
const SPARSE: [&str; 4] = ["topk", "blocktopk", "dgc", "graddrop"];

/// Returns whether a codec of this name sends only a part of the elements.
pub(crate) fn is_sparse(name: &str) -> bool {
    name.split_once(':').is_some_and(|(kind, _)| SPARSE.contains(&kind))
}

impl Momentum {
    /// Returns the codec that is in force after `steps` steps if `choice` sends a part of the elements;
    /// `None` for others.
    pub(crate) fn warmed_up(&self, choice: &Choice, steps: u64) -> Option<Choice> {
        let name = choice.to_string();
        let (kind, ratio) = name.split_once(':')?;
        let asked = ratio.parse().ok().filter(|_| SPARSE.contains(&kind))?;
        Choice::parse(&format!("{kind}:{}", self.ratio(steps, asked))).ok()
    }

    /// Returns the ratio after `steps` steps, if `asked` is the codec's own.
    fn ratio(&self, steps: u64, asked: f64) -> f64 {
        if steps >= self.warm_up_steps {
            return asked;
        }
        let stage = STAGES * steps / self.warm_up_steps;
        asked.max(0.25_f64.powi(stage as i32 + 1))
    }
}

/// The momentum of one bucket.
#[derive(Debug)]
pub(crate) struct Velocity {
    options: Momentum,
    /// The largest norm of this rank's gradient.
    norm_max: Option<f32>,
    /// Momentum after the last step that was kept; empty before the first one.
    kept: Vec<f32>,
    /// Momentum after the current step.
    next: Vec<f32>,
}

impl Velocity {
    /// Returns the momentum of a bucket that is `share` of all elements, if gradients are scaled by
    /// 1/`world_size`.
    pub(crate) fn new(options: Momentum, share: f64, world_size: usize) -> Velocity {
        let scale = (share.sqrt() * (world_size as f64).powf(-1.5)) as f32;
        let norm_max = options.clip.map(|clip| clip * scale);
        Velocity { options, norm_max, kept: Vec::new(), next: Vec::new() }
    }

    /// Turns the gradient into what is sent.
    pub(crate) fn depart(&mut self, values: &mut [f32]) {
        if let Some(norm_max) = self.norm_max {
            clip(values, norm_max);
        }
        let Momentum { factor, nesterov, .. } = self.options;
        self.kept.resize(values.len(), 0.0);
        self.next.resize(values.len(), 0.0);
        for ((value, kept), next) in values.iter_mut().zip(&self.kept).zip(&mut self.next) {
            if nesterov {
                *next = factor * (kept + *value);
                *value += *next;
            } else {
                *next = factor * kept + *value;
                *value = *next;
            }
        }
    }

    /// Ends a step that all ranks have kept. `residual` is that of feedback, if there is any.
    pub(crate) fn settle(&mut self, residual: Option<&[f32]>) {
        std::mem::swap(&mut self.kept, &mut self.next);
        let Some(residual) = residual.filter(|_| self.options.masking) else { return };
        for (kept, owed) in self.kept.iter_mut().zip(residual) {
            if *owed == 0.0 {
                *kept = 0.0;
            }
        }
    }

    /// Returns the bytes that it holds in addition to the gradients.
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.kept.len() + self.next.len())
    }

    /// Returns the momentum for a checkpoint; empty before the first step.
    pub(crate) fn kept(&self) -> &[f32] {
        &self.kept
    }

    /// Returns the place of the momentum from a checkpoint, in a bucket of `elements` elements.
    pub(crate) fn place(&mut self, elements: usize) -> &mut Vec<f32> {
        self.kept.resize(elements, 0.0);
        &mut self.kept
    }
}

pub(crate) const MOMENTUM: &str = "momentum";

fn clip(values: &mut [f32], norm_max: f32) {
    let scale = f64::from(norm_max) / thinwire_codec::kernel::squares(values).sqrt();
    if scale < 1.0 {
        values.iter_mut().for_each(|value| *value *= scale as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_sends_a_quarter_then_ever_less() {
        let momentum = Momentum { warm_up_steps: 8, ..Momentum::default() };
        let ratio = |steps| momentum.ratio(steps, 0.01);
        assert_eq!(
            [0, 1, 2, 4, 6, 7, 8].map(ratio),
            [0.25, 0.25, 0.0625, 0.015625, 0.01, 0.01, 0.01]
        );
        assert_eq!(Momentum::default().ratio(0, 0.01), 0.01);
    }

    #[test]
    fn every_option_of_momentum_is_told() {
        let usual = Momentum::default();
        let all =
            Momentum { clip: Some(1.0), nesterov: true, masking: false, warm_up_steps: 8, ..usual };
        assert_eq!(usual.to_string(), "0.9");
        let told = "0.9, clipped to 1, Nesterov's, never cleared, warmed up for 8 steps";
        assert_eq!(all.to_string(), told);
    }

    #[test]
    fn a_rank_clips_before_momentum() {
        let options = Momentum { clip: Some(1.0), factor: 0.5, ..Momentum::default() };
        let mut velocity = Velocity::new(options, 1.0, 1);
        let mut values = [3.0, 4.0];
        velocity.depart(&mut values);
        velocity.settle(None);
        assert_eq!(values, [0.6, 0.8]);
        let mut values = [0.0, 0.5];
        velocity.depart(&mut values);
        assert_eq!(values, [0.3, 0.9]);
    }
}
