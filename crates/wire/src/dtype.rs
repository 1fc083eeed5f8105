//! Element types of tensors, on the wire and in memory.

use std::fmt;
use std::str::FromStr;

/// Type of one element on the wire or in a gradient; all types are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32 (8 exponent bits, 7 stored fraction bits).
    BF16,
}

impl DType {
    /// Every dtype, in the order of their codes on the wire.
    pub const ALL: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

    /// Returns the bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// Returns the number of the dtype on the wire, never 0.
    pub const fn code(self) -> u8 {
        1 + self as u8
    }

    /// Returns the dtype with a number on the wire, if there is one.
    pub fn from_code(code: u8) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.code() == code)
    }

    /// Returns the name as users write it: `f32`, `f16` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for a name that is not the name of a dtype.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype '{0}', expected f32, f16 or bf16")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        DType::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| UnknownDType(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        assert!("f8".parse::<DType>().is_err());
    }
}
