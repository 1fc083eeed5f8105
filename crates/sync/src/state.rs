//! What a synchroniser must remember across a restart.

use std::collections::BTreeMap;

/// Residuals, factors and the plan of one rank. A run that goes on from it goes on bit for bit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Named f32 tensors: shape and values. `residual.PARAMETER` has the parameter's shape.
    pub tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    /// The plan in force, as JSON.
    pub plan: String,
}
