//! Laws of snapshots in a bucket, against a small object store in this process.

use std::sync::Arc;

use thinwire_member::Id;
use thinwire_testkit::objects::{Fault, ObjectStore};

use super::*;
use crate::snapshot::draft::Draft;
use crate::snapshot::tests::{definition, frontier, rows_of, tables, write_with};
use crate::snapshot::{Snapshot, Store};

fn open_in(fake: &ObjectStore, place: &str) -> Result<Bucket, Error> {
    open(place, |name| fake.variable(name), Duration::from_secs(90))
}

fn store(fake: &ObjectStore) -> Arc<dyn Store> {
    Arc::new(open_in(fake, "bucket/run").unwrap())
}

#[test]
fn a_snapshot_is_restored_bit_for_bit_from_a_store_that_fails_now_and_then() {
    let fake = ObjectStore::faltering(Fault::Away);
    let touched = [(0, 4), (0, 2), (1, 3), (1, 16)];
    let (one, other) = (definition(3), definition(2));
    let (layout, other_layout) = (one.layout().unwrap(), other.layout().unwrap());
    let names = [1, 2].map(|number| write_with(store(&fake), (number, 9), &one, &touched));
    assert_eq!(names, ["snapshot-000001", "snapshot-000002"]);
    let expected = rows_of(&tables(&layout, &touched), &layout);
    for folder in names.iter().map(String::as_str).chain([""]) {
        let snapshot = Snapshot::of(store(&fake), folder.to_owned()).unwrap();
        let found = snapshot.tables(&other_layout, &[0, 1]).unwrap();
        assert_eq!(rows_of(&found, &other_layout), expected);
        assert_eq!(snapshot.frontier(), &frontier());
    }
    let newest = Snapshot::of(store(&fake), String::new()).unwrap();
    assert_eq!(newest.path(), "s3://bucket/run/snapshot-000002");
    assert!(fake.keys().iter().all(|key| !key.ends_with(".json") || key.ends_with(MANIFEST)));
}

#[test]
fn a_discarded_draft_and_a_check_leave_nothing_behind() {
    let fake = ObjectStore::faltering(Fault::Away);
    let store = store(&fake);
    store.check().unwrap();
    let draft = store.begin("9-1").unwrap();
    ["a", "b", "c"].iter().for_each(|file| store.write(&draft, file, &[b"rows", b"."]).unwrap());
    assert_eq!(store.length(&draft, "b"), Ok(5));
    assert_eq!(store.read(&draft, "c", 5).unwrap(), b"rows.");
    assert_eq!(store.create(&draft, "d", b"new"), Ok(true));
    assert_eq!(store.create(&draft, "d", b"newer"), Ok(false));
    assert_eq!(
        store.list("files-9").unwrap(),
        ["a", "b", "c", "d"].map(|it| format!("{draft}/{it}"))
    );
    assert!(store.read(&draft, "c", 4).unwrap_err().contains("at most 4"));
    store.discard(&draft);
    assert!(fake.keys().is_empty());
    let error = store.read("snapshot-000001", MANIFEST, 9).unwrap_err();
    let path = "s3://bucket/run/snapshot-000001/manifest.json";
    assert_eq!(error, format!("{path}: 404 NoSuchKey: It is not there."));
}

#[test]
fn a_snapshot_whose_manifest_was_written_without_an_answer_is_one_and_is_not_discarded() {
    let fake = ObjectStore::start();
    fake.set_fault(Fault::Denied(MANIFEST));
    let (one, touched) = (definition(2), [(0, 4), (1, 3)]);
    assert_eq!(write_with(store(&fake), (1, 9), &one, &touched), "snapshot-000001");
    let before = fake.keys();
    assert_eq!(before.iter().filter(|key| key.ends_with(MANIFEST)).count(), 1, "{before:?}");
    let layout = Arc::new(one.layout().unwrap());
    // Of another server, which took part and was told that the snapshot has failed.
    Draft::create(store(&fake), (1, Id(9)), (one, layout)).unwrap().discard();
    assert_eq!(fake.keys(), before);
}

#[test]
fn of_two_jobs_that_publish_at_once_each_has_its_own_number() {
    let fake = ObjectStore::faltering(Fault::Away);
    let threads: Vec<_> = (1..=4)
        .map(|asker| {
            let store = store(&fake);
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
    let error = open("bucket/run", |_| None, SILENCE).unwrap_err();
    assert_eq!(error.to_string(), "s3://bucket/run: no credentials");
    let mut fake = ObjectStore::start();
    fake.endpoint = "nowhere".to_owned();
    let error = open_in(&fake, "bucket").unwrap_err().to_string();
    assert!(error.starts_with("s3://bucket: endpoint 'nowhere': "), "{error}");
    assert!(open_in(&fake, "").unwrap_err().to_string().contains("no name of a bucket"));
}

#[test]
fn an_answer_that_is_cut_short_is_asked_for_again() {
    let fake = ObjectStore::faltering(Fault::Cut);
    let store = store(&fake);
    let names = ["a", "b"];
    for name in names {
        store.write("9", name, &[&[7; 1000]]).unwrap();
    }
    assert_eq!(store.read("9", "a", 1000).unwrap(), [7; 1000]);
    assert_eq!(store.find("9", "b", 1000).unwrap().unwrap(), [7; 1000]);
    assert_eq!(store.list("9").unwrap(), names.map(|name| format!("9/{name}")));
    assert_eq!(store.find("9", "c", 1000), Ok(None));
    let error = open_in(&fake, "bucket/run").unwrap().find("9", "a", 10).unwrap_err();
    assert!(error.ends_with("more than 10 bytes, expected at most 10"), "{error}");
}

#[test]
fn a_store_that_is_silent_or_refuses_fails_a_request_within_its_patience() {
    let fake = ObjectStore::start();
    let patience = Duration::from_secs(3);
    let store = open("bucket/run", |name| fake.variable(name), patience).unwrap();
    for (fault, why) in [(Fault::Silent, "no answer within 3 s"), (Fault::Away, "answers 503")] {
        fake.set_fault(fault);
        let begun = Instant::now();
        let error = store.find("", MANIFEST, 1 << 28).unwrap_err();
        assert!(error.ends_with(why), "{error}");
        assert!(begun.elapsed() < 10 * patience);
    }
    fake.set_fault(Fault::None);
    assert_eq!(store.find("", MANIFEST, 1 << 28), Ok(None));
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
