//! Recipe of a training: the settings of learning, apart from the model, the data and the codec.

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::{AdamWOptions, LearningRate};

use super::exchange::Exchange;
use super::settings::{GradDtype, RecipeFlags};
use crate::failure::hinted;

/// Settings of learning, as saved in checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Number of rows per step, for all ranks together.
    pub batch: usize,
    /// Number of all steps, including those before a checkpoint.
    pub steps: u64,
    /// The seed of everything random.
    pub seed: u64,
    /// The highest learning rate.
    pub lr: f32,
    /// Number of steps in which the learning rate rises.
    pub warmup: u64,
    /// The largest norm of the averaged gradient; 0 means no clipping.
    pub clip: f32,
    /// Precision to which gradients are rounded before they are sent.
    pub grad_dtype: GradDtype,
}

/// Largest number of bytes that a step predicts, for all ranks together.
const TOKENS_MAX: usize = 1 << 24;

/// The default number of steps in which the learning rate rises, for short trainings. In the first steps,
/// Adam's means of squares are based on few gradients, so that losses would jump at the full rate.
const WARMUP_MIN: u64 = 40;

/// Defaults of a training, which takes two minutes on two cores.
const DEFAULT: Recipe = Recipe {
    batch: 16,
    steps: 400,
    seed: 1,
    lr: 4e-3,
    warmup: WARMUP_MIN,
    clip: 1.0,
    grad_dtype: GradDtype::F32,
};

impl Recipe {
    /// Returns a recipe with the values of the flags, or else of the checkpoint, or else the defaults.
    ///
    /// # Errors
    /// If a flag is out of range.
    pub fn resolve(flags: &RecipeFlags, resume: Option<&Checkpoint>) -> Result<Recipe> {
        let kept = resume.map(Recipe::kept).transpose()?;
        let base = kept.as_ref().unwrap_or(&DEFAULT);
        let steps = flags.steps.unwrap_or(base.steps);
        let warmup = match (&kept, flags.steps) {
            (None, Some(steps)) => steps.div_ceil(10).max(WARMUP_MIN),
            _ => base.warmup,
        };
        let recipe = Recipe {
            batch: flags.batch.unwrap_or(base.batch),
            steps,
            seed: flags.seed.unwrap_or(base.seed),
            lr: flags.lr.unwrap_or(base.lr),
            warmup: flags.lr_warmup_steps.unwrap_or(warmup),
            clip: flags.clip.unwrap_or(base.clip),
            grad_dtype: flags.grad_dtype.unwrap_or(base.grad_dtype),
        };
        for (flag, value) in [("--lr", recipe.lr), ("--clip", recipe.clip)] {
            if !value.is_finite() || value < 0.0 {
                let error = anyhow!("{flag} {value}, expected 0 or more");
                return Err(hinted(error, format!("leave {flag} out for the default")));
            }
        }
        Ok(recipe)
    }

    /// Returns the recipe of a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint has no recipe that this version can read.
    pub fn kept(checkpoint: &Checkpoint) -> Result<Recipe> {
        let config = checkpoint.progress().config["recipe"].clone();
        serde_json::from_value(config).with_context(|| {
            format!("{} has no recipe that this version can read", checkpoint.path().display())
        })
    }

    /// Returns the settings by name.
    pub fn told(&self) -> Vec<(&'static str, String)> {
        let Recipe { batch, steps, seed, lr, warmup, clip, grad_dtype } = self;
        vec![
            ("batch", batch.to_string()),
            ("steps", steps.to_string()),
            ("seed", seed.to_string()),
            ("learning rate", lr.to_string()),
            ("warm-up", format!("{warmup} steps")),
            ("clip", clip.to_string()),
            ("gradient dtype", grad_dtype.to_string()),
        ]
    }

    /// Returns the optimiser's options. If the exchange applies momentum before encoding, the optimiser
    /// applies none.
    pub fn adamw(&self, exchange: &Exchange) -> AdamWOptions {
        let usual = AdamWOptions::default();
        let beta1 = exchange.momentum().map_or(usual.beta1, |_| 0.0);
        AdamWOptions { beta1, ..usual }
    }

