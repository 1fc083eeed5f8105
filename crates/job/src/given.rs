//! What a person says about a rank's place, beside what its launcher says.

use std::fmt;

use crate::place::Host;

/// What was given explicitly; it comes before the environment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    /// My rank; needs `world`.
    pub rank: Option<u32>,
    /// How many ranks there are; needs `rank`.
    pub world: Option<u32>,
    /// Where the ranks meet, as host:port.
    pub coordinator: Option<String>,
    /// Who runs the store there: rank 0 unless told otherwise.
    pub host: Host,
    /// The job's secret.
    pub token: Option<String>,
    /// How all this was written, for messages.
    pub form: Form,
}

/// How something is given: messages name it as it was written.
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
