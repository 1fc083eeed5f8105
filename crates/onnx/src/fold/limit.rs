//! Limits of known numbers: a file may not make its reader work or remember without bound.

use thinwire_model::Error;

use crate::constant::{Constant, ELEMENTS_MAX};
use crate::import::refuse;

/// Known numbers of all nodes: more than any real file has.
const FOLDED_MAX: usize = 1 << 26;

/// The account of the known numbers that nodes have given so far.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    numbers: usize,
}

impl Folder {
    /// Counts the numbers of one node, and refuses a node of too many.
    pub(super) fn charge(&mut self, folded: &Constant) -> Result<(), Error> {
        self.numbers += elements(&folded.shape)?;
        match self.numbers <= FOLDED_MAX {
            true => Ok(()),
            false => Err(refuse(format!("more than {FOLDED_MAX} known numbers in all nodes"))),
        }
    }
}

/// Returns the number of elements of a shape, and refuses one of too many.
pub(super) fn elements(shape: &[usize]) -> Result<usize, Error> {
    let elements = shape.iter().try_fold(1_usize, |n, length| n.checked_mul(*length));
    elements.filter(|n| *n <= ELEMENTS_MAX).ok_or_else(large)
}

/// Returns the refusal of a node that gives too many numbers.
pub(super) fn large() -> Error {
    refuse(format!("more than {ELEMENTS_MAX} known numbers"))
}
