//! Dtypes and codecs by the names that Python gives, and warnings about codecs.

use std::sync::Arc;

use pyo3::prelude::*;
use thinwire_codec::{Choice, Codec};
use thinwire_wire::DType;

use crate::error::Failure;

/// The dtype of a tensor.
pub(crate) fn parse_dtype(name: &str) -> Result<DType, Failure> {
    name.parse().map_err(|error: thinwire_wire::UnknownDType| Failure::invalid(error.to_string()))
}

/// The codec of one call; raw means raw in the tensor's own dtype.
pub(crate) fn bytes_codec(name: &str, dtype: DType) -> Result<Arc<dyn Codec>, Failure> {
    match Choice::parse(name)? {
        Choice::Bytes(codec) if codec.is_raw() => Ok(thinwire_codec::raw_of(dtype)),
        Choice::Bytes(codec) => Ok(codec),
        other => Err(Failure::invalid(format!(
            "codec {other} needs the gradients of a model, not a single tensor (hint: use a Synchronizer)"
        ))),
    }
}

/// Warns through Python's `warnings`, so that filters apply.
pub(crate) fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    py.import("warnings")?.call_method1("warn", (text,)).map(drop)
}
