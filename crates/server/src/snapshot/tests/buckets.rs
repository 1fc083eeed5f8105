//! Laws of snapshots in a bucket, against a small object store in this process.

use std::path::Path;
use std::thread;
use std::time::Duration;

use thinwire_checkpoint::{MANIFEST, Sealed, Series};
use thinwire_testkit::objects::{Fault, ObjectStore};

use super::*;

fn store(fake: &ObjectStore) -> Arc<dyn Store> {
    let location = Location::from(Path::new("s3://bucket/run"));
    location.store_with(|name| fake.variable(name), Duration::from_secs(90)).unwrap()
}

fn open(fake: &ObjectStore, folder: &str) -> Snapshot {
    Snapshot::of(Sealed::open(store(fake), folder).unwrap()).unwrap()
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
    for folder in names.iter() {
        let snapshot = open(&fake, folder);
        let found = snapshot.tables(&other_layout, &[0, 1]).unwrap();
        assert_eq!(rows_of(&found, &other_layout), expected);
        assert_eq!(snapshot.frontier(), &frontier());
    }
    assert_eq!(thinwire_checkpoint::newest(&*store(&fake), Series::Snapshots).unwrap(), Some(2));
    assert!(fake.keys().iter().all(|key| !key.ends_with(".json") || key.ends_with(MANIFEST)));
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
    Draft::create(store(&fake), 1, Id(9), one, layout).unwrap().discard();
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
