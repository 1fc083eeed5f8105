//! Arguments from Python, converted to the types that the core takes: whole numbers, names of dtypes
//! and codecs, settings.
//!
//! Whole numbers may have any size and sign, and are taken as i128. With a narrower type, PyO3 would
//! raise OverflowError for a number that does not fit. Here it is a caller's mistake like any other,
//! with a message that names the argument.

use std::sync::Arc;
use std::time::Duration;

use thinwire_codec::{Choice, Codec};
use thinwire_job::{Settings, heartbeat_timeout, process, shared_memory};
use thinwire_link::Bandwidth;
use thinwire_link::tcp::{Connections, Encryption};
use thinwire_wire::{DType, Rank, World};

use crate::error::Failure;

/// Returns a number as an unsigned one that fits into `T`.
pub(crate) fn number<T: TryFrom<i128>>(name: &str, given: i128) -> Result<T, Failure> {
    T::try_from(given).map_err(|_| {
        let most = u128::MAX >> (128 - 8 * size_of::<T>());
        Failure::invalid(format!("{name} is {given}, expected 0..={most}"))
    })
}

/// Returns a number as a rank of `world`.
pub(crate) fn rank(name: &str, given: i128, world: World) -> Result<Rank, Failure> {
    let rank = u32::try_from(given).ok().map(Rank).filter(|rank| rank.index() < world.size());
    rank.ok_or_else(|| {
        let size = world.size();
        Failure::invalid(format!("{name} is rank {given}, expected one of {size} ranks"))
    })
}

/// Returns the dtype of a tensor.
pub(crate) fn parse_dtype(name: &str) -> Result<DType, Failure> {
    name.parse().map_err(|error: thinwire_wire::UnknownDType| Failure::invalid(error.to_string()))
}

/// Returns the codec of one call; raw means raw in the tensor's own dtype.
pub(crate) fn bytes_codec(name: &str, dtype: DType) -> Result<Arc<dyn Codec>, Failure> {
    match Choice::parse(name)? {
        Choice::Bytes(codec) if codec.is_raw() => Ok(thinwire_codec::raw_of(dtype)),
        Choice::Bytes(codec) => Ok(codec),
        other => Err(Failure::invalid(format!(
            "codec {other} needs the gradients of a model, not a single tensor (hint: use a Synchronizer)"
        ))),
    }
}

/// Returns settings of the ranks' meeting.
pub(crate) fn settings(
    encryption: &str,
    connections: Option<i128>,
    link: Option<&str>,
    timeout_s: f64,
    heartbeat_timeout_s: Option<f64>,
    port: Option<i128>,
) -> Result<Settings, Failure> {
    let encryption = match encryption {
        "auto" => Encryption::Auto,
        "always" => Encryption::Always,
        "never" => Encryption::Never,
        other => {
            return Err(Failure::invalid(format!(
                "encryption is '{other}', expected auto, always or never"
            )));
        }
    };
    let connections = match connections {
        None | Some(1..=64) => {
            Connections::default().or_exactly(connections.map(|given| given as u16))
        }
        Some(other) => {
            return Err(Failure::invalid(format!("connections is {other}, expected 1..=64")));
        }
    };
    if !(0.1..=86_400.0).contains(&timeout_s) {
        return Err(Failure::invalid(format!("timeout_s is {timeout_s}, expected 0.1..=86400")));
    }
    let limit = link.map(Bandwidth::parse_limit).transpose();
    let limit = limit.map_err(|error| Failure::invalid(error.to_string()))?.flatten();
    let timeout = Duration::from_secs_f64(timeout_s);
    let given = heartbeat_timeout_s.map(Duration::try_from_secs_f64).transpose();
    let given = given.map_err(|_| {
        let found = heartbeat_timeout_s.unwrap_or_default();
        Failure::invalid(format!("heartbeat_timeout_s is {found}, expected 1 to {timeout_s}"))
    })?;
    let heartbeat_timeout = heartbeat_timeout(given, timeout, &process)?;
    let shared_memory = shared_memory(&process)?;
    let port = thinwire_job::port(port.map(|port| number("port", port)).transpose()?, &process)?;
    Ok(Settings { encryption, shared_memory, port, connections, timeout, heartbeat_timeout, limit })
}
