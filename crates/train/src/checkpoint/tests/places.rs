//! Laws that hold both in a folder and in a bucket of an object store.

use std::sync::Arc;

use thinwire_checkpoint::{Error, Location, PATIENCE, Sealed, Series, Store, clean_store, newest};
use thinwire_testkit::objects::{Fault, ObjectStore};

use super::*;

enum Place {
    Folder(Folder),
    Bucket(ObjectStore),
}

impl Place {
    fn all(name: &str) -> [Place; 2] {
        [Place::Folder(Folder::new(name)), Place::Bucket(ObjectStore::start())]
    }

    /// Returns the store of the place, or of a checkpoint in it.
    fn store(&self, name: &str) -> Arc<dyn Store> {
        let Place::Bucket(store) = self else {
            return Location::from(self.path(name)).store().unwrap();
        };
        Location::from(self.path(name)).store_with(|name| store.variable(name), PATIENCE).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        match self {
            Place::Folder(folder) => folder.path().join(name),
            Place::Bucket(_) => Path::new("s3://bucket/run").join(name),
        }
    }

    fn draft(&self, step: u64) -> Draft {
        Draft::create_in(self.store(""), step).unwrap()
    }

    fn save(&self, step: u64, seed: u64) -> PathBuf {
        let model = model(2);
        let draft = self.draft(step);
        write_whole(&draft, &alone(&model, None, seed).shards(), "").unwrap();
        write_exchange(&draft, Rank(0), &Tensors::new()).unwrap();
        commit(&draft, progress(step, 0, Position::default())).unwrap()
    }

    fn open(&self, step: u64) -> Result<Checkpoint, Error> {
        Ok(Sealed::open(self.store(&Series::Steps.name(step)), "")?.into())
    }

    fn values(&self, step: u64) -> Result<Vec<Vec<f32>>, Error> {
        self.open(step)?.values(model(2).parameters())
    }

    fn newest(&self) -> Option<String> {
        let number = newest(&*self.store(""), Series::Steps).unwrap();
        number.map(|number| Series::Steps.name(number))
    }

    fn clean(&self) {
        clean_store(&*self.store("")).unwrap();
    }

    /// Changes the bytes of a file of a checkpoint.
    fn change(&self, step: u64, name: &str, change: impl Fn(&mut Vec<u8>)) {
        match self {
            Place::Folder(_) => {
                let path = self.path(&Series::Steps.name(step)).join(name);
                let mut bytes = fs::read(&path).unwrap();
                change(&mut bytes);
                fs::write(&path, bytes).unwrap();
            }
            Place::Bucket(store) => {
                let start = format!("run/{}/", Series::Steps.name(step));
                let mut objects = store.objects();
                let mut found = objects
                    .iter_mut()
                    .filter(|it| it.0.starts_with(&start) && it.0.ends_with(name));
                change(found.next().unwrap().1);
            }
        }
    }
}

#[test]
fn a_checkpoint_is_there_whole_or_not_at_all_and_may_be_replaced() {
    let model = model(2);
    for place in Place::all("places-whole") {
        assert_eq!(place.newest(), None);
        let draft = place.draft(7);
        write_whole(&draft, &alone(&model, None, 1).shards(), "").unwrap();
        let error = commit(&draft, progress(7, 0, Position::default())).unwrap_err().to_string();
        assert!(error.contains("exchange-0.safetensors") && error.lines().count() == 1, "{error}");
        assert_eq!(place.newest(), None);
        draft.discard();
        for seed in [1, 2] {
            let path = place.save(7, seed);
            assert_eq!(path, place.path("step-000007"));
            assert_eq!(place.open(7).unwrap().progress().step, 7);
            assert_eq!(place.values(7).unwrap(), start(&model, seed));
        }
        place.save(1_000_000, 3);
        assert_eq!(place.newest().as_deref(), Some("step-1000000"));
        assert_eq!(place.values(7).unwrap(), start(&model, 2));
        if let Place::Bucket(store) = &place {
            assert_eq!(store.keys().len(), 8, "what was replaced is gone: {:?}", store.keys());
        }
    }
}

#[test]
fn what_was_begun_is_removed_and_what_is_whole_stays() {
    let model = model(2);
    for place in Place::all("places-clean") {
        place.save(3, 1);
        for step in [3, 4] {
            write_whole(&place.draft(step), &alone(&model, None, 2).shards(), "").unwrap();
        }
        assert_eq!(place.newest().as_deref(), Some("step-000003"));
        place.clean();
        assert_eq!(place.values(3).unwrap(), start(&model, 1));
        match &place {
            Place::Folder(folder) => assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1),
            Place::Bucket(store) => assert_eq!(store.keys().len(), 4, "{:?}", store.keys()),
        }
    }
}

#[test]
fn damage_is_named_wherever_it_is() {
    for place in Place::all("places-damage") {
        for (step, name) in [(1, MANIFEST), (2, MODEL)] {
            place.save(step, 1);
            place.change(step, name, |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            });
            let error = place.values(step).unwrap_err().to_string();
            assert!(error.starts_with("corrupt checkpoint: ") && error.contains(name), "{error}");
        }
        place.change(2, MODEL, |bytes| bytes.extend([0; 4]));
        let error = place.values(2).unwrap_err().to_string();
        assert!(error.contains("expected at most") && error.contains(MODEL), "{error}");
        let error = place.values(9).unwrap_err().to_string();
        let expected = format!("no checkpoint at {}: ", place.path("step-000009").display());
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn files_that_a_manifest_may_name_are_not_removed() {
    let (model, place) = (model(2), Place::Bucket(ObjectStore::start()));
    let Place::Bucket(store) = &place else { unreachable!() };
    store.set_fault(Fault::Denied(MANIFEST));
    for seed in [1, 2] {
        let draft = place.draft(7);
        write_whole(&draft, &alone(&model, None, seed).shards(), "").unwrap();
        write_exchange(&draft, Rank(0), &Tensors::new()).unwrap();
        let error = commit(&draft, progress(7, 0, Position::default())).unwrap_err().to_string();
        assert!(error.ends_with("answers 503"), "{error}");
        draft.discard();
        assert_eq!(place.newest().as_deref(), Some("step-000007"));
        assert_eq!(place.values(7).unwrap(), start(&model, seed));
    }
    place.clean();
    assert_eq!(place.values(7).unwrap(), start(&model, 2));
    assert_eq!(store.keys().len(), 4, "{:?}", store.keys());
}
