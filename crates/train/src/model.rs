//! Named parameters of a model, which are flat `f32` buffers: checkpoints, optimiser and exchange never
//! see a framework's tensor.

/// A named parameter of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Dotted name, unique in the model: `block.3.attention.query.weight`.
    pub name: String,
    /// Lengths of the dimensions, row-major.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether weight decay and low-precision gradients apply: matrices, not norms and biases.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() >= 2
    }
}

/// Precision of the gradients that leave a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gradients {
    /// f32, as backward gives them.
    #[default]
    F32,
    /// bf16 for matrices, rounded to nearest, ties to even; f32 for norms and biases, which are few.
    MixedBf16,
}
