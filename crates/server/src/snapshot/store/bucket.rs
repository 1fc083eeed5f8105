//! Bucket of an object store that speaks S3.
//!
//! Objects have no folders and cannot be renamed, so the files of a draft stay where they are, and the manifest,
//! written last and only if there is none with its number, names their place. Requests that fail are tried
//! again; each has a time limit.

use std::io::Read;
use std::thread;
use std::time::Duration;

use minreq::{Request, ResponseLazy};
use rusty_s3::actions::{ListObjectsV2, S3Action};
use rusty_s3::{Credentials, UrlStyle};

use super::{SCHEME, Store};
use crate::error::{Error, Kind};
use crate::snapshot::manifest::{MANIFEST, Manifest, snapshot_folder};

/// Place of drafts' files among the objects.
const FILES: &str = "files";
/// Time for which a signed request may be used, longer than any request takes.
const SIGNED_FOR: Duration = Duration::from_secs(60 * 60);
/// Time limit of a request without its bytes, in seconds.
const TIMEOUT_S: u64 = 20;
/// Slowest transfer for which the time limit leaves room, in bytes per second.
const BYTES_PER_S_MIN: u64 = 1 << 20;
/// Waits before a request is tried again.
const WAITS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(800), Duration::from_secs(3)];
/// Largest object that one request can write.
const OBJECT_BYTES_MAX: u64 = 5 << 30;
/// Largest answer with a list or an error.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Largest head of an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Store in a bucket.
#[derive(Debug)]
pub struct Bucket {
    bucket: rusty_s3::Bucket,
    credentials: Credentials,
    /// Initial of all objects' names, empty or ending in a slash.
    prefix: String,
}

