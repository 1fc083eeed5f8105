//! Exchange of gradients in a training without a plan: flags before the checkpoint before the defaults.

use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use thinwire_sync::{Feedback, Policy};
use thinwire_train::Parameter;
use thinwire_train::checkpoint::Checkpoint;

use super::settings::{AlgorithmFlag, Codec, Settings};
use crate::failure::{OrHint, hinted};

/// The options that decide how gradients travel, as a checkpoint keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The codec as it was typed, by which it is found again.
    pub codec: String,
    /// The codec's own name; that of a file has a checksum.
    pub identity: String,
    /// Who sends what to whom.
    #[serde(with = "spelled")]
    pub algorithm: AlgorithmFlag,
    /// The treatment of values that codecs lose.
    #[serde(with = "spelled")]
    pub feedback: Feedback,
    /// The relative squared error that `auto` allows one encoding.
    pub error_budget: f64,
    /// The factor of momentum that is added up before encoding.
    pub momentum_correction: Option<f32>,
    /// First steps that travel raw; the codec's default if there is none.
    pub warmup_steps: Option<u64>,
    /// The size of a bucket, in bytes of f32.
    pub bucket_bytes: usize,
}

impl Exchange {
    /// The exchange that flags and the checkpoint ask for, for a model of these parameters, and its
    /// codec.
    ///
    /// # Errors
    /// If the checkpoint's exchange is unreadable, or its codec's file is gone.
    pub fn resolve(
        settings: &Settings,
        codec: Option<&Codec>,
        (kept, parameters): (Option<&Exchange>, &[Parameter]),
    ) -> Result<(Exchange, Policy)> {
        let codec = match (codec, kept) {
            (Some(codec), _) => codec.clone(),
            (None, Some(kept)) => kept
                .codec
                .parse::<Codec>()
                .with_context(|| format!("codec '{}' of the checkpoint", kept.codec))
                .or_hint("give --codec as before, or another one")?,
            (None, None) => Codec::default(),
        };
        if let (Some(asked), Some(kept)) = (settings.warmup_steps, kept)
            && kept.warmup_steps != Some(asked)
        {
            let before = kept.warmup_steps.map_or("the usual ones".to_owned(), |n| n.to_string());
            return Err(hinted(
                anyhow!("--warmup-steps {asked}, but the checkpoint's training has {before}"),
                "leave it out: a warm-up is a training's first steps, and these are over or go on",
            ));
        }
        let usual = thinwire_sync::Options::default();
        let kept_or = |flag: Option<f32>| flag.or(kept.and_then(|kept| kept.momentum_correction));
        let exchange = Exchange {
            identity: codec.policy.to_string(),
            codec: codec.typed,
            algorithm: settings.algorithm.or(kept.map(|kept| kept.algorithm)).unwrap_or_default(),
            feedback: settings
                .feedback
                .or(kept.map(|kept| kept.feedback))
                .unwrap_or(usual.feedback),
            error_budget: settings
                .error_budget
                .or(kept.map(|kept| kept.error_budget))
                .unwrap_or(usual.error_budget),
            momentum_correction: kept_or(settings.momentum_correction),
            warmup_steps: settings.warmup_steps.or(kept.and_then(|kept| kept.warmup_steps)),
            bucket_bytes: settings
                .bucket_bytes
                .or(kept.map(|kept| kept.bucket_bytes))
                .unwrap_or_else(|| bucket_bytes(parameters)),
        };
        Ok((exchange, codec.policy))
    }

    /// The exchange of a checkpoint; none if an older version wrote the checkpoint without one.
    ///
    /// # Errors
    /// If the checkpoint has an exchange that cannot be read.
    pub fn kept(checkpoint: &Checkpoint) -> Result<Option<Exchange>> {
        let kept = &checkpoint.manifest().progress.config["exchange"];
        serde_json::from_value(kept.clone()).with_context(|| {
            let path = checkpoint.path().display();
            format!("{path} has no exchange options of this version")
        })
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
        ]
    }
}

/// Small enough that the last bucket, which nothing hides, is a small part of all; large enough
/// that a message is worth its header and a wake-up.
fn bucket_bytes(parameters: &[Parameter]) -> usize {
    let elements: usize = parameters.iter().map(Parameter::elements).sum();
    (4 * elements / 16).clamp(64 << 10, 4 << 20)
}

/// One line about settings that differ from a checkpoint's, by name: before and now.
pub fn differences<N: Display>(
    before: impl IntoIterator<Item = (N, String)>,
    now: impl IntoIterator<Item = (N, String)>,
) -> Option<String> {
    let pairs = before.into_iter().zip(now).filter(|((_, before), (_, now))| before != now);
    let told = pairs.map(|((name, before), (_, now))| format!("{name} {now} instead of {before}"));
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("not as in the checkpoint: {}", told.join(", ")))
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
