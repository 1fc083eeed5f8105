//! Checkpoints are exact, and damage is detected.

#[cfg(feature = "s3")]
mod places;

use std::fs;

use std::path::{Path, PathBuf};

use super::files::{MODEL, OPTIMIZER};
use super::*;
use crate::spmd::{Executor, GraphModel};
use crate::testing::{Folder, alone, model, start, step};
use crate::{Config, Corpus, Position, Sampler, Sampling};
use thinwire_checkpoint::{MANIFEST, clean};
use thinwire_wire::{Hint, Rank, World};

fn sampler() -> Sampler {
    let text: Vec<u8> = (0..4000_u32).map(|i| (i * i / 7 % 256) as u8).collect();
    let sampling =
        Sampling { context: 8, global_batch: 4, unit: 1, world: World::alone(), seed: 3 };
    Sampler::new(Corpus::from_text(&text).unwrap(), sampling).unwrap()
}

fn progress(step: u64, updates: u64, position: Position) -> Progress {
    Progress {
        step,
        updates,
        position,
        seed: 3,
        world: 1,
        data: "text".to_owned(),
        config: serde_json::json!({"width": 4, "rate": 0.1}),
        plan: "{\"codec\":\"none\"}".to_owned(),
    }
}

fn save(folder: &Path, executor: &Executor<'_>, sampler: &Sampler) -> PathBuf {
    let draft = Draft::create(folder, executor.next_step()).unwrap();
    write_whole(&draft, &executor.shards(), "a test").unwrap();
    let residual = (vec![2, 1], vec![f32::MIN_POSITIVE / 3.0, -0.0]);
    write_exchange(&draft, Rank(0), &Tensors::from([("residual".to_owned(), residual)])).unwrap();
    let position = sampler.position();
    commit(&draft, progress(executor.next_step(), executor.updates(), position)).unwrap()
}

/// Continuing a training, and training again from a checkpoint, end with the same bits.
#[test]
fn training_goes_on_bit_for_bit() {
    let folder = Folder::new("resume-gpt");
    let config = Config { context: 8, width: 8, layers: 2, heads: 2 };
    let graph = thinwire_model::named(&config.name(), 4, 8).unwrap();
    let model = GraphModel::new(&graph, None).unwrap();
    let (mut sampler, mut executor) = (sampler(), alone(&model, None, 1));
    let train = |executor: &mut Executor<'_>, sampler: &mut Sampler| {
        (0..7).map(|_| step(&model, executor, &sampler.next_batch())).collect::<Vec<f32>>()
    };
    train(&mut executor, &mut sampler);
    let path = save(folder.path(), &executor, &sampler);
    let losses = train(&mut executor, &mut sampler);

    let checkpoint = resolve(folder.path()).unwrap();
    assert_eq!(checkpoint.path(), path);
    let mut resumed = alone(&model, None, 99);
    resumed.restore(&checkpoint).unwrap();
    sampler.seek(checkpoint.progress().position);
    assert_eq!(train(&mut resumed, &mut sampler), losses);

    let bits = |executor: &Executor<'_>| {
        let bits = |values: &Vec<f32>| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        executor.shards().values().map(|(_, values)| bits(values)).collect::<Vec<_>>()
    };
    assert!(bits(&executor) == bits(&resumed) && executor.updates() == resumed.updates());
}

/// Writes a small checkpoint.
fn saved(name: &str) -> (Folder, PathBuf) {
    let folder = Folder::new(name);
    let model = model(2);
    let path = save(folder.path(), &alone(&model, None, 1), &sampler());
    (folder, path)
}

/// Returns the text of the error when everything is loaded, if there is one.
fn complaint(path: &Path) -> Option<String> {
    let load = || {
        let checkpoint = Checkpoint::open(path)?;
        let model = model(2);
        checkpoint.values(model.parameters())?;
        alone(&model, None, 2).restore(&checkpoint)?;
        checkpoint.exchange(Rank(0)).map(|_| ())
    };
    let text = load().err()?.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    Some(text)
}

#[test]
fn everything_comes_back() {
    let (_folder, path) = saved("everything");
    assert_eq!(complaint(&path), None);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.progress(), &progress(0, 0, Position::default()));
    let (shape, values) = &checkpoint.exchange(Rank(0)).unwrap()["residual"];
    assert_eq!(shape, &[2, 1]);
    let expected = [f32::MIN_POSITIVE / 3.0, -0.0].map(f32::to_bits);
    assert_eq!(values.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), expected);
    assert!(checkpoint.exchange(Rank(1)).unwrap_err().to_string().contains("of 1 ranks"));
}

