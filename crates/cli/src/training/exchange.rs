//! Exchange of gradients: flags before the checkpoint before the defaults.

use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use thinwire_sync::{Feedback, Mode, Momentum, Policy};
use thinwire_train::Adam;
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::session::OF_PLAN;

use super::settings::{self, AlgorithmFlag, Codec, Settings};
use crate::failure::{OrHint, hinted};

/// The options that decide how gradients travel, as a checkpoint keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The codec as it was typed, by which it is found again.
    pub codec: String,
    /// The codec's own name; that of a file has a checksum.
    pub identity: String,
    /// The algorithm of the exchange.
    #[serde(with = "spelled")]
    pub algorithm: AlgorithmFlag,
    /// The treatment of values that codecs lose.
    #[serde(with = "spelled")]
    pub feedback: Feedback,
    /// The weighted error that `auto` allows one encoding.
    pub error_budget: f64,
    /// The factor of momentum that is added up before encoding.
    pub momentum_correction: Option<f32>,
    /// First steps that travel raw; the codec's default if there is none.
    pub warmup_steps: Option<u64>,
    /// The size of a bucket, in bytes of f32.
    pub bucket_bytes: usize,
    /// How ranks train together.
    #[serde(with = "spelled", default)]
    pub mode: Mode,
    /// Form of Adam, which decides whether gradients or momenta travel.
    #[serde(with = "spelled", default)]
    pub optimizer: Adam,
}

impl Exchange {
    /// The exchange that flags and the checkpoint ask for, for a model of so many elements, and its
    /// codec: `default` where nothing was asked for, which is none where a plan has codecs of its own.
    ///
    /// # Errors
    /// If the checkpoint's codec is a file that is gone, or a warm-up is asked for that it has not.
    pub fn resolve(
        settings: &Settings,
        codec: Option<&Codec>,
        kept: Option<&Exchange>,
        default: Option<Codec>,
        elements: usize,
        mode: Option<Mode>,
    ) -> Result<(Exchange, Option<Policy>)> {
        let mode = mode.or(kept.map(|kept| kept.mode)).unwrap_or_default();
        let default = match usual_codec(mode) {
            Some(usual) => default.is_some().then(|| usual.parse()).transpose()?,
            None => default,
        };
        // Without a plan the codecs of one cannot continue; a mode has a usual codec of its own.
        let named = kept.filter(|kept| kept.codec != OF_PLAN && kept.mode == mode);
        let codec = match (codec, named) {
            (Some(codec), _) => Some(codec.clone()),
            (None, Some(kept)) => kept
                .codec
                .parse::<Codec>()
                .map(Some)
                .with_context(|| format!("codec '{}' of the checkpoint", kept.codec))
                .or_hint("give --codec as before, or another one")?,
            (None, None) => default,
        };
        if let (Some(asked), Some(kept)) = (settings.codec_warmup_steps, kept)
            && kept.warmup_steps != Some(asked)
        {
            let before = kept.warmup_steps.map_or("the usual ones".to_owned(), |n| n.to_string());
            return Err(hinted(
                anyhow!("--codec-warmup-steps {asked}, but the checkpoint's training has {before}"),
                "leave it out: a warm-up is a training's first steps, and these are over or continue",
            ));
        }
        let usual = thinwire_sync::Options::default();
        let base = kept.cloned().unwrap_or_else(|| Exchange {
            codec: String::new(),
            identity: String::new(),
            algorithm: AlgorithmFlag::default(),
            feedback: usual.feedback,
            error_budget: usual.error_budget,
            momentum_correction: None,
            warmup_steps: None,
            bucket_bytes: bucket_bytes(elements),
            mode,
            optimizer: Adam::default(),
        });
        let exchange = Exchange {
            identity: codec.as_ref().map_or(OF_PLAN.to_owned(), |codec| codec.policy.to_string()),
            codec: codec.as_ref().map_or(OF_PLAN.to_owned(), |codec| codec.typed.clone()),
            algorithm: settings.algorithm.unwrap_or(base.algorithm),
            feedback: settings.feedback.unwrap_or(base.feedback),
            error_budget: settings.error_budget.unwrap_or(base.error_budget),
            momentum_correction: settings.momentum_correction.or(base.momentum_correction),
            warmup_steps: settings.codec_warmup_steps.or(base.warmup_steps),
            bucket_bytes: settings.bucket_bytes.unwrap_or(base.bucket_bytes),
            mode,
            optimizer: base.optimizer,
        };
        exchange.check_mode(settings)?;
        Ok((exchange, codec.map(|codec| codec.policy)))
    }

