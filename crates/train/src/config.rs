//! The size of the GPT on bytes that is trained if no model is named.

use serde::{Deserialize, Serialize};

use crate::VOCABULARY;
use crate::error::{Error, Kind};

/// The largest number of elements of all parameters together.
const ELEMENTS_MAX: usize = 1 << 32;
/// The largest number of blocks, and the largest number of elements of one row's attention.
const LAYERS_MAX: usize = 1024;
const ATTENTION_MAX: usize = 1 << 32;

/// The size of a GPT on bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Largest number of bytes from which a prediction is made.
    pub context: usize,
    /// Number of features of a position.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Number of attention heads, which must divide the width.
    pub heads: usize,
}

impl Config {
    /// Returns the name of this GPT in crate `model`.
    pub fn name(&self) -> String {
        let Config { context, width, layers, heads } = self;
        format!("bytes:layers={layers},width={width},heads={heads},positions={context}")
    }

    /// Refuses sizes that cannot be trained.
    ///
    /// # Errors
    /// If a size is zero or too large, or heads do not divide the width.
    pub fn check(&self) -> Result<(), Error> {
        let Config { context, width, layers, heads } = *self;
        if [context, width, layers, heads].contains(&0) || !width.is_multiple_of(heads) {
            let error = format!(
                "impossible model of context {context}, width {width}, {layers} layers and {heads} heads"
            );
            let hint = "all must be at least 1, and the width a multiple of the heads";
            return Err(Error::new(Kind::Invalid, error).with_hint(hint));
        }
        let attention = context.checked_mul(context).and_then(|pairs| pairs.checked_mul(heads));
        for (name, found, most, flags) in [
            ("layers", Some(layers), LAYERS_MAX, "layers"),
            ("parameters", self.elements(), ELEMENTS_MAX, "width, layers or context"),
            ("elements of attention per row", attention, ATTENTION_MAX, "context or heads"),
        ] {
            if found.is_none_or(|found| found > most) {
                let found = found.map_or("too many to count".to_owned(), |found| found.to_string());
                let error = format!("model with {found} {name}, expected at most {most}");
                let hint = format!("reduce {flags}");
                return Err(Error::new(Kind::Invalid, error).with_hint(hint));
            }
        }
        Ok(())
    }

    /// Returns the number of elements of all parameters, or `None` if it overflows.
    fn elements(&self) -> Option<usize> {
        let Config { context, width, layers, .. } = *self;
        // Per block: twelve squares, nine biases' worth of rows and two norms.
        let block = width.checked_mul(12)?.checked_add(13)?.checked_mul(layers)?;
        let ends = context.checked_add(2 * VOCABULARY + 2)?;
        block.checked_add(ends)?.checked_mul(width)
    }
}

#[cfg(test)]
mod tests {
    use thinwire_wire::Hint;

    use super::*;

    const SMALL: Config = Config { context: 12, width: 16, layers: 2, heads: 2 };

    #[test]
    fn impossible_sizes_are_refused() {
        for bad in [Config { width: 15, ..SMALL }, Config { heads: 0, ..SMALL }] {
            assert!(bad.check().unwrap_err().hint().is_some());
        }
        SMALL.check().unwrap();
    }

    #[test]
    fn elements_are_those_of_the_graph() {
        let graph = thinwire_model::named(&SMALL.name(), 1, 12).unwrap();
        let found: usize = graph.parameters().map(|(_, tensor)| tensor.elements()).sum();
        assert_eq!(SMALL.elements(), Some(found));
    }
}
