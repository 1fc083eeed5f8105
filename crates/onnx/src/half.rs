//! Recognises, step by step, operators that other programs write as several nodes.
//!
//! GELU is x · (1 + erf(x / √2)) / 2, layer norm is (x − mean) / √(variance + ε), and so on. Each
//! step of such a formula is a stage; the next node leads to another stage or to an operator. If a
//! formula ends at a stage that is no operator, it is not supported, and the error names its node.

use thinwire_model::TensorId;

/// A partial formula of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Half {
    /// The stage that has been reached.
    pub stage: Stage,
    /// The tensor to which the formula applies.
    pub x: TensorId,
    /// The gain of a norm, once it is known.
    pub gain: Option<TensorId>,
    /// Number that a norm adds to a variance.
    pub epsilon: f64,
    /// Whether GELU uses the error function.
    pub exact: bool,
    /// The node with which the formula began.
    pub node: String,
}

impl Half {
    /// Returns a formula that begins with a node.
    pub fn new(stage: Stage, x: TensorId, node: String) -> Half {
        Half { stage, x, gain: None, epsilon: 0.0, exact: stage == Stage::Erf, node }
    }

    /// Returns the formula after its next step, in which it is combined with a number or another stage.
    pub fn onward(&self, stage: Stage, other: Other) -> Half {
        let epsilon = match (stage, other) {
            (Stage::VarianceSum | Stage::MeanSquareSum, Other::Number(number)) => decimal(number),
            _ => self.epsilon,
        };
        Half { stage, epsilon, ..self.clone() }
    }
}

/// Returns the shortest decimal number that equals this one in 32 bits: probably the number that was meant.
pub(crate) fn decimal(number: f64) -> f64 {
    (number as f32).to_string().parse().unwrap_or(number)
}

/// A stage of a formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// σ(x), which times x is SiLU.
    Sigmoid,
    /// erf(x / √2), or the hyperbolic tangent that is almost equal to it.
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
    /// √(2/π) · (x + 0.044715 · x³).
    Angle,
    /// The mean of the last dimension.
    Mean,
    /// x − mean.
    Centred,
    /// (x − mean)².
    CentredSquare,
    /// The mean of (x − mean)².
    Variance,
    /// Variance plus ε.
    VarianceSum,
    /// √(variance + ε).
    Deviation,
    /// 1 / √(variance + ε).
    InverseDeviation,
    /// (x − mean) / √(variance + ε).
    Normal,
    /// The normalised values times the gain.
    ScaledNormal,
    /// x².
    Square,
    /// The mean of x².
    MeanSquare,
    /// The mean of x², plus ε.
    MeanSquareSum,
    /// The root of the mean of x² plus ε.
    Root,
    /// One over the root of the mean of x² plus ε.
    InverseRoot,
    /// x divided by the root of the mean of x² plus ε.
    RootNormal,
    /// Scores with minus infinity for keys that come later than the query.
    Causal,
    /// A mask that is true where x is NaN.
    Missing,
}

/// The other operand of a stage, or of x itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Other {
    /// A number.
    Number(f64),
    /// A stage of the same tensor; `None` for the tensor itself.
    Stage(Option<Stage>),
}

/// Constants of the tanh approximation, and the largest error of those in a file.
const CUBE: f64 = 0.044_715;
const ROOT: f64 = 0.797_884_560_802_865_4;
const NEAR: f64 = 1e-3;
/// Largest ε.
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

/// Returns the stage after a function of a stage (`None` for x itself) and another operand.
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
