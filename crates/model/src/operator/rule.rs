//! The trait that the file of an operator implements.

use crate::{Array, Declaration, Error, Region};

/// Declaration and meaning of an operator.
pub(crate) trait Rule {
    /// Declares axes and operands for inputs of these shapes.
    fn declare(&self, inputs: &[&[usize]]) -> Result<Declaration, Error>;

    /// Computes the outputs for a part of every axis: plain, slow, in f64.
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array>;
}
