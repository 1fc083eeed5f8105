//! The location in etcd of a job's coordinator.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Separator after a scheme, which does not occur in host:port.
const SCHEME_END: &str = "://";
const SCHEME: &str = "etcd";
const SERVERS_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 64;

/// Location of an elastic job in etcd, `etcd://host:port[,host:port]/JOB`. etcd stores the coordinator's
/// address and state there, so that any launcher of the job can host the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Servers of etcd, each as host:port.
    servers: Vec<String>,
    job: String,
}

impl Store {
    /// Returns whether a text has the form of a store's address, not of a coordinator's.
    pub fn is_meant(text: &str) -> bool {
        text.contains(SCHEME_END)
    }

    /// Returns the servers of etcd, each as host:port.
    pub(super) fn servers(&self) -> &[String] {
        &self.servers
    }

    /// Returns the key of the present coordinator's address.
    pub(super) fn leader_key(&self) -> String {
        format!("/thinwire/{}/leader", self.job)
    }

    /// Returns the key of the coordinator's state.
    pub(super) fn state_key(&self) -> String {
        format!("/thinwire/{}/state", self.job)
    }
}

impl FromStr for Store {
    type Err = Error;

    fn from_str(text: &str) -> Result<Store, Error> {
        let wrong = |what: &str| {
            // The error is one line, whatever the text is.
            let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
            Error::invalid(format!("store is '{text}', {what}"))
                .with_hint("give etcd://HOST:PORT/JOB, with any name of the job")
        };
        let (scheme, rest) =
            text.split_once(SCHEME_END).ok_or_else(|| wrong("expected etcd://host:port/JOB"))?;
        if scheme != SCHEME {
            return Err(wrong(&format!("whose scheme is {scheme}, expected {SCHEME}")));
        }
        let (servers, job) = rest.split_once('/').ok_or_else(|| wrong("without the job's name"))?;
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        if job.is_empty() || job.len() > NAME_BYTES_MAX || !job.chars().all(is_letter) {
            return Err(wrong(&format!(
                "whose job is '{job}', expected 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-'"
            )));
        }
        let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
        if let Some(server) = servers.iter().find(|server| !is_host_and_port(server)) {
            return Err(wrong(&format!("whose server is '{server}', expected host:port")));
        }
        if servers.len() > SERVERS_MAX {
            return Err(wrong(&format!(
                "which has {} servers, expected at most {SERVERS_MAX}",
                servers.len()
            )));
        }
        Ok(Store { servers, job: job.to_owned() })
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{SCHEME_END}{}/{}", self.servers.join(","), self.job)
    }
}

/// Returns whether a text can be part of a URL as host and port.
fn is_host_and_port(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "._-:[]".contains(letter);
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    text.chars().all(is_letter) && port.is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use thinwire_wire::Hint;

    use super::*;

    #[test]
    fn a_store_is_written_as_it_was_read() {
        for text in ["etcd://127.0.0.1:2379/gpt", "etcd://a:1,b.c:2,[::1]:3/My_job-7.2"] {
            let store: Store = text.parse().unwrap();
            assert_eq!(store.to_string(), text);
        }
        let store: Store = "etcd://a:1,b:2/gpt".parse().unwrap();
        assert_eq!(store.servers(), ["a:1", "b:2"]);
        assert_eq!(store.leader_key(), "/thinwire/gpt/leader");
        assert!(Store::is_meant("http://a") && !Store::is_meant("[::1]:7"));
    }

    #[test]
    fn what_is_no_store_is_refused_in_one_line() {
        let table = [
            ("a:1", "expected etcd://host:port/JOB"),
            ("http://a:1/j", "whose scheme is http, expected etcd"),
            ("etcd://a:1", "without the job's name"),
            ("etcd://a:1/", "whose job is '', expected 1 to 64 letters, digits, '.', '_' or '-'"),
            (
                "etcd://a:1/a/b",
                "whose job is 'a/b', expected 1 to 64 letters, digits, '.', '_' or '-'",
            ),
            ("etcd://a/j", "whose server is 'a', expected host:port"),
            ("etcd://a:1,/j", "whose server is '', expected host:port"),
            ("etcd://u@a:1/j", "whose server is 'u@a:1', expected host:port"),
            ("etcd://a:70000/j", "whose server is 'a:70000', expected host:port"),
        ];
        for (text, what) in table {
            let error = text.parse::<Store>().unwrap_err();
            assert_eq!(error.to_string(), format!("store is '{text}', {what}"));
            assert!(error.hint().is_some());
        }
        let many = vec!["a:1"; 17].join(",");
        let error = format!("etcd://{many}/j").parse::<Store>().unwrap_err();
        assert!(error.to_string().ends_with("which has 17 servers, expected at most 16"));
    }
}
