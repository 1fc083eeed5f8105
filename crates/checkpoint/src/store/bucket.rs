//! Bucket of an object store that speaks S3.
//!
//! Objects have no folders and cannot be renamed. So the files of a draft stay where they are, and the
//! manifest names their folder. The manifest is written last, and only if no manifest with its number
//! exists. Requests that fail are repeated; each has a time limit, and ends when the store is silent for
//! too long.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use minreq::Request;
use rusty_s3::actions::{ListObjectsV2, S3Action};
use rusty_s3::{Credentials, UrlStyle};

use super::{Start, Store};
use crate::error::{Error, Kind};
use crate::location::{SCHEME, endpoint, region};
use crate::manifest::{MANIFEST, new_token};

/// Time for which a signed request is valid; longer than any request takes.
const SIGNED_FOR: Duration = Duration::from_secs(60 * 60);
/// Longest silence of the store during an attempt.
const SILENCE: Duration = Duration::from_secs(20);
/// Slowest transfer that the time limit allows, in bytes per second.
const BYTES_PER_S_MIN: u64 = 1 << 20;
/// Waits before a request is repeated.
const WAITS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(800), Duration::from_secs(3)];
/// Largest object that one request can write.
const OBJECT_BYTES_MAX: u64 = 5 << 30;
/// Largest size of an answer that is a list or an error.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Largest head of an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Largest part of an answer that is read at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Largest number of parts of an answer that may wait for the reader.
const PIECES_MAX: usize = 16;
/// Largest number of letters of the reason of a refusal that are quoted.
const REASON_LETTERS_MAX: usize = 200;
/// Text at the end of a list of objects.
const LIST_END: &str = "</ListBucketResult>";

/// Store in a bucket.
#[derive(Debug)]
pub struct Bucket {
    bucket: rusty_s3::Bucket,
    credentials: Credentials,
    /// Prefix of all objects' names, empty or ending with a slash.
    prefix: String,
    /// Longest time for a request including all its attempts, not counting the time for the bytes that
    /// it sends.
    patience: Duration,
    /// Whether the last request got no answer.
    is_silent: AtomicBool,
}

