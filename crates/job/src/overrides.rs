//! Explicit values for a rank's place, beside those of a launcher.

use std::fmt;

use crate::place::Host;

/// Explicit values, which come before the environment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// My rank; needs `world`.
    pub rank: Option<u32>,
    /// Number of ranks; needs `rank`.
    pub world: Option<u32>,
    /// Address at which the ranks meet, as host:port.
    pub coordinator: Option<String>,
    /// Process that runs the store there: rank 0 unless told otherwise.
    pub host: Host,
    /// The job's secret.
    pub token: Option<String>,
    /// Spelling of these values, for messages.
    pub form: Form,
}

/// Spelling of explicit values: messages name them as they were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Arguments of a call: `rank=1`.
    #[default]
    Arguments,
    /// Flags of a command: `--rank 1`.
    Flags,
}

impl Form {
    /// The name of what may be given.
    pub(crate) fn name(self, name: &str) -> String {
        match self {
            Form::Arguments => name.to_owned(),
            Form::Flags => format!("--{name}"),
        }
    }

    /// Something given; what is no number is quoted where that is usual.
    pub(crate) fn value(self, name: &str, value: impl fmt::Debug + fmt::Display) -> String {
        match self {
            Form::Arguments => format!("{name}={value:?}"),
            Form::Flags => format!("--{name} {value}"),
        }
    }
}
