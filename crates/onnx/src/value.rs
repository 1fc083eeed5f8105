//! Values: the meaning of a file's names during the import.

use thinwire_model::TensorId;

use crate::constant::Constant;
use crate::half::Half;

/// The value of a name.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// A tensor that is computed, or comes from the data.
    Tensor(TensorId),
    /// A trained value, by its name, which is not used yet.
    Weight(Weight),
    /// Real numbers of the file whose name does not show whether they are trained. They are a weight if
    /// they are read as an operator's weight, and otherwise known numbers.
    Stored(Weight),
    /// Numbers that are known.
    Constant(Constant),
    /// A partial formula, which becomes an operator only with the nodes that follow.
    Half(Half),
}

/// A trained value. It becomes a parameter with the order of dimensions in which it is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Weight {
    /// Name in the file.
    pub name: String,
    /// Shape as the operator uses it.
    pub shape: Vec<usize>,
    /// Whether this is the file's shape transposed.
    pub transposed: bool,
}

impl Weight {
    /// Returns the weight with the two dimensions exchanged.
    pub fn turned(&self) -> Weight {
        let shape = self.shape.iter().rev().copied().collect();
        Weight { shape, transposed: !self.transposed, ..self.clone() }
    }
}