/// Opens `BUCKET/PREFIX` with the variables `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`,
/// `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
///
/// # Errors
/// If a required variable is missing or wrong.
pub fn open(
    place: &str,
    variables: impl Fn(&str) -> Option<String>,
    patience: Duration,
) -> Result<Bucket, Error> {
    let wrong = |why: String| Error::new(Kind::Invalid, format!("{SCHEME}{place}: {why}"));
    let variable = |name: &str| variables(name).filter(|value| !value.is_empty());
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.is_empty() {
        return Err(wrong("the name of the bucket is missing".to_owned())
            .with_hint("write s3://BUCKET/PREFIX"));
    }
    let (region, endpoint) = (region(&variables), endpoint(&variables));
    let said = |error: &dyn std::fmt::Display| wrong(format!("endpoint '{endpoint}': {error}"));
    // minreq takes the first colon behind the scheme for that of the port.
    if endpoint.contains("://[") {
        return Err(said(&"expected a name or an IPv4 address")
            .with_hint("give the IPv6 address a name, in /etc/hosts or DNS"));
    }
    let url = endpoint.parse().map_err(|error| said(&error))?;
    let style = UrlStyle::Path;
    let bucket = rusty_s3::Bucket::new(url, style, bucket.to_owned(), region);
    let bucket = bucket.map_err(|error| said(&error))?;
    let (key, secret) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"));
    let (Some(key), Some(secret)) = (key, secret) else {
        return Err(wrong("no credentials".to_owned())
            .with_hint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
    };
    let credentials = match variable("AWS_SESSION_TOKEN") {
        Some(token) => Credentials::new_with_token(key, secret, token),
        None => Credentials::new(key, secret),
    };
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    Ok(Bucket { bucket, credentials, prefix, patience, is_silent: AtomicBool::new(false) })
}

/// Treatment of an object that exists already.
#[derive(Clone, Copy, PartialEq)]
enum Existing {
    Keep,
    Replace,
}

/// Answer of an object store.
struct Answer {
    status: u16,
    length: Option<u64>,
    body: Vec<u8>,
}

impl Answer {
    fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns whether the answer says that the bucket does not exist.
    fn lacks_bucket(&self) -> bool {
        String::from_utf8_lossy(&self.body).contains("<Code>NoSuchBucket</Code>")
    }

    /// Returns the reason of a refusal, in one line.
    fn reason(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let field = |name: &str| {
            let rest = text.split_once(&format!("<{name}>"))?.1;
            let words = rest.split_once('<')?.0.split_whitespace().collect::<Vec<_>>();
            Some(words.join(" ").chars().take(REASON_LETTERS_MAX).collect::<String>())
        };
        match (field("Code"), field("Message")) {
            (Some(code), Some(message)) => format!("{} {code}: {message}", self.status),
            _ => format!("the object store answers {}", self.status),
        }
    }
}

impl Bucket {
    fn key(&self, folder: &str, file: &str) -> String {
        let slash = if folder.is_empty() { "" } else { "/" };
        format!("{}{folder}{slash}{file}", self.prefix)
    }

    /// Returns the address of an object, for messages.
    fn uri(&self, key: &str) -> String {
        format!("{SCHEME}{}/{key}", self.bucket.name())
    }

    /// Returns the error of a request about an object.
    fn failed(&self, key: &str, why: &str) -> Error {
        Error::new(Kind::Io, format!("{}: {why}", self.uri(key)))
    }

    /// Sends a request, and repeats it until the store answers without a failure of its own, or the time
    /// is over.
    fn send(
        &self,
        request: impl Fn() -> Request,
        sent: u64,
        bytes_max: u64,
    ) -> Result<Answer, String> {
        let (begun, mut waits) = (Instant::now(), WAITS.iter());
        let transfer = |bytes: u64| Duration::from_secs(bytes / BYTES_PER_S_MIN);
        let patience = self.patience + transfer(sent);
        loop {
            let silence = SILENCE.min(self.patience) + transfer(sent);
            let silence = silence.min(patience.saturating_sub(begun.elapsed()));
            let timeout = (silence + transfer(bytes_max)).as_secs() + 2;
            let request = request()
                .with_timeout(timeout)
                .with_follow_redirects(false)
                .with_max_headers_size(HEAD_BYTES_MAX)
                .with_max_status_line_length(HEAD_BYTES_MAX);
            let asked = Instant::now();
            let answer = answered(request, bytes_max, silence);
            let is_silent = answer.is_err() && asked.elapsed() >= silence;
            self.is_silent.store(is_silent, Ordering::Relaxed);
            let again = answer.as_ref().map_or(true, |it| it.status >= 500 || it.status == 429);
            match waits.next() {
                // The rest is for the answer to the last attempt.
                Some(wait) if again && begun.elapsed() + *wait < patience / 2 => {
                    thread::sleep(*wait);
                }
                _ => return answer,
            }
        }
    }

    /// Sends a request without a body about an object. Returns the answer, even if it is a refusal.
    fn ask(
        &self,
        key: &str,
        url: &str,
        method: fn(String) -> Request,
        bytes_max: u64,
    ) -> Result<Answer, Error> {
        let answer = self.send(|| method(url.to_owned()), 0, bytes_max);
        answer.map_err(|why| self.failed(key, &why))
    }

    fn get(&self, key: &str, bytes_max: u64) -> Result<Answer, Error> {
        let url = self.bucket.get_object(Some(&self.credentials), key).sign(SIGNED_FOR);
        self.ask(key, url.as_str(), minreq::get, bytes_max.max(1))
    }

    /// Returns an answer about an object, or an error if the answer is a refusal.
    fn good(&self, key: &str, answer: Answer) -> Result<Answer, Error> {
        match answer.is_good() {
            true => Ok(answer),
            false => Err(self.failed(key, &answer.reason())),
        }
    }

    /// Writes an object. Returns false only if the object must be new and exists already.
    fn put(&self, key: &str, bytes: &[u8], existing: Existing) -> Result<bool, Error> {
        let length = bytes.len() as u64;
        if length > OBJECT_BYTES_MAX {
            let why = format!("{length} bytes, expected at most {OBJECT_BYTES_MAX}");
            return Err(self.failed(key, &why));
        }
        let mut action = self.bucket.put_object(Some(&self.credentials), key);
        let must_be_new = existing == Existing::Keep;
        let condition = must_be_new.then_some(("if-none-match", "*"));
        condition.iter().for_each(|(name, value)| action.headers_mut().insert(*name, *value));
        let url = action.sign(SIGNED_FOR).to_string();
        let request = || {
            let put = minreq::put(url.clone()).with_body(bytes);
            condition.iter().fold(put, |put, (name, value)| put.with_header(*name, *value))
        };
        let answer = self.send(request, length, ANSWER_BYTES_MAX);
        let answer = answer.map_err(|why| self.failed(key, &why))?;
        match answer.status {
            // Somebody has written it, or is writing it.
            409 | 412 if must_be_new => Ok(false),
            _ => self.good(key, answer).map(|_| true),
        }
    }

    fn delete(&self, key: &str) -> Result<(), Error> {
        let url = self.bucket.delete_object(Some(&self.credentials), key).sign(SIGNED_FOR);
        let answer = self.ask(key, url.as_str(), minreq::delete, ANSWER_BYTES_MAX)?;
        self.good(key, answer).map(drop)
    }

    /// Lists the keys that begin with a prefix.
    fn keys(&self, prefix: &str) -> Result<Vec<String>, Error> {
        let (mut keys, mut token) = (Vec::new(), None);
        loop {
            let mut action = self.bucket.list_objects_v2(Some(&self.credentials));
            action.with_prefix(prefix);
            if let Some(token) = token {
                action.with_continuation_token(token);
            }
            let url = action.sign(SIGNED_FOR);
            let answer = self.ask(prefix, url.as_str(), minreq::get, ANSWER_BYTES_MAX)?;
            let answer = self.good(prefix, answer)?;
            let text = String::from_utf8_lossy(&answer.body);
            let page = ListObjectsV2::parse_response(&text).map_err(|error| error.to_string());
            let page = page.and_then(|page| match text.trim_end().ends_with(LIST_END) {
                true => Ok(page),
                false => Err("the list of objects is cut off".to_owned()),
            });
            let page = page.map_err(|why| self.failed(prefix, &why))?;
            keys.extend(page.contents.into_iter().map(|object| object.key));
            token = page.next_continuation_token;
            if token.is_none() {
                return Ok(keys);
            }
        }
    }
}

/// Part of an answer.
enum Piece {
    /// Status, and length of the body if it is known.
    Head(u16, Option<u64>),
    /// Bytes of the body.
    Body(Vec<u8>),
    /// End of the answer.
    End,
}

/// Sends a request once and reads its answer, whose body has at most `bytes_max` bytes. Another thread passes
/// on the parts as they arrive, since the transport has only one time limit for all of them.
fn answered(request: Request, bytes_max: u64, silence: Duration) -> Result<Answer, String> {
    let (sender, pieces) = sync_channel(PIECES_MAX);
    thread::spawn(move || {
        let end = receive(request, bytes_max, &sender).map(|()| Piece::End);
        // Whoever has given up waits for nothing.
        let _ = sender.send(end);
    });
    let mut answer = Answer { status: 0, length: None, body: Vec::new() };
    loop {
        match next_piece(&pieces, silence)? {
            Piece::Head(status, length) => (answer.status, answer.length) = (status, length),
            Piece::Body(mut bytes) => answer.body.append(&mut bytes),
            Piece::End => break,
        }
        let most = if answer.is_good() { bytes_max } else { ANSWER_BYTES_MAX };
        if answer.body.len() as u64 > most {
            return Err(format!("the answer is too long, expected at most {most} bytes"));
        }
    }
    let found = answer.body.len() as u64;
    match answer.length.filter(|length| has_body(answer.status, bytes_max) && found < *length) {
        Some(length) => Err(format!("the answer was cut off after {found} of {length} bytes")),
        None => Ok(answer),
    }
}

/// Returns the next part of an answer, if the store is not silent for too long.
fn next_piece(
    pieces: &Receiver<Result<Piece, String>>,
    silence: Duration,
) -> Result<Piece, String> {
    pieces.recv_timeout(silence).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => {
            Err(format!("no answer within {} s", silence.as_secs_f64().ceil()))
        }
        RecvTimeoutError::Disconnected => Err("no answer".to_owned()),
    })
}

