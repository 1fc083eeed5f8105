//! What the trainer trains.

/// A named tensor of f32 parameters, and so of gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name, unique in the model: "block.3.mlp.up.weight".
    pub name: String,
    /// The sizes of its dimensions, slowest first.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// A parameter called `name` of the given shape.
    pub fn new(name: &str, shape: &[usize]) -> Parameter {
        Parameter { name: name.to_owned(), shape: shape.to_vec() }
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether its gradient always travels uncompressed: scalars and vectors (biases, norms) are
    /// few and sensitive.
    pub fn is_exempt(&self) -> bool {
        self.shape.iter().filter(|&&size| size > 1).count() < 2
    }

    /// Rows and columns of its gradient as a matrix: the first dimension against all others.
    pub fn as_matrix(&self) -> (usize, usize) {
        let rows = self.shape.first().copied().unwrap_or(1);
        (rows, self.elements() / rows.max(1))
    }
}
