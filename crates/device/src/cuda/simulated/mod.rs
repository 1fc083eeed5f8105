//! Driver without a device.

pub mod host;