/// Sends a request, and passes on the parts of its answer as they arrive.
fn receive(
    request: Request,
    bytes_max: u64,
    sender: &SyncSender<Result<Piece, String>>,
) -> Result<(), String> {
    let mut answer = request.send_lazy().map_err(|error| error.to_string())?;
    let status = answer.status_code;
    let header = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("content-length");
    let length = answer.headers.iter().find(header);
    let length = length.and_then(|(_, length)| length.trim().parse().ok());
    let mut is_wanted = sender.send(Ok(Piece::Head(status, length))).is_ok();
    while is_wanted && has_body(status, bytes_max) {
        let mut bytes = vec![0; PIECE_BYTES];
        let read = answer.read(&mut bytes).map_err(|error| error.to_string())?;
        if read == 0 {
            break;
        }
        bytes.truncate(read);
        is_wanted = sender.send(Ok(Piece::Body(bytes))).is_ok();
    }
    Ok(())
}

/// Returns whether an answer has a body; if `bytes_max` is 0, only the head was requested.
fn has_body(status: u16, bytes_max: u64) -> bool {
    bytes_max > 0 && status != 204
}

impl Store for Bucket {
    fn check(&self) -> Result<(), Error> {
        let token = new_token()?;
        let key = self.key("", &format!(".probe-{token}"));
        self.put(&key, b".", Existing::Replace)?;
        self.delete(&key)
    }

