//! Constants of the model, which are never trained: `-> x[..]`.
//!
//! Examples are tables of positions, masks that are added to scores, and frozen weights. Every rank has
//! all constants, and uses its part of them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{SINGLE, check_number, inputs};
use crate::{Axes, Declaration, Error, Kind, Operand};

/// A constant; no inputs.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// The shape of the output.
    pub shape: Vec<usize>,
    /// The numbers in row-major order.
    #[serde(with = "numbers")]
    pub values: Arc<[f32]>,
}

/// Writes a hash instead of the values, of which there may be many.
impl fmt::Debug for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.values.iter().flat_map(|value| value.to_le_bytes());
        let hash = thinwire_wire::fingerprint(bytes);
        f.debug_struct("Constant").field("shape", &self.shape).field("values", &hash).finish()
    }
}

impl Rule for Constant {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [] = inputs(shapes)?;
        let expected = self.shape.iter().try_fold(1_usize, |n, length| n.checked_mul(*length));
        if expected != Some(self.values.len()) {
            let message = format!(
                "{} values for shape {:?}, expected one for each",
                self.values.len(),
                self.shape
            );
            return Err(Error::new(Kind::Operands, message));
        }
        self.values.iter().try_for_each(|value| check_number("value", (*value).into(), SINGLE))?;
        let mut axes = Axes::default();
        let dims = axes.all(&self.shape)?;
        Ok(axes.declare([], [Operand::new("x", dims)], 0.0))
    }
}

/// Serialises numbers as a list.
mod numbers {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(values: &Arc<[f32]>, to: S) -> Result<S::Ok, S::Error> {
        values.as_ref().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[f32]>, D::Error> {
        Vec::<f32>::deserialize(from).map(Arc::from)
    }
}
