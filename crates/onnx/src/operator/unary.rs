//! Functions of one tensor.

use thinwire_model::{Activation, Arithmetic, Error, Initial, Scale};

use super::formula::scaled;
use crate::half::{Half, Stage, unary};
use crate::import::{Call, Importer};
use crate::value::Value;

/// 1 / √2, and how far a file's may be off.
const ROOT: f64 = std::f64::consts::FRAC_1_SQRT_2;
const NEAR: f64 = 1e-4;

/// A function of every element, or the next stage of a formula.
pub(super) fn visit(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Value, Error> {
    if let Value::Half(half) = importer.value(call, 0)?
        && let Some(stage) = unary(half.stage, call.operator)
    {
        return Ok(Value::Half(Half { stage, ..half.clone() }));
    }
    let x = importer.tensor(call, 0)?;
    let half = |stage, x| Ok(Value::Half(Half::new(stage, x, call.name.clone())));
    let activation = match call.operator {
        "Relu" => Activation::Relu,
        "Tanh" => Activation::Tanh,
        "Gelu" if call.text("approximate") == Some(b"tanh") => Activation::Gelu,
        "Gelu" => Activation::GeluErf,
        "Swish" if call.float("alpha", 1.0) == 1.0 => Activation::Silu,
        "IsNaN" => return half(Stage::Missing, x),
        "Sigmoid" => return half(Stage::Sigmoid, x),
        "Neg" => return importer.give(call, Scale(-1.0), &[x]),
        operator => {
            return match scaled(importer, x) {
                Some((factor, of)) if operator == "Erf" && (factor - ROOT).abs() < NEAR => {
                    half(Stage::Erf, of)
                }
                _ => Err(call.refuse(format!("{operator} is only supported as a part of {WHOLE}"))),
            };
        }
    };
    importer.give(call, activation, &[x])
}

/// A leaky rectifier with a trained slope, as `relu(x) - relu(-x) * slope`. Slopes begin at 0.
pub(super) fn sloped(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Value, Error> {
    let [x, slope] = [importer.tensor(call, 0)?, importer.learned(call, 1, Initial::Zeros)?];
    let named = |part: &str| format!("{}.{part}", call.name);
    let above = importer.apply(&named("above"), Activation::Relu, &[x])?;
    let turned = importer.apply(&named("turned"), Scale(-1.0), &[x])?;
    let below = importer.apply(&named("below"), Activation::Relu, &[turned])?;
    let sloped = importer.apply(&named("sloped"), Arithmetic::Multiply, &[below, slope])?;
    importer.give(call, Arithmetic::Subtract, &[above, sloped])
}

/// Formulas that have such parts.
const WHOLE: &str = "GELU, layer norm or RMS norm";