    fn renames(&self) -> bool {
        false
    }

    fn begin(&self, _draft: &str, _start: Start) -> Result<(), Error> {
        Ok(())
    }

    fn create(&self, folder: &str, file: &str, bytes: &[u8]) -> Result<bool, Error> {
        self.put(&self.key(folder, file), bytes, Existing::Keep)
    }

    fn write(&self, folder: &str, file: &str, parts: &[&[u8]]) -> Result<(), Error> {
        self.put(&self.key(folder, file), &parts.concat(), Existing::Replace).map(drop)
    }

    fn find(&self, folder: &str, file: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, Error> {
        let key = self.key(folder, file);
        let answer = self.get(&key, bytes_max)?;
        match answer.status {
            404 if !answer.lacks_bucket() => Ok(None),
            _ => self.good(&key, answer).map(|answer| Some(answer.body)),
        }
    }

    fn read(&self, folder: &str, file: &str, bytes_max: u64) -> Result<Vec<u8>, Error> {
        let key = self.key(folder, file);
        let answer = self.get(&key, bytes_max)?;
        Ok(self.good(&key, answer)?.body)
    }

    fn length(&self, folder: &str, file: &str) -> Result<Option<u64>, Error> {
        let key = self.key(folder, file);
        let url = self.bucket.head_object(Some(&self.credentials), &key).sign(SIGNED_FOR);
        let answer = self.ask(&key, url.as_str(), minreq::head, 0)?;
        if answer.status == 404 {
            return Ok(None);
        }
        let length = self.good(&key, answer)?.length;
        length.map(Some).ok_or_else(|| self.failed(&key, "the answer has no length"))
    }

    fn remove(&self, folder: &str, file: &str) -> Result<(), Error> {
        self.delete(&self.key(folder, file))
    }

    fn publish(
        &self,
        _draft: &str,
        name: &str,
        manifest: &str,
        is_file: Option<fn(&str) -> bool>,
    ) -> Result<bool, Error> {
        let (key, text) = (self.key(name, MANIFEST), manifest.as_bytes());
        let existing = is_file.map_or(Existing::Keep, |_| Existing::Replace);
        let is_written = self.put(&key, text, existing)?;
        // An attempt whose answer was lost may have written it.
        let is_own = || self.find(name, MANIFEST, text.len() as u64);
        Ok(is_written || is_own().is_ok_and(|found| found.as_deref() == Some(text)))
    }

    fn discard(&self, draft: &str) {
        // A store that has just been silent would hold up the caller for as long again, who may have to end soon.
        if self.is_silent.load(Ordering::Relaxed) {
            return;
        }
        let keys = self.keys(&self.key(draft, "")).unwrap_or_default();
        // No manifest names what could not be removed. A store that fails now would hold up the caller for each file.
        let _ = keys.iter().try_for_each(|key| self.delete(key));
    }

    fn clean(&self, _is_abandoned: &dyn Fn(&str, Duration) -> bool) -> Result<(), Error> {
        Ok(())
    }

    fn list(&self, start: &str) -> Result<Vec<String>, Error> {
        let keys = self.keys(&format!("{}{start}", self.prefix))?;
        let names = keys.iter().filter_map(|key| key.strip_prefix(&self.prefix));
        Ok(names.map(str::to_owned).collect())
    }

    fn path(&self, folder: &str, file: &str) -> String {
        self.uri(self.key(folder, file).trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests;
