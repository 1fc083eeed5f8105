//! A way to synchronise, as `thinwire-bench sync` compares them.
//!
//! The named ones are the stages of an ablation and the baselines that others have built:
//!
//! - `none`: every tensor alone, uncompressed, in one piece;
//! - `compress`: one tensor after the other, `onebit`, through a server that is sharded over all
//!   ranks;
//! - `overlap`: as before, and tensors do not wait for each other: one is encoded while another is on
//!   the wire;
//! - `pipeline`: as before, and large tensors cut, so that their parts overlap too;
//! - `bulk`: as before, and small tensors together;
//! - `planned`: as before, and for every bucket whether to compress it, and into how many parts
//!   to cut it, chosen by what is measured;
//! - `auto`: everything chosen, the codec too, within the error budget;
//! - `ring-dgc`: every tensor alone, its largest thousandth gathered around a circle.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail};
use thinwire_schedule::Summation;
use thinwire_sync::{Options, Policy};

const NAMED: [(&str, &str); 8] = [
    ("none", "none/ring/tensor/whole"),
    ("compress", "onebit/two-shot/tensor/whole/serial"),
    ("overlap", "onebit/two-shot/tensor/whole"),
    ("pipeline", "onebit/two-shot/tensor/cut"),
    ("bulk", "onebit/two-shot/bucket/cut"),
    ("planned", "auto:none+onebit"),
    ("auto", "auto"),
    ("ring-dgc", "topk:0.001/ring-gather/tensor/whole"),
];

/// A codec or a choice of them, an algorithm, and what travels together.
#[derive(Clone, Debug)]
pub struct Method {
    name: String,
    policy: Policy,
    algorithm: Option<Summation>,
    /// Every tensor is a bucket of its own.
    alone: bool,
    /// Buckets are not cut.
    whole: bool,
    /// One bucket waits for the other.
    serial: bool,
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Method> {
        let spelled = NAMED.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
        let mut parts = spelled.split('/');
        let policy = parts.next().unwrap_or_default();
        let policy = policy.parse::<Policy>().map_err(|error| method(name, &error))?;
        let mut found = Method {
            name: name.to_owned(),
            policy,
            algorithm: None,
            alone: false,
            whole: false,
            serial: false,
        };
        let mut said: Vec<(&str, &str)> = Vec::new();
        for part in parts {
            let about = match part {
                "tensor" | "bucket" => "what travels together",
                "whole" | "cut" => "whether it is cut",
                "serial" => "what waits",
                _ => "the algorithm",
            };
            match part {
                "tensor" => found.alone = true,
                "bucket" => found.alone = false,
                "whole" => found.whole = true,
                "cut" => found.whole = false,
                "serial" => found.serial = true,
                _ => {
                    found.algorithm =
                        Some(part.parse::<Summation>().map_err(|error| method(name, &error))?)
                }
            }
            if let Some((_, before)) = said.iter().find(|(known, _)| *known == about) {
                bail!("method '{name}': {about} is said twice, by '{before}' and by '{part}'");
            }
            said.push((about, part));
        }
        if found.looks_around() > 0 && found.alone {
            bail!("method '{name}': auto lays out its own buckets");
        }
        Ok(found)
    }
}

/// One message: whoever reads arguments shows no causes.
fn method(name: &str, error: &dyn fmt::Display) -> Error {
    anyhow!("method '{name}': {error}")
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Method {
    /// Returns the synchroniser's options.
    pub fn options(&self, timeout: Duration) -> Options {
        let usual = Options::default();
        Options {
            policy: self.policy.clone(),
            algorithm: self.algorithm,
            bucket_bytes: if self.alone { 0 } else { usual.bucket_bytes },
            partitions: self.whole.then_some(1),
            underway_max: self.serial.then_some(NonZeroUsize::MIN),
            timeout,
            unchecked: true,
            ..usual
        }
    }

    /// Steps after which a planner has seen enough.
    pub fn looks_around(&self) -> u64 {
        match &self.policy {
            Policy::Fixed(_) => 0,
            _ => 6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_for_what_they_say() {
        for (short, long) in NAMED {
            let (one, other): (Method, Method) = (short.parse().unwrap(), long.parse().unwrap());
            assert_eq!(one.to_string(), short);
            assert_eq!(one.policy.to_string(), other.policy.to_string());
        }
        let error = "int8/star".parse::<Method>().unwrap_err().to_string();
        assert!(error.starts_with("method 'int8/star': unknown algorithm 'star'"), "{error}");
    }

    #[test]
    fn a_method_says_everything_once() {
        let error = |name: &str| name.parse::<Method>().unwrap_err().to_string();
        for (name, twice) in [
            ("none/whole/cut", "whether it is cut is said twice, by 'whole' and by 'cut'"),
            ("none/ring/ring", "the algorithm is said twice, by 'ring' and by 'ring'"),
        ] {
            assert_eq!(error(name), format!("method '{name}': {twice}"));
        }
        for name in ["", "/////", "none/", "topk:0"] {
            let (error, start) = (error(name), format!("method '{name}': "));
            assert!(error.len() > start.len() && error.starts_with(&start), "{error}");
        }
    }
}
