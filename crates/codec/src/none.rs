//! No compression: f32 as they are, little-endian; decoding gives back the same bits.

use std::sync::Arc;

use thinwire_wire::DType;

use crate::cast::CastCodec;
use crate::choice::no_parameter;
use crate::kernel::{BF16, F16, F32};
use crate::{Choice, Codec, Entry};

/// The line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "none",
    usage: "none",
    summary: "f32 as they are, 4 bytes per element",
    examples: &["none"],
    parse: |parameter| {
        no_parameter("none", parameter)?;
        Ok(Choice::Bytes(raw()))
    },
};

/// The codec that leaves values as they are.
pub fn raw() -> Arc<dyn Codec> {
    Arc::new(CastCodec::new::<F32>(DType::F32, |kernels| &kernels.f32))
}

/// The codec that sends values of `dtype` as they are.
pub fn raw_of(dtype: DType) -> Arc<dyn Codec> {
    match dtype {
        DType::F32 => raw(),
        DType::F16 => Arc::new(CastCodec::new::<F16>(dtype, |kernels| &kernels.f16)),
        DType::BF16 => Arc::new(CastCodec::new::<BF16>(dtype, |kernels| &kernels.bf16)),
    }
}
