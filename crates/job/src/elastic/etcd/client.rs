//! Client of etcd's JSON interface. It makes one request at a time, to any server that answers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Failure;
use super::answer::{self, Entry, Outcome};
use super::transport::{encode, post};

/// Time after which a call does not try another server.
const PATIENCE: Duration = Duration::from_millis(300);

/// Client of the servers of an etcd.
#[derive(Clone, Debug)]
pub struct Client {
    servers: Vec<String>,
    /// Server that is asked first.
    present: usize,
}

impl Client {
    pub fn new(servers: &[String]) -> Client {
        Client { servers: servers.to_vec(), present: 0 }
    }

    /// Returns the server that answered last.
    pub fn server(&self) -> &str {
        &self.servers[self.present]
    }

    /// Reads a key.
    ///
    /// # Errors
    /// If etcd does not answer, or refuses.
    pub fn get(&mut self, key: &str) -> Result<Option<Entry>, Failure> {
        let answer = self.ask("kv/range", &json!({ "key": encode(key.as_bytes()) }))?;
        answer::entry(&answer).ok_or_else(|| self.strange())
    }

    /// Makes a transaction: does `success` if all of `compare` hold, and otherwise reads the key `otherwise`.
    ///
    /// # Errors
    /// If etcd does not answer, or refuses; the transaction may have taken effect nevertheless.
    pub fn transact(
        &mut self,
        compare: &[Value],
        success: &[Value],
        otherwise: &str,
    ) -> Result<Outcome, Failure> {
        let read = json!({ "request_range": { "key": encode(otherwise.as_bytes()) } });
        let body = json!({ "compare": compare, "success": success, "failure": [read] });
        let answer = self.ask("kv/txn", &body)?;
        answer::outcome(&answer).ok_or_else(|| self.strange())
    }

    /// Obtains a lease of at least `seconds`, and returns its id and its time.
    ///
    /// # Errors
    /// If etcd does not answer, or refuses.
    pub fn grant(&mut self, seconds: u64) -> Result<(String, Duration), Failure> {
        let answer = self.ask("lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        let (id, seconds) = answer::lease(&answer).ok_or_else(|| self.strange())?;
        Ok((id, Duration::from_secs(seconds)))
    }

    /// Keeps a lease alive; returns false if the lease has run out.
    ///
    /// # Errors
    /// If etcd does not answer, or refuses.
    pub fn keep_alive(&mut self, lease: &str) -> Result<bool, Failure> {
        let answer = self.ask("lease/keepalive", &json!({ "ID": lease }))?;
        answer::is_alive(&answer).ok_or_else(|| self.strange())
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// If etcd does not answer, or the lease has run out.
    pub fn revoke(&mut self, lease: &str) -> Result<(), Failure> {
        self.ask("lease/revoke", &json!({ "ID": lease })).map(drop)
    }

    /// Asks one server after the other, as long as they fail quickly. The next call begins with the server
    /// after the last one that failed.
    fn ask(&mut self, path: &str, body: &Value) -> Result<Value, Failure> {
        let begun = Instant::now();
        let body = body.to_string().into_bytes();
        let mut last = None;
        for _ in 0..self.servers.len() {
            match post(self.server(), path, body.clone()) {
                Ok(answer) => {
                    return serde_json::from_slice(&answer).map_err(|_| self.strange());
                }
                Err(failure) => {
                    // A reason that will not pass says more than that another server is away.
                    if !matches!(last, Some(Failure::Final { .. })) {
                        last = Some(failure);
                    }
                    self.present = (self.present + 1) % self.servers.len();
                }
            }
            if begun.elapsed() > PATIENCE {
                break;
            }
        }
        Err(last.expect("there is at least one server"))
    }

    fn strange(&self) -> Failure {
        let text = format!("{} does not answer as etcd does", self.server());
        Failure::Final { text, hint: "give the address at which etcd's clients reach it" }
    }
}

/// Compares the revision at which a key was created; `revision` 0 means that the key does not exist.
pub fn was_created(key: &str, revision: i64) -> Value {
    json!({
        "key": encode(key.as_bytes()), "target": "CREATE", "result": "EQUAL",
        "create_revision": revision.to_string(),
    })
}

/// Compares the revision of the last change of a key; `revision` 0 means that the key does not exist.
pub fn was_modified(key: &str, revision: i64) -> Value {
    json!({
        "key": encode(key.as_bytes()), "target": "MOD", "result": "EQUAL",
        "mod_revision": revision.to_string(),
    })
}

/// Sets a key for as long as a lease lives, or for ever without one.
pub fn put(key: &str, value: &[u8], lease: Option<&str>) -> Value {
    let lease = lease.unwrap_or("0");
    json!({ "request_put": { "key": encode(key.as_bytes()), "value": encode(value), "lease": lease } })
}

/// Removes a key.
pub fn delete(key: &str) -> Value {
    json!({ "request_delete_range": { "key": encode(key.as_bytes()) } })
}
