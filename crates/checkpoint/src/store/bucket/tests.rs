//! Laws of a bucket, against a small object store in this process.

use thinwire_testkit::objects::{Fault, ObjectStore};

use super::*;

fn open_in(fake: &ObjectStore, place: &str) -> Result<Bucket, Error> {
    open(place, |name| fake.variable(name), Duration::from_secs(90))
}

#[test]
fn a_discarded_draft_and_a_check_leave_nothing_behind() {
    let fake = ObjectStore::faltering(Fault::Away);
    let store = open_in(&fake, "bucket/run").unwrap();
    store.check().unwrap();
    let draft = "files-9-1".to_owned();
    ["a", "b", "c"].iter().for_each(|file| store.write(&draft, file, &[b"rows", b"."]).unwrap());
    assert_eq!(store.length(&draft, "b").unwrap(), Some(5));
    assert_eq!(store.length(&draft, "none").unwrap(), None);
    assert_eq!(store.read(&draft, "c", 5).unwrap(), b"rows.");
    assert!(store.create(&draft, "d", b"new").unwrap());
    assert!(!store.create(&draft, "d", b"newer").unwrap());
    assert_eq!(
        store.list("files-9").unwrap(),
        ["a", "b", "c", "d"].map(|it| format!("{draft}/{it}"))
    );
    assert!(store.read(&draft, "c", 4).unwrap_err().to_string().contains("at most 4"));
    store.discard(&draft);
    assert!(fake.keys().is_empty());
    let error = store.read("snapshot-000001", MANIFEST, 9).unwrap_err().to_string();
    let path = "s3://bucket/run/snapshot-000001/manifest.json";
    assert_eq!(error, format!("{path}: 404 NoSuchKey: It is not there."));
}

#[test]
fn settings_that_are_missing_are_named() {
    let error = open("bucket/run", |_| None, SILENCE).unwrap_err();
    assert_eq!(error.to_string(), "s3://bucket/run: no credentials");
    let mut fake = ObjectStore::start();
    fake.endpoint = "nowhere".to_owned();
    let error = open_in(&fake, "bucket").unwrap_err().to_string();
    assert!(error.starts_with("s3://bucket: endpoint 'nowhere': "), "{error}");
    assert!(
        open_in(&fake, "").unwrap_err().to_string().contains("the name of the bucket is missing")
    );
}

#[test]
fn an_answer_that_is_cut_short_is_asked_for_again() {
    let fake = ObjectStore::faltering(Fault::Cut);
    let store = open_in(&fake, "bucket/run").unwrap();
    let names = ["a", "b"];
    for name in names {
        store.write("9", name, &[&[7; 1000]]).unwrap();
    }
    assert_eq!(store.read("9", "a", 1000).unwrap(), [7; 1000]);
    assert_eq!(store.find("9", "b", 1000).unwrap().unwrap(), [7; 1000]);
    assert_eq!(store.list("9").unwrap(), names.map(|name| format!("9/{name}")));
    assert_eq!(store.find("9", "c", 1000).unwrap(), None);
    let error = open_in(&fake, "bucket/run").unwrap().find("9", "a", 10).unwrap_err().to_string();
    assert!(error.ends_with("the answer is too long, expected at most 10 bytes"), "{error}");
}

#[test]
fn a_store_that_is_silent_or_refuses_fails_a_request_within_its_patience() {
    let fake = ObjectStore::start();
    let patience = Duration::from_secs(3);
    let store = open("bucket/run", |name| fake.variable(name), patience).unwrap();
    for (fault, why) in [(Fault::Silent, "no answer within 3 s"), (Fault::Away, "answers 503")] {
        fake.set_fault(fault);
        let begun = Instant::now();
        let error = store.find("", MANIFEST, 1 << 28).unwrap_err().to_string();
        assert!(error.ends_with(why), "{error}");
        assert!(begun.elapsed() < 10 * patience);
        // Whoever asks whether a file is there must not take it for missing.
        assert!(store.length("", MANIFEST).unwrap_err().to_string().ends_with(why));
    }
    fake.set_fault(Fault::None);
    assert_eq!(store.find("", MANIFEST, 1 << 28).unwrap(), None);
}

#[test]
fn nothing_is_removed_from_a_store_that_has_just_been_silent() {
    let fake = ObjectStore::start();
    let patience = Duration::from_secs(1);
    let store = open("bucket/run", |name| fake.variable(name), patience).unwrap();
    store.write("9", "a", &[&[7]]).unwrap();
    fake.set_fault(Fault::Silent);
    store.write("9", "b", &[&[7]]).unwrap_err();
    fake.set_fault(Fault::None);
    store.discard("9");
    assert_eq!(store.list("9").unwrap(), ["9/a"]);
    store.discard("9");
    assert!(store.list("9").unwrap().is_empty());
}

#[test]
fn a_refusal_is_quoted_in_one_line_of_bounded_length() {
    let (status, length) = (403, None);
    let refusal = |message: &str| {
        let body = format!("<Error><Code>Denied</Code><Message>{message}</Message></Error>");
        Answer { status, length, body: body.into_bytes() }.reason()
    };
    assert_eq!(refusal("not\n  for\tyou"), "403 Denied: not for you");
    assert!(refusal(&"long ".repeat(10_000)).len() < 300);
}
