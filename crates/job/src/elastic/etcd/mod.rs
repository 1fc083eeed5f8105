//! The state of a coordinator in etcd, and which process leads.
//!
//! Two keys belong to a job: `/thinwire/JOB/leader` has the address of the coordinator and is bound to a
//! lease, `/thinwire/JOB/state` its state. The revision at which the leader's key was created is a fencing
//! token. Law: a state is written only in a transaction that finds that the key is still the writer's. A
//! coordinator that was stopped for longer than its lease can therefore save nothing, and so decide nothing.

mod answer;
mod client;
mod directory;
mod leadership;
#[cfg(feature = "etcd")]
mod transport;

pub use client::Failure;
pub use directory::{Directory, Leader, address, is_refused, locate};
pub use leadership::{Leadership, Novice, Upkeep};

/// Requests to etcd in a build without the feature `etcd`, which are all refused.
#[cfg(not(feature = "etcd"))]
mod transport {
    use super::client::Failure;

    /// Refuses a request.
    ///
    /// # Errors
    /// Always.
    pub fn post(_server: &str, _path: &str, _body: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let text = "this build of thinwire has no etcd, cargo build --release --features etcd makes one that has";
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
