//! Exchange of gradients, as defined by flags, the checkpoint and defaults, in this order.

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

/// The options of the exchange of gradients, as saved in checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The codec as the user typed it, from which it can be parsed again.
    pub codec: String,
    /// The codec's own name. The name of a codec from a file includes a checksum.
    pub identity: String,
    /// The algorithm of the exchange.
    #[serde(with = "spelled")]
    pub algorithm: AlgorithmFlag,
    /// The treatment of values that codecs discard.
    #[serde(with = "spelled")]
    pub feedback: Feedback,
    /// The weighted error that `auto` allows for one encoding.
    pub error_budget: f64,
    /// The momentum factor that is applied before encoding.
    pub momentum_correction: Option<f32>,
    /// Number of first steps without the codec, or `None` for the codec's default.
    pub warmup_steps: Option<u64>,
    /// The size of a bucket, in bytes of f32.
    pub bucket_bytes: usize,
    /// The way in which ranks train together.
    #[serde(with = "spelled", default)]
    pub mode: Mode,
    /// Form of Adam, which determines whether ranks exchange gradients or momenta.
    #[serde(with = "spelled", default)]
    pub optimizer: Adam,
}

impl Exchange {
    /// Returns the exchange defined by flags and the checkpoint for a model of `elements` elements, and its
    /// codec. `default` is the codec if neither defines one; it is `None` if a plan has its own codecs.
    ///
    /// # Errors
    /// If the checkpoint's codec is a missing file, or a warm-up is requested for a codec that has none.
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
            let before =
                kept.warmup_steps.map_or("the default number".to_owned(), |n| n.to_string());
            return Err(hinted(
                anyhow!(
                    "--codec-warmup-steps {asked}, but the training of the checkpoint had {before}"
                ),
                "leave --codec-warmup-steps out: the number was fixed when the training began",
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

    /// Refuses momentum correction and a warm-up in every mode except the averaging of gradients in each
    /// step. In pair mode, also refuses codecs and flags of buckets.
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
            let error =
                anyhow!("codec {} cannot be used with mode pair, expected none", self.identity);
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
                let error = anyhow!("{flag} cannot be used with --mode {}", self.mode);
                Err(hinted(
                    error,
                    format!(
                        "leave {flag} out: the flag is for gradients that are applied in the step that computes them"
                    ),
                ))
            }
            None => Ok(()),
        }
    }

    /// Returns the form of Adam: the requested one, or else the checkpoint's.
    ///
    /// # Errors
    /// If the requested form differs from the checkpoint's.
    pub fn optimizer(asked: Option<Adam>, kept: Option<&Exchange>) -> Result<Adam> {
        let before = kept.map(|kept| kept.optimizer);
        match (asked, before) {
            (Some(asked), Some(before)) if asked != before => {
                let error =
                    anyhow!("--optimizer {asked}, but the training of the checkpoint had {before}");
                Err(hinted(
                    error,
                    "leave --optimizer out: a training continues only with its own form of Adam",
                ))
            }
            _ => Ok(asked.or(before).unwrap_or_default()),
        }
    }

    /// Refuses an optimiser whose momenta cannot be sent as requested.
    ///
    /// # Errors
    /// If there is a flag that has no effect on momenta.
    pub fn check_optimizer(&self, codec: Option<&Policy>) -> Result<()> {
        let Exchange { optimizer, mode, .. } = self;
        let codec = codec.map_or("none".to_owned(), Policy::to_string);
        let momentum = self.momentum_correction;
        let (why, hint) = match optimizer {
            Adam::AdamW => return Ok(()),
            _ if *mode != Mode::Step => (
                format!("cannot be used with --mode {mode}, expected all-reduce"),
                "give --mode all-reduce",
            ),
            _ if codec.starts_with("auto") => (
                format!("cannot be used with codec {codec}: it measures gradients, not momenta"),
                "name the codec of momenta: --codec onebit",
            ),
            Adam::ZeroOne if self.warmup_steps.is_some_and(|steps| steps > 0) => (
                "cannot be used with --codec-warmup-steps".to_owned(),
                "leave --codec-warmup-steps out, or give --optimizer onebit-adam: 0/1 Adam itself decides when to encode",
            ),
            _ => match momentum {
                Some(factor) => (
                    format!("cannot be used with --momentum-correction {factor}"),
                    "leave one of the two out: both send momenta",
                ),
                None => return Ok(()),
            },
        };
        Err(hinted(anyhow!("--optimizer {optimizer} {why}"), hint))
    }

    /// Returns the synchroniser's options for a codec, in a training of `steps` steps.
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

    /// Returns the momentum correction if it was requested.
    pub fn momentum(&self) -> Option<Momentum> {
        self.momentum_correction.map(|factor| Momentum { factor, ..Momentum::default() })
    }

    /// Returns the number of warm-up steps of a codec: the requested number, or else the codec's default
    /// unless it exceeds a fifth of all steps.
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

    /// Returns the exchange of a checkpoint, or `None` if an older version wrote the checkpoint without one.
    ///
    /// # Errors
    /// If the checkpoint has an exchange that cannot be read.
    pub fn kept(checkpoint: &Checkpoint) -> Result<Option<Exchange>> {
        let kept = &checkpoint.progress().config["exchange"];
        serde_json::from_value(kept.clone()).with_context(|| {
            let path = checkpoint.path().display();
            format!("{path} has no exchange options that this version can read")
        })
    }

    /// Returns the exchange for the checkpoints of a training of `steps` steps, which includes the number of
    /// warm-up steps.
    pub fn resolved(&self, codec: Option<&Policy>, steps: u64) -> Exchange {
        Exchange { warmup_steps: Some(self.warm_up_steps(codec, steps)), ..self.clone() }
    }

    /// Returns the exchange's settings by name.
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

