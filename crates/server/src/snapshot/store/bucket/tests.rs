//! Laws of snapshots in a bucket, against a small object store in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;
use crate::snapshot::tests::{definition, frontier, rows_of, tables, write_with};
use crate::snapshot::{Snapshot, Store};

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Object store that fails the first request of each method for each object.
struct Fake {
    endpoint: String,
    objects: Objects,
}

impl Fake {
    fn start() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let objects = Objects::default();
        let held = Arc::clone(&objects);
        thread::spawn(move || {
            let mut failed = BTreeSet::new();
            for stream in listener.incoming() {
                let answered = serve(stream.unwrap(), &held, &mut failed);
                answered.expect("a client waits for its answer");
            }
        });
        Fake { endpoint, objects }
    }

    fn open(&self, place: &str) -> Result<Bucket, Error> {
        open(place, |name| match name {
            "AWS_ENDPOINT_URL" => Some(self.endpoint.clone()),
            "AWS_ACCESS_KEY_ID" => Some("key".to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some("secret".to_owned()),
            _ => None,
        })
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.open("bucket/run").unwrap())
    }

    fn keys(&self) -> Vec<String> {
        self.objects.lock().unwrap().keys().cloned().collect()
    }
}

/// Answers one request.
fn serve(
    stream: TcpStream,
    objects: &Objects,
    failed: &mut BTreeSet<(String, String)>,
) -> std::io::Result<()> {
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
        length = line.strip_prefix("content-length: ").map_or(length, |it| it.parse().unwrap());
        is_new |= line == "if-none-match: *";
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap();
    assert!(query.contains("X-Amz-Signature="), "every request is signed: {target}");
    let key = path.trim_start_matches("/bucket").trim_start_matches('/').to_owned();
    let mut objects = objects.lock().unwrap();
    let fails = failed.insert((method.to_owned(), key.clone()));
    let (status, body) = match (method, fails) {
        (_, true) => ("503 Slow Down", Vec::new()),
        ("PUT", _) if is_new && objects.contains_key(&key) => {
            ("412 Precondition Failed", Vec::new())
        }
        ("PUT", _) => {
            objects.insert(key, body);
            ("200 OK", Vec::new())
        }
        ("DELETE", _) => {
            objects.remove(&key);
            ("204 No Content", Vec::new())
        }
        _ if key.is_empty() => ("200 OK", list(&objects, query)),
        _ => match objects.get(&key) {
            Some(found) => ("200 OK", found.clone()),
            None => {
                let text =
                    "<Error><Code>NoSuchKey</Code><Message>It is not there.</Message></Error>";
                ("404 Not Found", text.as_bytes().to_vec())
            }
        },
    };
    let mut stream = stream;
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    if method == "HEAD" { Ok(()) } else { stream.write_all(&body) }
}

/// Returns a list of one key at a time, so that every longer list has pages.
fn list(objects: &BTreeMap<String, Vec<u8>>, query: &str) -> Vec<u8> {
    let field = |name: &str| {
        let value = query.split('&').find_map(|field| field.strip_prefix(name))?;
        Some(value.replace("%2F", "/"))
    };
    let (prefix, after) = (field("prefix=").unwrap(), field("continuation-token="));
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

#[test]
fn a_snapshot_is_restored_bit_for_bit_from_a_store_that_fails_now_and_then() {
    let fake = Fake::start();
    let touched = [(0, 4), (0, 2), (1, 3), (1, 16)];
    let (one, other) = (definition(3), definition(2));
    let (layout, other_layout) = (one.layout().unwrap(), other.layout().unwrap());
    let names = [1, 2].map(|number| write_with(fake.store(), (number, 9), &one, &touched));
    assert_eq!(names, ["snapshot-000001", "snapshot-000002"]);
    let expected = rows_of(&tables(&layout, &touched), &layout);
    for folder in names.iter().map(String::as_str).chain([""]) {
        let snapshot = Snapshot::of(fake.store(), folder.to_owned()).unwrap();
        let found = snapshot.tables(&other_layout, &[0, 1]).unwrap();
        assert_eq!(rows_of(&found, &other_layout), expected);
        assert_eq!(snapshot.frontier(), &frontier());
    }
    let newest = Snapshot::of(fake.store(), String::new()).unwrap();
    assert_eq!(newest.path(), "s3://bucket/run/snapshot-000002");
    assert!(fake.keys().iter().all(|key| !key.ends_with(".json") || key.ends_with(MANIFEST)));
}

#[test]
fn a_discarded_draft_and_a_check_leave_nothing_behind() {
    let fake = Fake::start();
    let store = fake.store();
    store.check().unwrap();
    let draft = store.begin("9-1").unwrap();
    ["a", "b", "c"].iter().for_each(|file| store.write(&draft, file, &[b"rows", b"."]).unwrap());
    assert_eq!(store.length(&draft, "b"), Ok(5));
    assert_eq!(store.read(&draft, "c", 5).unwrap(), b"rows.");
    assert!(store.read(&draft, "c", 4).unwrap_err().contains("at most 4"));
    store.discard(&draft);
    assert!(fake.keys().is_empty());
    let error = store.read("snapshot-000001", MANIFEST, 9).unwrap_err();
    let path = "s3://bucket/run/snapshot-000001/manifest.json";
    assert_eq!(error, format!("{path}: 404 NoSuchKey: It is not there."));
}

#[test]
fn of_two_jobs_that_publish_at_once_each_has_its_own_number() {
    let fake = Fake::start();
    let threads: Vec<_> = (1..=4)
        .map(|asker| {
            let store = fake.store();
            thread::spawn(move || write_with(store, (1, asker), &definition(1), &[]))
        })
        .collect();
    let mut names: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4);
}

#[test]
fn settings_that_are_missing_are_named() {
    let error = open("bucket/run", |_| None).unwrap_err();
    assert_eq!(error.to_string(), "s3://bucket/run: no credentials");
    let fake = Fake { endpoint: "nowhere".to_owned(), objects: Objects::default() };
    let error = fake.open("bucket").unwrap_err().to_string();
    assert!(error.starts_with("s3://bucket: endpoint 'nowhere': "), "{error}");
    assert!(fake.open("").unwrap_err().to_string().contains("no name of a bucket"));
}
