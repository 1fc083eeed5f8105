//! IEEE 754 binary16, rounded to nearest, ties to even; above 65504 a step is not finite.

use thinwire_wire::DType;

use crate::cast::CastCodec;
use crate::choice::no_parameter;
use crate::kernel::F16;
use crate::{Choice, Entry};

/// The line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "f16",
    usage: "f16",
    summary: "IEEE half precision, 2 bytes per element",
    examples: &["f16"],
    parse: |parameter| {
        no_parameter("f16", parameter)?;
        Ok(Choice::bytes(CastCodec::new::<F16>(DType::F16, |kernels| &kernels.f16)))
    },
};