    /// Refuses momentum correction and raw first steps where ranks exchange parameters, and all that pairs do not
    /// follow.
    fn check_mode(&self, asked: &Settings) -> Result<()> {
        if self.mode == Mode::Step {
            return Ok(());
        }
        let given = [
            self.momentum_correction.map(|factor| format!("--momentum-correction {factor}")),
            asked
                .codec_warmup_steps
                .filter(|steps| *steps > 0)
                .map(|steps| format!("--codec-warmup-steps {steps}")),
        ];
        let is_pair = matches!(self.mode, Mode::Pair { .. });
        if is_pair && self.identity != "none" {
            let error = anyhow!("codec {} with mode pair, expected none", self.identity);
            let hint = "leave --codec out: partners send parameters themselves, not their changes";
            return Err(hinted(error, hint));
        }
        let of_buckets = [
            asked.algorithm.map(|value| format!("--algorithm {value}")),
            asked.bucket_bytes.map(|value| format!("--bucket-bytes {value}")),
        ];
        let given = given.into_iter().chain(of_buckets.into_iter().filter(|_| is_pair));
        match given.flatten().next() {
            Some(flag) => {
                let error = anyhow!("{flag} with --mode {}", self.mode);
                Err(hinted(
                    error,
                    "leave it out: it is for gradients that are applied in their own step",
                ))
            }
            None => Ok(()),
        }
    }

    /// Returns the form of Adam: as requested, else that of the checkpoint.
    ///
    /// # Errors
    /// If the checkpoint's training has another one than was asked for.
    pub fn optimizer(asked: Option<Adam>, kept: Option<&Exchange>) -> Result<Adam> {
        let before = kept.map(|kept| kept.optimizer);
        match (asked, before) {
            (Some(asked), Some(before)) if asked != before => {
                let error =
                    anyhow!("--optimizer {asked}, but the checkpoint's training has {before}");
                Err(hinted(error, "leave it out: another one would begin with these moments"))
            }
            _ => Ok(asked.or(before).unwrap_or_default()),
        }
    }

    /// Refuses an optimiser whose momenta do not travel as was asked.
    ///
    /// # Errors
    /// If there is a flag that momenta do not follow.
    pub fn check_optimizer(&self, codec: Option<&Policy>) -> Result<()> {
        let Exchange { optimizer, mode, .. } = self;
        let codec = codec.map_or("none".to_owned(), Policy::to_string);
        let momentum = self.momentum_correction;
        let (why, hint) = match optimizer {
            Adam::AdamW => return Ok(()),
            _ if *mode != Mode::Step => (
                format!("with --mode {mode}, in which parameters travel"),
                "give --mode all-reduce",
            ),
            _ if codec.starts_with("auto") => (
                format!("with codec {codec}, which measures gradients"),
                "name the codec of momenta: --codec onebit",
            ),
            Adam::ZeroOne if self.warmup_steps.is_some_and(|steps| steps > 0) => (
                "with --codec-warmup-steps".to_owned(),
                "leave it out: the variance decides, or take --optimizer onebit-adam",
            ),
            _ => match momentum {
                Some(factor) => (
                    format!("with --momentum-correction {factor}"),
                    "leave one out: both send momenta",
                ),
                None => return Ok(()),
            },
        };
        Err(hinted(anyhow!("--optimizer {optimizer} {why}"), hint))
    }

    /// Returns the synchroniser's options under a codec, in a training of so many steps.
    pub fn options(&self, codec: Option<&Policy>, steps: u64) -> thinwire_sync::Options {
        let usual = thinwire_sync::Options::default();
        let keeps = codec.is_some_and(Policy::keeps_a_budget);
        let leaves = codec.is_none_or(Policy::leaves_a_residual);
        thinwire_sync::Options {
            policy: codec.cloned().unwrap_or(usual.policy),
            algorithm: self.algorithm.0,
            bucket_bytes: self.bucket_bytes,
            error_budget: if keeps { self.error_budget } else { usual.error_budget },
            feedback: if leaves { self.feedback } else { usual.feedback },
            momentum: self.momentum(),
            warm_up_steps: self.warm_up_steps(codec, steps),
            ..usual
        }
    }

    /// Momentum correction, if it was asked for.
    pub fn momentum(&self) -> Option<Momentum> {
        self.momentum_correction.map(|factor| Momentum { factor, ..Momentum::default() })
    }

    /// Returns the warm-up of a codec: as requested, else the codec's default unless that exceeds a
    /// fifth of the steps.
    pub fn warm_up_steps(&self, codec: Option<&Policy>, steps: u64) -> u64 {
        // A round has the changes of many steps: raw first rounds would be most of what is sent.
        if self.mode != Mode::Step {
            return 0;
        }
        // The variance decides when momenta begin to travel, unless it was said.
        if self.optimizer != Adam::AdamW {
            return self.warmup_steps.unwrap_or(0);
        }
        let asked = self.warmup_steps.filter(|_| !matches!(codec, Some(Policy::Auto(_))));
        asked.or(codec.map(|codec| usual_warm_up_steps(codec, steps))).unwrap_or(0)
    }