/// Returns the default codec of a mode, or `None` if the default is that of averaging gradients in every
/// step. Other modes need a fixed codec, because `auto` measures in steps that exchange gradients. In
/// pair mode, ranks send the parameters themselves.
fn usual_codec(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::Step | Mode::Delayed { steps: 0 } => None,
        Mode::Pair { .. } => Some("none"),
        Mode::Delayed { .. } | Mode::Local { .. } | Mode::DiLoCo(_) | Mode::Sma { .. } => {
            Some("int8")
        }
    }
}

/// Returns the codec's default number of warm-up steps, or 0 if it exceeds a fifth of all steps.
pub fn usual_warm_up_steps(codec: &Policy, steps: u64) -> u64 {
    Some(codec.warm_up_steps()).filter(|suits| *suits <= steps / 5).unwrap_or(0)
}

/// Returns the size of a bucket in bytes. It is small enough that the last bucket, which is not hidden by
/// computation, is a small part of all bytes, and large enough that the cost of a message is small in
/// comparison.
fn bucket_bytes(elements: usize) -> usize {
    (4 * elements / 16).clamp(64 << 10, 4 << 20)
}

/// Refuses flags that have no effect with any of these codecs.
///
/// # Errors
/// If a feedback, a warm-up or an error budget is given that no codec uses.
pub fn check_flags(settings: &Settings, codecs: &[&Policy]) -> Result<()> {
    let usual = thinwire_sync::Options::default();
    let named: Vec<String> = codecs.iter().map(|codec| codec.to_string()).collect();
    let refuse = |flag: &str, value: Option<String>, used: fn(&Policy) -> bool, why, hint| {
        let value = value.filter(|_| !codecs.iter().any(|codec| used(codec)));
        settings::refuse(
            [(flag, value)],
            &format!("has no effect with codec {}, which {why}", named.join(",")),
            hint,
        )
    };
    let budget = settings.error_budget.filter(|given| *given != usual.error_budget);
    refuse(
        "--error-budget",
        budget.map(|budget| budget.to_string()),
        Policy::keeps_a_budget,
        "has no error budget",
        "only --codec auto without a list of codecs has an error budget",
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
        true => "sends raw gradients in every step",
        false => "measures its codecs instead",
    };
    refuse(
        "--codec-warmup-steps",
        warm_up.map(|steps| steps.to_string()),
        |codec| !matches!(codec, Policy::Auto(_)) && codec.to_string() != "none",
        why,
        "leave --codec-warmup-steps out, or name one codec: --codec powersgd:4",
    )
}

/// Serialisation of values in the form of flags.
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
