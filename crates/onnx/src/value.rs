//! Values: what a name of a file stands for while it is read.

use thinwire_model::TensorId;

use crate::constant::Constant;
use crate::half::Half;

/// The value of a name.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Something that is computed, or comes from the data.
    Tensor(TensorId),
    /// A value that is trained, by its name, not yet used.
    Weight(Weight),
    /// Real numbers of the file whose name does not say whether they are trained: a weight where an
    /// operator trains what it reads there, and elsewhere known numbers.
    Stored(Weight),
    /// Numbers that are known.
    Constant(Constant),
    /// Something that means an operator only together with what follows.
    Half(Half),
}

/// Something that is trained. It becomes a parameter in the order of dimensions that is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Weight {
    /// Name in the file.
    pub name: String,
    /// Shape as the operator uses it.
    pub shape: Vec<usize>,
    /// Whether that is the file's shape the other way round.
    pub transposed: bool,
}

impl Weight {
    /// Returns the weight with the two dimensions exchanged.
    pub fn turned(&self) -> Weight {
        let shape = self.shape.iter().rev().copied().collect();
        Weight { shape, transposed: !self.transposed, ..self.clone() }
    }
}
