//! Small object store in this process, with the part of S3 that snapshots and checkpoints need.
//!
//! It answers one request at a time. A request without a signature ends the test.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use crate::lock;

/// Object store with one bucket, called `bucket`.
#[derive(Clone, Debug)]
pub struct ObjectStore {
    /// Address, `http://HOST:PORT`.
    pub endpoint: String,
    shared: Arc<Shared>,
}

/// Way in which the store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// The store does not fail.
    #[default]
    None,
    /// The store refuses every request, with status 503.
    Away,
    /// The store accepts every request and answers none.
    Silent,
    /// The store closes the connection in the middle of every answer that has a body.
    Cut,
    /// The store writes objects whose names end with this text, but answers that it could not.
    Denied(&'static str),
}

#[derive(Debug, Default)]
struct Shared {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    fault: Mutex<Fault>,
    /// Methods and paths that have failed, if each fails once.
    failed: Option<Mutex<BTreeSet<(String, String)>>>,
    /// Connections on which it does not answer.
    silent: Mutex<Vec<TcpStream>>,
}

impl ObjectStore {
    /// Starts a store that answers.
    ///
    /// # Panics
    /// If this machine has no free port.
    pub fn start() -> ObjectStore {
        ObjectStore::serving(Shared::default())
    }

    /// Starts a store that fails the first request of each method for each object in one way.
    ///
    /// # Panics
    /// If this machine has no free port.
    pub fn faltering(fault: Fault) -> ObjectStore {
        let (fault, failed) = (Mutex::new(fault), Some(Mutex::default()));
        ObjectStore::serving(Shared { fault, failed, ..Shared::default() })
    }

    fn serving(shared: Shared) -> ObjectStore {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Arc::new(shared);
        let held = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that was killed waits for no answer.
                let _ = serve(stream, &held);
            }
        });
        ObjectStore { endpoint, shared }
    }

    /// Returns the variables by which a process finds the store.
    pub fn variables(&self) -> [(&'static str, &str); 3] {
        [
            ("AWS_ENDPOINT_URL", &self.endpoint),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ]
    }

    /// Returns the value of one of the variables of [`ObjectStore::variables`].
    pub fn variable(&self, name: &str) -> Option<String> {
        let found = self.variables().into_iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_owned())
    }

    /// Makes every request fail in this way from now on.
    pub fn set_fault(&self, fault: Fault) {
        *lock(&self.shared.fault) = fault;
    }

    /// Returns the objects by name, to be changed in place.
    pub fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        lock(&self.shared.objects)
    }

    /// Returns the names of all objects.
    pub fn keys(&self) -> Vec<String> {
        self.objects().keys().cloned().collect()
    }
}

impl Shared {
    /// Returns the way in which a request fails.
    fn fault(&self, method: &str, path: &str) -> Fault {
        let request = (method.to_owned(), path.to_owned());
        let is_spared = self.failed.as_ref().is_some_and(|failed| !lock(failed).insert(request));
        if is_spared { Fault::None } else { *lock(&self.fault) }
    }
}

/// Answers one request.
fn serve(mut stream: TcpStream, shared: &Shared) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut head, mut length, mut is_new) = (String::new(), 0, false);
    reader.read_line(&mut head)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        length = line.strip_prefix("content-length: ").map_or(length, |it| it.parse().unwrap_or(0));
        is_new |= line == "if-none-match: *";
    }
    let mut sent = vec![0; length];
    reader.read_exact(&mut sent)?;
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let is_signed = query.contains("X-Amz-Signature=") && query.contains("Credential=key%2F");
    let key = path.strip_prefix("/bucket").map(|key| key.trim_start_matches('/').to_owned());
    let fault = shared.fault(method, path);
    if fault == Fault::Silent {
        lock(&shared.silent).push(stream);
        return Ok(());
    }
    let mut objects = lock(&shared.objects);
    let (status, body) = match (method, key) {
        _ if fault == Fault::Away => ("503 Slow Down", Vec::new()),
        _ if !is_signed => ("403 Forbidden", refusal("InvalidAccessKeyId", "No such key.")),
        (_, None) => ("404 Not Found", refusal("NoSuchBucket", "The bucket is not there.")),
        ("PUT", Some(key)) if is_new && objects.contains_key(&key) => {
            ("412 Precondition Failed", Vec::new())
        }
        ("PUT", Some(key)) => {
            let is_denied = matches!(fault, Fault::Denied(name) if key.ends_with(name));
            objects.insert(key, sent);
            (if is_denied { "503 Slow Down" } else { "200 OK" }, Vec::new())
        }
        ("DELETE", Some(key)) => {
            objects.remove(&key);
            ("204 No Content", Vec::new())
        }
        (_, Some(key)) if key.is_empty() => ("200 OK", list(&objects, query)),
        (_, Some(key)) => match objects.get(&key) {
            Some(found) => ("200 OK", found.clone()),
            None => ("404 Not Found", refusal("NoSuchKey", "It is not there.")),
        },
    };
    drop(objects);
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    match fault {
        _ if method == "HEAD" => Ok(()),
        Fault::Cut => stream.write_all(&body[..length / 2]),
        _ => stream.write_all(&body),
    }
}

fn refusal(code: &str, message: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>").into_bytes()
}

/// Returns a list with one key per page, so that every longer list has several pages.
fn list(objects: &BTreeMap<String, Vec<u8>>, query: &str) -> Vec<u8> {
    let field = |name: &str| {
        let value = query.split('&').find_map(|field| field.strip_prefix(name))?;
        Some(value.replace("%2F", "/"))
    };
    let (prefix, after) = (field("prefix=").unwrap_or_default(), field("continuation-token="));
    let mut keys = objects
        .keys()
        .filter(|key| key.starts_with(&prefix) && after.as_ref().is_none_or(|after| *key > after));
    let item = keys.next().map_or_else(String::new, |key| {
        let more = format!("<NextContinuationToken>{key}</NextContinuationToken>");
        let more = if keys.next().is_some() { more } else { String::new() };
        format!(
            "<IsTruncated>{}</IsTruncated>{more}<Contents><Key>{key}</Key></Contents>",
            !more.is_empty()
        )
    });
    let space = "http://s3.amazonaws.com/doc/2006-03-01/";
    format!("<ListBucketResult xmlns=\"{space}\">{item}</ListBucketResult>").into_bytes()
}
