//! Inputs of an operator, as an array of known length.

use crate::spmd::value::Value;

/// Returns the inputs of an operator that has `N` of them.
///
/// # Panics
/// If their number differs.
pub fn operands<const N: usize>(inputs: Vec<Value>) -> [Value; N] {
    inputs.try_into().expect("as many as were declared")
}
