//! The upper half of an f32, rounded to nearest, ties to even.

use thinwire_wire::DType;

use crate::cast::CastCodec;
use crate::choice::no_parameter;
use crate::kernel::BF16;
use crate::{Choice, Entry};

/// The line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "bf16",
    usage: "bf16",
    summary: "the upper half of an f32, 2 bytes per element",
    examples: &["bf16"],
    parse: |parameter| {
        no_parameter("bf16", parameter)?;
        Ok(Choice::bytes(CastCodec::new::<BF16>(DType::BF16, |kernels| &kernels.bf16)))
    },
};
