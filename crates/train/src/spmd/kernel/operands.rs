//! Inputs of an operator by their number.

use crate::spmd::value::Value;

/// Returns the inputs of an operator that has so many.
///
/// # Panics
/// If there are more or fewer.
pub fn operands<const N: usize>(inputs: Vec<Value>) -> [Value; N] {
    inputs.try_into().expect("as many as were declared")
}
