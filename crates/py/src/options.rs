//! Parameters and options of a synchroniser, as Python gives them.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use pyo3::prelude::*;
use thinwire_sync::{Momentum, Options, Parameter, Policy, check_combination, check_options};
use thinwire_wire::{Rank, World};

use crate::arguments;
use crate::arguments::parse_dtype;
use crate::device::Cuda;
use crate::error::Failure;

/// More elements than any model has that one rank can hold.
const ELEMENTS_MAX: usize = 1 << 40;

/// A parameter in Python: name, shape, dtype, the framework's bucket.
pub(crate) type Described = (String, Vec<usize>, String, u32);

/// Returns parameters of the core: at least one, each with a name of its own, exchanged by these ranks.
pub(crate) fn described(
    parameters: Vec<Described>,
    ranks: &Arc<[Rank]>,
) -> Result<Vec<Parameter>, Failure> {
    if parameters.is_empty() {
        return Err(Failure::invalid("no parameters, expected at least one"));
    }
    let (mut names, mut total) = (BTreeSet::new(), 0);
    for (name, shape, ..) in &parameters {
        if !names.insert(name.as_str()) {
            return Err(Failure::invalid(format!("two parameters are called '{name}'")));
        }
        let elements = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
        let sum = elements.and_then(|elements| elements.checked_add(total));
        total = sum.filter(|&sum| sum <= ELEMENTS_MAX).ok_or_else(|| {
            Failure::invalid(format!(
                "parameters up to {name} of shape {shape:?}, expected at most {ELEMENTS_MAX} elements"
            ))
        })?;
    }
    let describe = |(name, shape, dtype, bucket): Described| {
        let parameter = Parameter::new(&name, &shape);
        let ranks = Arc::clone(ranks);
        Ok(Parameter { dtype: parse_dtype(&dtype)?, bucket, ranks, ..parameter })
    };
    parameters.into_iter().map(describe).collect()
}

/// Options as Python passes them.
pub(crate) struct Told<'a> {
    pub(crate) codec: &'a str,
    pub(crate) algorithm: Option<&'a str>,
    pub(crate) bucket_bytes: i128,
    pub(crate) seed: i128,
    pub(crate) error_budget: Option<f64>,
    pub(crate) feedback: &'a str,
    pub(crate) momentum_correction: Option<f32>,
    pub(crate) warmup_steps: Option<i128>,
    pub(crate) unchecked: bool,
}

impl Told<'_> {
    /// Returns the options of the core.
    pub(crate) fn options(&self) -> Result<Options, Failure> {
        let usual = Options::default();
        let error_budget = self.error_budget.unwrap_or(usual.error_budget);
        if !error_budget.is_finite() || error_budget < 0.0 {
            return Err(Failure::invalid(format!(
                "error_budget {error_budget}, expected a finite number that is not negative"
            )));
        }
        let policy: Policy = parse(self.codec)?;
        let warm_up_steps = self.warmup_steps.map(|steps| arguments::number("warmup_steps", steps));
        Ok(Options {
            warm_up_steps: warm_up_steps.transpose()?.unwrap_or(policy.warm_up_steps()),
            policy,
            algorithm: self.algorithm.map(parse).transpose()?,
            bucket_bytes: arguments::number::<usize>("bucket_bytes", self.bucket_bytes)?.max(1),
            seed: arguments::number("seed", self.seed)?,
            error_budget,
            feedback: parse(self.feedback)?,
            momentum: self.momentum_correction.map(momentum).transpose()?,
            unchecked: self.unchecked,
            ..usual
        })
    }
}

/// Returns the options that give the tensors of a state their meaning.
pub(crate) fn named(
    codec: &str,
    feedback: &str,
    momentum_correction: Option<f32>,
) -> Result<Options, Failure> {
    Ok(Options {
        policy: parse(codec)?,
        feedback: parse(feedback)?,
        momentum: momentum_correction.map(momentum).transpose()?,
        ..Options::default()
    })
}

/// Returns momentum correction with this factor.
fn momentum(factor: f32) -> Result<Momentum, Failure> {
    if !(0.0..1.0).contains(&factor) {
        return Err(Failure::invalid(format!(
            "momentum_correction is {factor}, expected a number from 0 to below 1"
        )));
    }
    Ok(Momentum { factor, ..Momentum::default() })
}

fn parse<T: FromStr<Err: Display>>(name: &str) -> Result<T, Failure> {
    name.parse().map_err(|error: T::Err| Failure::invalid(error.to_string()))
}

/// Refuses options that a synchroniser would refuse, before ranks meet; with `world`, also options that
/// it would refuse for that number of ranks.
#[pyfunction]
#[pyo3(signature = (codec = "none", algorithm = None, bucket_bytes = 1 << 20, seed = 1, error_budget = None, feedback = "classic", momentum_correction = None, warmup_steps = Some(0), unchecked = false, world = None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub(crate) fn check(
    codec: &str,
    algorithm: Option<&str>,
    bucket_bytes: i128,
    seed: i128,
    error_budget: Option<f64>,
    feedback: &str,
    momentum_correction: Option<f32>,
    warmup_steps: Option<i128>,
    unchecked: bool,
    world: Option<i128>,
) -> PyResult<()> {
    let told = Told {
        codec,
        algorithm,
        bucket_bytes,
        seed,
        error_budget,
        feedback,
        momentum_correction,
        warmup_steps,
        unchecked,
    };
    let options = told.options()?;
    let checked = match world {
        None => check_options(&options),
        Some(size) => {
            let world = World::new(0, arguments::number("world", size)?)
                .map_err(|error| Failure::invalid(error.to_string()))?;
            check_combination(&options, world)
        }
    };
    Ok(checked.map_err(Failure::from)?)
}

/// Returns the name of a codec, or of `auto` with codecs, in plans and states: the same for all names
/// with the same meaning.
#[pyfunction]
pub(crate) fn codec_name(codec: &str) -> PyResult<String> {
    Ok(parse::<Policy>(codec)?.to_string())
}

/// Measures the codecs of `auto` before this process joins others, which would otherwise wait for it.
#[pyfunction]
#[pyo3(signature = (codec, largest, device = None))]
pub(crate) fn measure_codecs(
    py: Python<'_>,
    codec: &str,
    largest: i128,
    device: Option<Py<Cuda>>,
) -> PyResult<()> {
    let (policy, largest): (Policy, usize) =
        (parse(codec)?, arguments::number("largest", largest)?);
    let device = device.map(|device| device.get().core());
    py.detach(|| thinwire_sync::measure_codecs(&policy, largest, device.as_deref()));
    Ok(())
}
