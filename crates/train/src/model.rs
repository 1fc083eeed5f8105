//! Named parameters of a model, which are flat `f32` buffers: checkpoints, optimiser and exchange never
//! see a framework's tensor.

use thinwire_wire::random::Key;

/// The step number of the random stream that initial values come from: no training step has it.
const INITIAL_STREAM: u64 = u64::MAX;

/// Initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Independent normal numbers with mean zero and this standard deviation.
    Normal(f32),
}

/// A named parameter of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Dotted name, unique in the model: `block.3.attention.query.weight`.
    pub name: String,
    /// Lengths of the dimensions, row-major.
    pub shape: Vec<usize>,
    /// Initial values.
    pub initial: Initial,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gradients {
    /// f32, as backward gives them.
    F32,
    /// bf16 for matrices, rounded to nearest, ties to even; f32 for norms and biases, which are few.
    MixedBf16,
}

/// The initial values of `parameters`: the same on every rank, by `seed` alone.
pub fn initial_values(parameters: &[Parameter], seed: u64) -> Vec<Vec<f32>> {
    let fill = |(index, parameter): (usize, &Parameter)| {
        let key = Key { seed, step: INITIAL_STREAM, tensor: index as u32 };
        match parameter.initial {
            Initial::Zeros => vec![0.0; parameter.elements()],
            Initial::Ones => vec![1.0; parameter.elements()],
            Initial::Normal(deviation) => {
                (0..parameter.elements() as u64).map(|i| key.normal(i) * deviation).collect()
            }
        }
    };
    parameters.iter().enumerate().map(fill).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_start_independent_and_with_their_deviation() {
        let parameter = |initial| Parameter { name: String::new(), shape: vec![50, 40], initial };
        let parameters = [0.5, 0.5, 0.0]
            .map(|d| parameter(if d > 0.0 { Initial::Normal(d) } else { Initial::Ones }));
        let values = initial_values(&parameters, 4);
        assert_ne!(values[0], values[1]);
        assert_ne!(values[0], initial_values(&parameters, 5)[0]);
        let variance = values[0].iter().map(|v| v * v).sum::<f32>() / 2000.0;
        assert!((variance - 0.25).abs() < 0.04, "{variance}");
        assert!(values[2].iter().all(|value| *value == 1.0));
    }
}