    /// Returns the schedule of the learning rate.
    pub fn learning_rate(&self) -> LearningRate {
        let Recipe { lr, warmup, steps, .. } = *self;
        LearningRate { peak: lr, floor: lr / 10.0, warmup_steps: warmup, steps }
    }

    /// Returns the largest norm of the averaged gradient, or `None` for no clipping.
    pub fn gradient_norm_max(&self) -> Option<f32> {
        (self.clip > 0.0).then_some(self.clip)
    }

    /// Refuses a checkpoint that already has all steps.
    ///
    /// # Errors
    /// If no steps are left.
    pub fn check_steps(&self, done: u64) -> Result<()> {
        let steps = self.steps;
        if done < steps {
            return Ok(());
        }
        let error = anyhow!("the checkpoint has {done} steps already, and {steps} were asked for");
        Err(hinted(error, "give a larger --steps: it includes the steps before the checkpoint"))
    }

    /// Refuses a batch that is too large for a model with this context.
    ///
    /// # Errors
    /// If a step would predict too many bytes.
    pub fn check_tokens(&self, context: usize) -> Result<()> {
        let batch = self.batch;
        if batch.checked_mul(context).is_some_and(|tokens| tokens <= TOKENS_MAX) {
            return Ok(());
        }
        let error = anyhow!(
            "batch of {batch} rows of {context} bytes, expected at most {TOKENS_MAX} bytes together"
        );
        Err(hinted(error, "give a smaller --batch or --context"))
    }
}

/// Refuses a batch that leaves some rank without rows. A group of `unit` rows is never divided.
///
/// # Errors
/// If the batch is too small, or not a multiple of the unit.
pub fn check_batch(batch: usize, unit: usize, ranks: usize) -> Result<()> {
    let least = ranks * unit;
    if batch >= least && batch.is_multiple_of(unit) {
        return Ok(());
    }
    let error = anyhow!("batch of {batch} rows for {ranks} ranks, expected {least} or more");
    let multiple = batch.next_multiple_of(unit).max(least);
    let hint = match unit {
        1 => format!("--batch {multiple}, for instance"),
        _ => format!("--batch {multiple}, for instance: the model reads {unit} rows at a time"),
    };
    Err(hinted(error, hint))
}

/// Refuses a batch that cannot be divided evenly among the ranks of a plan.
///
/// # Errors
/// If the batch is not a multiple of the ranks.
pub fn check_even_batch(batch: usize, ranks: usize) -> Result<()> {
    if batch.is_multiple_of(ranks) && batch > 0 {
        return Ok(());
    }
    let multiple = batch.next_multiple_of(ranks).max(ranks);
    let error = anyhow!("batch of {batch} rows does not divide among {ranks} ranks");
    Err(hinted(error, format!("--batch {multiple}, for instance")))
}

/// Returns one line about settings that differ from those of a checkpoint, with their names and both values.
pub fn differences(
    before: &[(&'static str, String)],
    now: &[(&'static str, String)],
) -> Option<String> {
    let pairs = before.iter().zip(now).filter(|(before, now)| before != now);
    let told: Vec<String> = pairs
        .map(|((name, before), (_, now))| format!("{name} {now} instead of {before}"))
        .collect();
    (!told.is_empty()).then(|| format!("not as in the checkpoint: {}", told.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_before_defaults_and_warm_up_follows_the_steps() {
        let recipe = |flags: &RecipeFlags| Recipe::resolve(flags, None);
        assert_eq!(recipe(&RecipeFlags::default()).unwrap(), DEFAULT);
        let of_steps = |steps| RecipeFlags { steps: Some(steps), ..RecipeFlags::default() };
        let found = recipe(&of_steps(31)).unwrap();
        assert_eq!((found.steps, found.warmup), (31, 40));
        assert_eq!(recipe(&of_steps(4_000)).unwrap().warmup, 400);
        for lr in [f32::NAN, -1.0] {
            let flags = RecipeFlags { lr: Some(lr), ..RecipeFlags::default() };
            let error = recipe(&flags).unwrap_err().to_string();
            assert_eq!(error, format!("--lr {lr}, expected 0 or more"));
        }
        for batch in [1 << 20, usize::MAX] {
            let error = Recipe { batch, ..DEFAULT }.check_tokens(128).unwrap_err().to_string();
            assert!(error.ends_with("expected at most 16777216 bytes together"), "{error}");
        }
    }
}