#[test]
fn two_saves_are_equal_byte_by_byte() {
    let ((_one, one), (_other, other)) = (saved("twice-1"), saved("twice-2"));
    for name in [MANIFEST, MODEL, OPTIMIZER, "exchange-0.safetensors"] {
        assert!(fs::read(one.join(name)).unwrap() == fs::read(other.join(name)).unwrap(), "{name}");
    }
    let bytes = fs::read(one.join(MODEL)).unwrap();
    let (length, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert!(length.is_multiple_of(8));
    assert_eq!(metadata.metadata().as_ref().unwrap()["description"], "a test");
}

/// Opening a pipe would wait for a writer.
#[test]
fn what_is_no_regular_file_is_not_opened() {
    for name in [MODEL, "exchange-0.safetensors", MANIFEST] {
        let (_folder, path) = saved("pipe");
        let file = path.join(name);
        fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let text = complaint(&path).expect("a pipe");
        assert!(text.contains(name) && text.contains("no regular file"), "{text}");
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert!(complaint(&path).expect("a device").contains("no regular file"));
    }
}

#[test]
fn damage_is_noticed_in_every_file() {
    let (_folder, path) = saved("damage");
    for name in [MANIFEST, MODEL, OPTIMIZER, "exchange-0.safetensors"] {
        let file = path.join(name);
        let sound = fs::read(&file).unwrap();
        for position in [0, 8, sound.len() / 2, sound.len() - 3] {
            let mut bytes = sound.clone();
            bytes[position] ^= 1;
            fs::write(&file, &bytes).unwrap();
            let text = complaint(&path).expect("a flipped bit");
            assert!(text.contains(name) && text.contains("corrupt"), "{text}");
        }
        for length in [0, 5, sound.len() - 2] {
            fs::write(&file, &sound[..length]).unwrap();
            let text = complaint(&path).expect("a cut file");
            let counted = format!("{length} bytes, expected {}", sound.len());
            assert!(text.contains(name), "{text}");
            assert!(name == MANIFEST || text.contains(&counted), "{text}");
        }
        fs::remove_file(&file).unwrap();
        assert!(complaint(&path).expect("a missing file").contains(name));
        fs::write(&file, &sound).unwrap();
        assert_eq!(complaint(&path), None);
    }
}

#[test]
fn another_model_is_refused() {
    let (_folder, path) = saved("another-model");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let text = checkpoint.values(model(3).parameters()).unwrap_err().to_string();
    assert!(text.ends_with("head.weight has shape [2, 256], expected [3, 256]"), "{text}");
    let other = model(3);
    let mut executor = alone(&other, None, 1);
    assert!(executor.restore(&checkpoint).is_err());
    assert_eq!(executor.next_step(), 0);
}

#[test]
fn the_newest_whole_checkpoint_is_the_latest() {
    let folder = Folder::new("latest");
    assert_eq!(latest(folder.path()).unwrap(), None);
    assert!(resolve(folder.path()).unwrap_err().hint().is_some());
    let model = model(2);
    let shards = alone(&model, None, 1).shards();
    for step in [9, 1_000_000, 100, 100] {
        let draft = Draft::create(folder.path(), step).unwrap();
        write_whole(&draft, &shards, "").unwrap();
        let draft = Draft::open(folder.path(), step, "").unwrap();
        write_exchange(&draft, Rank(0), &Tensors::new()).unwrap();
        commit(&draft, progress(step, 0, Position::default())).unwrap();
    }
    Draft::create(folder.path(), 2_000_000).unwrap();
    fs::create_dir(folder.path().join("step-3000000")).unwrap();
    assert_eq!(resolve(folder.path()).unwrap().progress().step, 1_000_000);
}

#[test]
fn a_checkpoint_lacking_a_ranks_file_is_not_committed() {
    let folder = Folder::new("lacking");
    let (_other, path) = saved("lacking-source");
    let draft = Draft::create(folder.path(), 1).unwrap();
    for name in [MODEL, OPTIMIZER] {
        fs::copy(path.join(name), draft.path(name)).unwrap();
    }
    let error = commit(&draft, progress(1, 0, Position::default())).unwrap_err();
    assert!(error.to_string().contains("exchange-0.safetensors"));
    assert_eq!(latest(folder.path()).unwrap(), None);
}

#[test]
fn only_checkpoints_are_replaced_and_only_drafts_are_cleaned() {
    let (folder, path) = saved("foreign");
    let thesis = path.join("thesis.txt");
    fs::write(&thesis, "mine").unwrap();
    let stale = path.join("shard-7.safetensors");
    fs::write(&stale, "old").unwrap();
    let model = model(2);
    assert_eq!(save(folder.path(), &alone(&model, None, 2), &sampler()), path);
    assert_eq!(fs::read_to_string(&thesis).unwrap(), "mine");
    assert!(!stale.exists());
    assert_eq!(complaint(&path), None);
    let found = Checkpoint::open(&path).unwrap().values(model.parameters()).unwrap();
    assert_eq!(found, start(&model, 2));

    Draft::create(folder.path(), 5).unwrap();
    fs::create_dir(folder.path().join(".step-mine.partial")).unwrap();
    let probe = |token: &str| folder.path().join(format!(".probe-{}", token.repeat(16)));
    let old = fs::File::create_new(probe("0f")).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    fs::write(probe("1f"), ".").unwrap();
    fs::write(folder.path().join(".probe-mine"), ".").unwrap();
    clean(folder.path()).unwrap();
    let mut left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    let new = probe("1f").file_name().unwrap().to_owned();
    let names = [".probe-mine", ".step-mine.partial", "step-000000"].map(Into::into);
    assert_eq!(left, [vec![new], names.to_vec()].concat());
}

#[test]
fn nothing_is_written_through_a_planted_link() {
    let folder = Folder::new("planted");
    let victim = folder.path().join("victim");
    fs::write(&victim, "kept").unwrap();
    let draft = Draft::create(folder.path(), 1).unwrap();
    std::os::unix::fs::symlink(&victim, draft.path("exchange-1.safetensors")).unwrap();
    assert!(write_exchange(&draft, Rank(1), &Tensors::new()).is_err());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
}
