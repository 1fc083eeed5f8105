//! Operators that other programs took apart, half put together again.
//!
//! GELU is x · (1 + erf(x / √2)) / 2, layer norm (x − mean) / √(variance + ε), and so on. Each step
//! of such a formula is a stage; what follows either leads to the next stage or to an operator. A
//! stage that leads nowhere is an operator that is not supported, and its node is named.

use thinwire_model::TensorId;

/// A step of a formula over a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Half {
    /// Stage that is computed so far.
    pub stage: Stage,
    /// Tensor that the formula is of.
    pub x: TensorId,
    /// The gain of a norm, once it is there.
    pub gain: Option<TensorId>,
    /// Number that a norm adds to a variance.
    pub epsilon: f64,
    /// Whether GELU is the one of the error function.
    pub exact: bool,
    /// The node that began it.
    pub node: String,
}

impl Half {
    /// A formula that a node begins.
    pub fn new(stage: Stage, x: TensorId, node: String) -> Half {
        Half { stage, x, gain: None, epsilon: 0.0, exact: stage == Stage::Erf, node }
    }

    /// Returns the formula one step further, together with a number or another stage.
    pub fn onward(&self, stage: Stage, other: Other) -> Half {
        let epsilon = match (stage, other) {
            (Stage::VarianceSum | Stage::MeanSquareSum, Other::Number(number)) => decimal(number),
            _ => self.epsilon,
        };
        Half { stage, epsilon, ..self.clone() }
    }
}

/// The shortest decimal number of those that are the same in 32 bits: what was meant.
pub(crate) fn decimal(number: f64) -> f64 {
    (number as f32).to_string().parse().unwrap_or(number)
}

/// A stage of a formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// σ(x), which times x is SiLU.
    Sigmoid,
    /// erf(x / √2), or the hyperbolic tangent that is nearly the same.
    Erf,
    /// 1 + erf.
    OnePlus,
    /// (1 + erf) / 2.
    Phi,
    /// x · (1 + erf).
    Twice,
    /// x³.
    Cube,
    /// 0.044715 · x³.
    SmallCube,
    /// x + 0.044715 · x³.
    Inner,
    /// √(2/π) of it.
    Angle,
    /// The mean of the last dimension.
    Mean,
    /// x − mean.
    Centred,
    /// (x − mean)².
    CentredSquare,
    /// The mean of (x − mean)².
    Variance,
    /// Variance and ε.
    VarianceSum,
    /// √ of it.
    Deviation,
    /// 1 / √ of it.
    InverseDeviation,
    /// (x − mean) / √.
    Normal,
    /// Times the gain.
    ScaledNormal,
    /// x².
    Square,
    /// The mean of x².
    MeanSquare,
    /// Mean square and ε.
    MeanSquareSum,
    /// √ of it.
    Root,
    /// 1 / √ of it.
    InverseRoot,
    /// x / √.
    RootNormal,
    /// Scores with minus infinity where keys come later than the query.
    Causal,
    /// A mask that is true where x is no number.
    Missing,
}

/// The other operand of a stage, or of x itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Other {
    /// A number.
    Number(f64),
    /// A stage of the same tensor; none for the tensor itself.
    Stage(Option<Stage>),
}

/// Constants of the tanh approximation, and how far what a file says may be off.
const CUBE: f64 = 0.044_715;
const ROOT: f64 = 0.797_884_560_802_865_4;
const NEAR: f64 = 1e-3;
/// No ε is larger.
const EPSILON_MAX: f64 = 0.01;

/// Returns the stage after a function of one operand.
pub(crate) fn unary(stage: Stage, operator: &str) -> Option<Stage> {
    Some(match (operator, stage) {
        ("Tanh", Stage::Angle) => Stage::Erf,
        ("Sqrt", Stage::VarianceSum) => Stage::Deviation,
        ("Sqrt", Stage::MeanSquareSum) => Stage::Root,
        ("Reciprocal", Stage::Deviation) => Stage::InverseDeviation,
        ("Reciprocal", Stage::Root) => Stage::InverseRoot,
        ("ReduceMean", Stage::CentredSquare) => Stage::Variance,
        ("ReduceMean", Stage::Square) => Stage::MeanSquare,
        _ => return None,
    })
}

/// Returns the stage after a function of a stage (none for x itself) and another operand.
pub(crate) fn binary(operator: &str, left: Option<Stage>, right: Other) -> Option<Stage> {
    use Other::{Number, Stage as With};
    Some(match (operator, left, right) {
        ("Add", Some(Stage::Erf), Number(1.0)) => Stage::OnePlus,
        ("Mul", Some(Stage::OnePlus), Number(0.5)) => Stage::Phi,
        ("Mul", Some(Stage::OnePlus), With(None)) => Stage::Twice,
        ("Mul", Some(Stage::Cube), Number(n)) if near(n, CUBE) => Stage::SmallCube,
        ("Add", Some(Stage::SmallCube), With(None)) => Stage::Inner,
        ("Mul", Some(Stage::Inner), Number(n)) if near(n, ROOT) => Stage::Angle,
        ("Pow", None, Number(3.0)) => Stage::Cube,
        ("Mul", Some(Stage::Square), With(None)) => Stage::Cube,
        ("Sub", None, With(Some(Stage::Mean))) => Stage::Centred,
        ("Pow", Some(Stage::Centred), Number(2.0))
        | ("Mul", Some(Stage::Centred), With(Some(Stage::Centred))) => Stage::CentredSquare,
        ("Add", Some(Stage::Variance), Number(n)) if n < EPSILON_MAX => Stage::VarianceSum,
        ("Div", Some(Stage::Centred), With(Some(Stage::Deviation)))
        | ("Mul", Some(Stage::Centred), With(Some(Stage::InverseDeviation))) => Stage::Normal,
        ("Pow", None, Number(2.0)) | ("Mul", None, With(None)) => Stage::Square,
        ("Add", Some(Stage::MeanSquare), Number(n)) if n < EPSILON_MAX => Stage::MeanSquareSum,
        ("Div", None, With(Some(Stage::Root))) | ("Mul", None, With(Some(Stage::InverseRoot))) => {
            Stage::RootNormal
        }
        ("Div", Some(Stage::OnePlus), Number(2.0)) => Stage::Phi,
        _ => return None,
    })
}

fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() < NEAR * expected
}
