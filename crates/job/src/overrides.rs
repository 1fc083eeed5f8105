//! Explicit values for a rank's place. They take precedence over the values of a launcher.

use std::fmt;

use crate::place::Host;

/// Explicit values, which take precedence over the environment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// My rank; needs `world`.
    pub rank: Option<u32>,
    /// Number of ranks; needs `rank`.
    pub world: Option<u32>,
    /// Address at which the ranks meet, as host:port.
    pub coordinator: Option<String>,
    /// Process that runs the store at this address; rank 0 by default.
    pub host: Host,
    /// The job's secret.
    pub token: Option<String>,
    /// Spelling of these values, for messages.
    pub form: Form,
}

/// Spelling of explicit values, so that messages name them as the user wrote them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Arguments of a call: `rank=1`.
    #[default]
    Arguments,
    /// Flags of a command: `--rank 1`.
    Flags,
}

impl Form {
    /// Returns the spelling of the name of a value.
    pub(crate) fn name(self, name: &str) -> String {
        match self {
            Form::Arguments => name.to_owned(),
            Form::Flags => format!("--{name}"),
        }
    }

    /// Returns the spelling of a name with its value; arguments of a call quote strings.
    pub(crate) fn value(self, name: &str, value: impl fmt::Debug + fmt::Display) -> String {
        match self {
            Form::Arguments => format!("{name}={value:?}"),
            Form::Flags => format!("--{name} {value}"),
        }
    }
}
