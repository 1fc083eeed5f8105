//! Laws of the folder of checkpoints.

use std::collections::BTreeMap;

use super::*;
use crate::manifest::Manifest;
use crate::testing::{Note, policy};

#[test]
fn a_folder_that_was_moved_is_not_written_to() {
    let root = std::env::temp_dir().join(format!("thinwire-lock-{}", std::process::id()));
    let policy = policy(&root.join("kept"));
    fs::create_dir_all(&policy.folder).unwrap();
    let hold = || FolderLock::hold(Some(&policy), 0, None);
    let first = hold().unwrap();
    assert!(first.check().is_ok() && hold().is_err());
    fs::rename(&policy.folder, root.join("moved")).unwrap();
    assert!(first.check().unwrap_err().to_string().contains("was moved or removed"));
    fs::create_dir(&policy.folder).unwrap();
    let second = hold().unwrap();
    let draft = Draft::create(&policy.folder, 7).unwrap();
    let said = || first.check().unwrap_err().to_string();
    assert!(said().starts_with("another training writes its checkpoints to "));
    let open = || Draft::open(&policy.folder, 7, "").unwrap();
    assert!(first.discard(draft).is_err());
    assert_eq!(fs::read_dir(&policy.folder).unwrap().count(), 1);
    second.discard(open()).unwrap();
    assert_eq!(fs::read_dir(&policy.folder).unwrap().count(), 0);
    drop(second);
    let checkpoint = policy.folder.join("step-000007");
    fs::create_dir(&checkpoint).unwrap();
    fs::write(checkpoint.join("manifest.json"), "").unwrap();
    assert!(said().contains("is another folder"));
}

#[test]
fn a_folder_that_was_made_anew_is_taken_with_its_lock_and_mark() {
    let root = std::env::temp_dir().join(format!("thinwire-anew-{}", std::process::id()));
    let policy = policy(&root.join("kept"));
    fs::create_dir_all(&policy.folder).unwrap();
    let of_folder = mark(&policy.folder).unwrap();
    let lock = FolderLock::hold(Some(&policy), 0, None).unwrap().of_mark(Some(&of_folder));
    let lock = lock.of_epoch("job", 3);
    for _ in 0..2 {
        fs::remove_dir_all(&policy.folder).unwrap();
        fs::create_dir(&policy.folder).unwrap();
        lock.check().unwrap();
        assert_eq!(mark(&policy.folder).unwrap(), of_folder);
        assert!(FolderLock::hold(Some(&policy), 0, None).is_err());
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_folder_that_comes_back_with_its_checkpoints_is_taken_again() {
    let root = std::env::temp_dir().join(format!("thinwire-back-{}", std::process::id()));
    let policy = policy(&root.join("kept"));
    fs::create_dir_all(&policy.folder).unwrap();
    let lock = FolderLock::hold(Some(&policy), 0, None).unwrap();
    let save = |step| {
        let draft = Draft::create(&policy.folder, step).unwrap();
        draft.publish(step, Manifest::new(Note { step }, BTreeMap::new())).unwrap().unwrap()
    };
    lock.remember(&save(1));
    fs::rename(&policy.folder, root.join("away")).unwrap();
    assert!(lock.check().unwrap_err().kind() == Kind::Away);
    fs::create_dir(&policy.folder).unwrap();
    lock.check().unwrap();
    lock.remember(&save(2));
    fs::rename(&policy.folder, root.join("of-the-root")).unwrap();
    fs::rename(root.join("away"), &policy.folder).unwrap();
    lock.check().unwrap();
    save(3);
    fs::rename(&policy.folder, root.join("away")).unwrap();
    fs::create_dir(&policy.folder).unwrap();
    lock.check().unwrap();
    fs::remove_dir(&policy.folder).unwrap();
    fs::rename(root.join("away"), &policy.folder).unwrap();
    let error = lock.check().unwrap_err();
    assert!(
        error.to_string().contains("is another folder") && error.kind() != Kind::Away,
        "{error}"
    );
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_stopped_rank_of_an_earlier_epoch_keeps_the_lock_and_writes_no_more() {
    let root = std::env::temp_dir().join(format!("thinwire-epochs-{}", std::process::id()));
    let policy = policy(&root.clone());
    fs::create_dir_all(&root).unwrap();
    let stopped = FolderLock::hold(Some(&policy), 0, None).unwrap().of_epoch("job", 1);
    stopped.check().unwrap();
    let next = FolderLock::hold_again(Some(&policy), 0).of_epoch("job", 2);
    next.check().unwrap();
    assert!(stopped.check().unwrap_err().to_string().contains("a later epoch of this job"));
    let draft = Draft::create(&root, 7).unwrap();
    let drafts = || fs::read_dir(&root).unwrap().flatten().filter(|it| it.path().is_dir());
    assert!(stopped.discard(draft).is_err());
    assert_eq!(drafts().count(), 1);
    next.discard(Draft::open(&root, 7, "").unwrap()).unwrap();
    assert_eq!(drafts().count(), 0);
    let marked = |mark| FolderLock::hold_again(Some(&policy), 0).of_mark(mark);
    let mark = mark(&root).unwrap();
    marked(Some(&mark)).check().unwrap();
    let said = marked(Some("of another folder")).check().unwrap_err().to_string();
    assert!(said.contains("another training writes"), "{said}");
    // Another job does not write as long as one of this job has the lock.
    let other = FolderLock::hold_again(Some(&policy), 0).of_epoch("other", 9);
    assert!(other.check().unwrap_err().to_string().starts_with("another training writes"));
    assert!(FolderLock::hold_alone(&policy, Duration::ZERO).is_err());
    drop((stopped, next));
    other.check().unwrap();
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_folder_has_one_mark_and_another_folder_another() {
    let root = std::env::temp_dir().join(format!("thinwire-mark-{}", std::process::id()));
    let folders = ["one", "other"].map(|name| root.join(name));
    folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
    let marks = folders.each_ref().map(|folder| mark(folder).unwrap());
    assert_eq!(mark(&folders[0]).unwrap(), marks[0]);
    assert_ne!(marks[0], marks[1]);
    fs::remove_dir_all(&root).unwrap();
}
