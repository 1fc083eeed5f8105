//! Laws of snapshots in a bucket, against a small object store in this process.

use std::sync::Arc;

use thinwire_testkit::objects::ObjectStore;

use super::*;
use crate::snapshot::tests::{definition, frontier, rows_of, tables, write_with};
use crate::snapshot::{Snapshot, Store};

fn open_in(fake: &ObjectStore, place: &str) -> Result<Bucket, Error> {
    open(place, |name| fake.variable(name))
}

fn store(fake: &ObjectStore) -> Arc<dyn Store> {
    Arc::new(open_in(fake, "bucket/run").unwrap())
}

#[test]
fn a_snapshot_is_restored_bit_for_bit_from_a_store_that_fails_now_and_then() {
    let fake = ObjectStore::faltering();
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
    let fake = ObjectStore::faltering();
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
fn of_two_jobs_that_publish_at_once_each_has_its_own_number() {
    let fake = ObjectStore::faltering();
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
    let error = open("bucket/run", |_| None).unwrap_err();
    assert_eq!(error.to_string(), "s3://bucket/run: no credentials");
    let mut fake = ObjectStore::start();
    fake.endpoint = "nowhere".to_owned();
    let error = open_in(&fake, "bucket").unwrap_err().to_string();
    assert!(error.starts_with("s3://bucket: endpoint 'nowhere': "), "{error}");
    assert!(open_in(&fake, "").unwrap_err().to_string().contains("no name of a bucket"));
}
