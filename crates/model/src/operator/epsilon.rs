//! Epsilon: the number that norms add to a variance before taking the root.

use serde::{Deserialize, Serialize};

use super::operand::check_number;
use crate::Error;

/// A small number; 1e-5 unless a file gives another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Option<Given>")]
pub struct Epsilon {
    /// The number.
    #[serde(rename = "epsilon")]
    pub value: f64,
}

/// Largest epsilon; a larger one is refused as a mistake.
const MAX: f64 = 1e3;

impl Epsilon {
    /// Refuses a negative number, since its sum with a variance may have no root.
    pub(super) fn check(self) -> Result<(), Error> {
        check_number("epsilon", self.value, 0.0..=MAX)
    }
}

/// The field of a model file that has an epsilon.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    epsilon: f64,
}

impl Default for Epsilon {
    fn default() -> Epsilon {
        Epsilon { value: 1e-5 }
    }
}

impl From<Option<Given>> for Epsilon {
    fn from(given: Option<Given>) -> Epsilon {
        given.map_or_else(Epsilon::default, |given| Epsilon { value: given.epsilon })
    }
}
