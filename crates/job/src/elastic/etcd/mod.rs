//! The state of a coordinator in etcd, and the election of the process that leads.
//!
//! Two keys belong to a job. `/thinwire/JOB/leader` has the address of the coordinator, and is bound to a
//! lease; `/thinwire/JOB/state` has the coordinator's state. The revision at which the leader's key was
//! created is a fencing token. Law: a state is written only in a transaction that finds the writer's own key
//! unchanged. A coordinator that was stopped for longer than its lease can therefore save nothing, and so
//! decide nothing.

mod answer;
mod client;
mod directory;
mod leadership;
#[cfg(feature = "etcd")]
mod transport;

use thinwire_link as link;

use crate::error::Error;

pub use directory::{Directory, Leader, address, is_refused, locate};
pub use leadership::{Leadership, Novice, Upkeep};

/// Failure of a request to etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No server answers at the moment.
    #[error("{0}")]
    Away(String),
    /// Refusal that would be repeated at every attempt.
    #[error("{text}")]
    Final {
        /// Reason in one line.
        text: String,
        /// Hint for the user.
        hint: &'static str,
    },
}

impl Failure {
    pub fn away(server: &str, reason: &str) -> Failure {
        let reason: String = reason.chars().filter(|letter| !letter.is_control()).collect();
        Failure::Away(format!("cannot reach etcd at {server}: {reason}"))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Away(text) => Error::from(link::Error::new(link::Kind::Unreachable, text))
                .with_hint(
                    "check that etcd runs at this address, and that this machine can reach it",
                ),
            Failure::Final { text, hint } => Error::invalid(text).with_hint(hint),
        }
    }
}

/// Requests to etcd in a build without the feature `etcd`, which are all refused.
#[cfg(not(feature = "etcd"))]
mod transport {
    use super::Failure;

    /// Refuses a request.
    ///
    /// # Errors
    /// Always.
    pub fn post(_server: &str, _path: &str, _body: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let text = "this build of thinwire cannot use etcd; cargo build --release --features etcd makes one that can";
        let hint =
            "a coordinator can also keep its state in a file: thinwire coordinator --state FILE";
        Err(Failure::Final { text: text.to_owned(), hint })
    }

    pub fn encode(_bytes: &[u8]) -> String {
        String::new()
    }

    pub fn decode(_text: &str) -> Option<Vec<u8>> {
        None
    }
}