/// Opens `BUCKET/PREFIX` as the variables `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`,
/// `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN` say.
///
/// # Errors
/// If a variable that is needed is missing or wrong.
pub fn open(place: &str, variables: impl Fn(&str) -> Option<String>) -> Result<Bucket, Error> {
    let wrong = |why: String| Error::new(Kind::Invalid, format!("{SCHEME}{place}: {why}"));
    let variable = |name: &str| variables(name).filter(|value| !value.is_empty());
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.is_empty() {
        return Err(wrong("no name of a bucket".to_owned()).with_hint("write s3://BUCKET/PREFIX"));
    }
    let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
    let region = region.unwrap_or_else(|| "us-east-1".to_owned());
    let endpoint = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
    let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let said = |error: &dyn std::fmt::Display| wrong(format!("endpoint '{endpoint}': {error}"));
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
    Ok(Bucket { bucket, credentials, prefix })
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

    /// Returns the reason of a refusal, in one line.
    fn reason(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let field = |name: &str| {
            let rest = text.split_once(&format!("<{name}>"))?.1;
            Some(rest.split_once('<')?.0.trim())
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

    /// Sends a request until it is answered by something else than a failure of the store.
    fn send(
        &self,
        request: impl Fn() -> Request,
        (sent, bytes_max): (u64, u64),
    ) -> Result<Answer, String> {
        let timeout = TIMEOUT_S + sent.saturating_add(bytes_max) / BYTES_PER_S_MIN;
        let mut waits = WAITS.iter();
        loop {
            let request = request()
                .with_timeout(timeout)
                .with_follow_redirects(false)
                .with_max_headers_size(HEAD_BYTES_MAX)
                .with_max_status_line_length(HEAD_BYTES_MAX);
            let answer = request.send_lazy().map_err(|error| error.to_string());
            let answer = answer.and_then(|answer| receive(answer, bytes_max));
            let again = answer.as_ref().map_or(true, |it| it.status >= 500 || it.status == 429);
            match waits.next() {
                Some(wait) if again => thread::sleep(*wait),
                _ => return answer,
            }
        }
    }

    /// Sends a request about an object whose answer must be good.
    fn ask(
        &self,
        (key, url): (&str, String),
        (method, bytes_max): (fn(String) -> Request, u64),
    ) -> Result<Answer, String> {
        let answer = self.send(|| method(url.clone()), (0, bytes_max));
        let answer = answer.map_err(|why| format!("{}: {why}", self.uri(key)))?;
        match answer.is_good() {
            true => Ok(answer),
            false => Err(format!("{}: {}", self.uri(key), answer.reason())),
        }
    }

    /// Writes an object; returns whether it could be, which is always so unless it must be new.
    fn put(&self, key: &str, bytes: &[u8], is_new: bool) -> Result<bool, String> {
        let length = bytes.len() as u64;
        if length > OBJECT_BYTES_MAX {
            return Err(format!(
                "{}: {length} bytes, expected at most {OBJECT_BYTES_MAX}",
                self.uri(key)
            ));
        }
        let mut action = self.bucket.put_object(Some(&self.credentials), key);
        let condition = is_new.then_some(("if-none-match", "*"));
        condition.iter().for_each(|(name, value)| action.headers_mut().insert(*name, *value));
        let url = action.sign(SIGNED_FOR).to_string();
        let request = || {
            let put = minreq::put(url.clone()).with_body(bytes);
            condition.iter().fold(put, |put, (name, value)| put.with_header(*name, *value))
        };
        let answer = self.send(request, (length, ANSWER_BYTES_MAX));
        let answer = answer.map_err(|why| format!("{}: {why}", self.uri(key)))?;
        match answer.status {
            // Somebody has written it, or is writing it.
            409 | 412 if is_new => Ok(false),
            _ if answer.is_good() => Ok(true),
            _ => Err(format!("{}: {}", self.uri(key), answer.reason())),
        }
    }

    fn delete(&self, key: &str) -> Result<(), String> {
        let url = self.bucket.delete_object(Some(&self.credentials), key).sign(SIGNED_FOR);
        self.ask((key, url.to_string()), (minreq::delete, ANSWER_BYTES_MAX)).map(drop)
    }

    /// Lists the keys that begin with a prefix.
    fn keys(&self, prefix: &str) -> Result<Vec<String>, String> {
        let (mut keys, mut token) = (Vec::new(), None);
        loop {
            let mut action = self.bucket.list_objects_v2(Some(&self.credentials));
            action.with_prefix(prefix);
            if let Some(token) = token {
                action.with_continuation_token(token);
            }
            let url = action.sign(SIGNED_FOR).to_string();
            let answer = self.ask((prefix, url), (minreq::get, ANSWER_BYTES_MAX))?;
            let page = ListObjectsV2::parse_response(&String::from_utf8_lossy(&answer.body))
                .map_err(|error| format!("{}: {error}", self.uri(prefix)))?;
            keys.extend(page.contents.into_iter().map(|object| object.key));
            token = page.next_continuation_token;
            if token.is_none() {
                return Ok(keys);
            }
        }
    }
}

/// Reads an answer whose body has at most `bytes_max` bytes.
fn receive(answer: ResponseLazy, bytes_max: u64) -> Result<Answer, String> {
    let status = answer.status_code;
    let header = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("content-length");
    let length = answer.headers.iter().find(header).and_then(|(_, length)| length.parse().ok());
    let most = if (200..300).contains(&status) { bytes_max } else { ANSWER_BYTES_MAX };
    let mut body = Vec::new();
    answer.take(most + 1).read_to_end(&mut body).map_err(|error| error.to_string())?;
    match body.len() as u64 > most {
        true => Err(format!("more than {most} bytes, expected at most {most}")),
        false => Ok(Answer { status, length, body }),
    }
}

impl Store for Bucket {
    fn check(&self) -> Result<(), String> {
        let token = thinwire_link::Token::random().map_err(|error| error.to_string())?;
        let key = self.key("", &format!(".probe-{token}"));
        self.put(&key, b".", false)?;
        self.delete(&key)
    }

    fn begin(&self, draft: &str) -> Result<String, String> {
        Ok(format!("{FILES}-{draft}"))
    }

    fn create(&self, folder: &str, file: &str, bytes: &[u8]) -> Result<bool, String> {
        self.put(&self.key(folder, file), bytes, true)
    }

    fn write(&self, folder: &str, file: &str, parts: &[&[u8]]) -> Result<(), String> {
        self.put(&self.key(folder, file), &parts.concat(), false).map(drop)
    }

    fn read(&self, folder: &str, file: &str, bytes_max: u64) -> Result<Vec<u8>, String> {
        let key = self.key(folder, file);
        let url = self.bucket.get_object(Some(&self.credentials), &key).sign(SIGNED_FOR);
        Ok(self.ask((&key, url.to_string()), (minreq::get, bytes_max))?.body)
    }

    fn length(&self, folder: &str, file: &str) -> Result<u64, String> {
        let key = self.key(folder, file);
        let url = self.bucket.head_object(Some(&self.credentials), &key).sign(SIGNED_FOR);
        let answer = self.ask((&key, url.to_string()), (minreq::head, 0))?;
        answer.length.ok_or_else(|| format!("{}: no length", self.path(folder, file)))
    }

    fn remove(&self, folder: &str, file: &str) -> Result<(), String> {
        self.delete(&self.key(folder, file))
    }

    fn publish(&self, draft: &str, manifest: &mut Manifest) -> Result<bool, String> {
        manifest.folder = Some(draft.to_owned());
        let key = self.key(&snapshot_folder(manifest.number), MANIFEST);
        self.put(&key, manifest.to_text().as_bytes(), true)
    }

    fn discard(&self, draft: &str) {
        let keys = self.keys(&self.key(draft, "")).unwrap_or_default();
        // No manifest names what could not be removed.
        keys.iter().for_each(|key| drop(self.delete(key)));
    }

    fn list(&self, start: &str) -> Result<Vec<String>, String> {
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
