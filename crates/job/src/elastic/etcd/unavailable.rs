//! Requests to etcd in a build without the feature `etcd`, which are all refused.

use super::client::Failure;

/// Refuses a request.
///
/// # Errors
/// Always.
pub fn post(_server: &str, _path: &str, _body: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let text = "this build of thinwire has no etcd, cargo build --release --features etcd makes one that has";
    let hint = "a coordinator can also keep its state in a file: thinwire coordinator --state FILE";
    Err(Failure::Final { text: text.to_owned(), hint })
}

pub fn encode(_bytes: &[u8]) -> String {
    String::new()
}

pub fn decode(_text: &str) -> Option<Vec<u8>> {
    None
}