    /// The exchange of a checkpoint; none if an older version wrote the checkpoint without one.
    ///
    /// # Errors
    /// If the checkpoint has an exchange that cannot be read.
    pub fn kept(checkpoint: &Checkpoint) -> Result<Option<Exchange>> {
        let kept = &checkpoint.progress().config["exchange"];
        serde_json::from_value(kept.clone()).with_context(|| {
            let path = checkpoint.path().display();
            format!("{path} has no exchange options of this version")
        })
    }

    /// Returns the exchange with the number of raw first steps that a training of so many steps has, as its
    /// checkpoints keep it.
    pub fn resolved(&self, codec: Option<&Policy>, steps: u64) -> Exchange {
        Exchange { warmup_steps: Some(self.warm_up_steps(codec, steps)), ..self.clone() }
    }

    /// The exchange's settings by name.
    pub fn described(&self) -> Vec<(&'static str, String)> {
        let (momentum, raw) = (self.momentum_correction, self.warmup_steps);
        vec![
            ("codec", self.identity.clone()),
            ("algorithm", self.algorithm.to_string()),
            ("feedback", self.feedback.to_string()),
            ("error budget", self.error_budget.to_string()),
            ("momentum correction", momentum.map_or("none".to_owned(), |value| value.to_string())),
            ("raw first steps", raw.map_or("usual".to_owned(), |value| value.to_string())),
            ("bucket bytes", self.bucket_bytes.to_string()),
            ("mode", self.mode.to_string()),
            ("optimizer", self.optimizer.to_string()),
        ]
    }
}

/// Returns the codec of a mode in which it is not the one of gradients: `auto` would measure it in steps, and partners
/// send parameters themselves.
fn usual_codec(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::Step | Mode::Delayed { steps: 0 } => None,
        Mode::Pair { .. } => Some("none"),
        Mode::Delayed { .. } | Mode::Local { .. } | Mode::DiLoCo(_) | Mode::Sma { .. } => {
            Some("int8")
        }
    }
}

/// Returns the number of raw first steps that suits a codec; 0 if it exceeds a fifth of all steps.
pub fn usual_warm_up_steps(codec: &Policy, steps: u64) -> u64 {
    Some(codec.warm_up_steps()).filter(|suits| *suits <= steps / 5).unwrap_or(0)
}

/// Small enough that the last bucket, which nothing hides, is a small part of all; large enough
/// that a message is worth its header and a wake-up.
fn bucket_bytes(elements: usize) -> usize {
    (4 * elements / 16).clamp(64 << 10, 4 << 20)
}

/// Refuses flags that do nothing under any of these codecs.
///
/// # Errors
/// If a feedback, a warm-up or an error budget was given that no codec has.
pub fn check_flags(settings: &Settings, codecs: &[&Policy]) -> Result<()> {
    let usual = thinwire_sync::Options::default();
    let named: Vec<String> = codecs.iter().map(|codec| codec.to_string()).collect();
    let refuse = |flag: &str, value: Option<String>, used: fn(&Policy) -> bool, why, hint| {
        let value = value.filter(|_| !codecs.iter().any(|codec| used(codec)));
        settings::refuse(
            [(flag, value)],
            &format!("with codec {}, which {why}", named.join(",")),
            hint,
        )
    };
    let budget = settings.error_budget.filter(|given| *given != usual.error_budget);
    refuse(
        "--error-budget",
        budget.map(|budget| budget.to_string()),
        Policy::keeps_a_budget,
        "keeps to none",
        "only --codec auto, without names, keeps to an error budget",
    )?;
    let feedback = settings.feedback.filter(|given| *given != usual.feedback);
    refuse(
        "--feedback",
        feedback.map(|feedback| feedback.to_string()),
        Policy::leaves_a_residual,
        "leaves nothing to feed back",
        "int8, topk:0.01 and powersgd:4 leave residuals, for instance",
    )?;
    let warm_up = settings.codec_warmup_steps.filter(|steps| *steps > 0);
    let why = match named.iter().all(|codec| codec == "none") {
        true => "travels raw in every step",
        false => "measures its codecs instead",
    };
    refuse(
        "--codec-warmup-steps",
        warm_up.map(|steps| steps.to_string()),
        |codec| !matches!(codec, Policy::Auto(_)) && codec.to_string() != "none",
        why,
        "leave it out, or name one codec: --codec powersgd:4",
    )
}

/// Values as flags are written.
mod spelled {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{Display, FromStr};

    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
