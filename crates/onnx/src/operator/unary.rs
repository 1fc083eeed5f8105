//! Functions of one tensor.

use thinwire_model::{Activation, Arithmetic, Error, Initial, Scale};

use super::formula::scaled;
use crate::half::{Half, Stage, unary};
use crate::import::{Importer, refuse};
use crate::value::Value;

/// 1 / √2, and the largest error of that in a file.
const ROOT: f64 = std::f64::consts::FRAC_1_SQRT_2;
const NEAR: f64 = 1e-4;

/// Imports a function of every element, or the next stage of a formula.
pub(super) fn visit(importer: &mut Importer<'_>) -> Result<Value, Error> {
    if let Value::Half(half) = importer.value(0)?
        && let Some(stage) = unary(half.stage, importer.call.operator)
    {
        return Ok(Value::Half(Half { stage, ..half.clone() }));
    }
    let x = importer.tensor(0)?;
    let half = |stage, x| Ok(Value::Half(Half::new(stage, x, importer.call.name.clone())));
    let activation = match importer.call.operator {
        "Relu" => Activation::Relu,
        "Tanh" => Activation::Tanh,
        "Gelu" if importer.call.text("approximate") == Some(b"tanh") => Activation::Gelu,
        "Gelu" => Activation::GeluErf,
        "Swish" if importer.call.float("alpha", 1.0) == 1.0 => Activation::Silu,
        "IsNaN" => return half(Stage::Missing, x),
        "Sigmoid" => return half(Stage::Sigmoid, x),
        "Neg" => return importer.give(Scale(-1.0), &[x]),
        operator => {
            return match scaled(importer, x) {
                Some((factor, of)) if operator == "Erf" && (factor - ROOT).abs() < NEAR => {
                    half(Stage::Erf, of)
                }
                _ => Err(refuse(format!("{operator} is only supported as a part of {WHOLE}"))),
            };
        }
    };
    importer.give(activation, &[x])
}

/// Imports a leaky rectifier with a trained slope, as `relu(x) - relu(-x) * slope`. Slopes begin at 0.
pub(super) fn sloped(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let [x, slope] = [importer.tensor(0)?, importer.learned(1, Initial::Zeros)?];
    let above = importer.part("above", Activation::Relu, &[x])?;
    let turned = importer.part("turned", Scale(-1.0), &[x])?;
    let below = importer.part("below", Activation::Relu, &[turned])?;
    let sloped = importer.part("sloped", Arithmetic::Multiply, &[below, slope])?;
    importer.give(Arithmetic::Subtract, &[above, sloped])
}

/// Formulas that have such parts, for errors.
const WHOLE: &str = "GELU, layer norm or RMS norm";
