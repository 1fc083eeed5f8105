//! The trait that the file of an operator implements.

use crate::{Declaration, Error};

/// Declaration of an operator.
pub(crate) trait Rule {
    /// Declares axes and operands for inputs of these shapes.
    fn declare(&self, inputs: &[&[usize]]) -> Result<Declaration, Error>;
}
