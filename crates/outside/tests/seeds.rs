//! Laws of the fuzz targets for all seeds, and the files that every target needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use thinwire_outside::TARGETS;

/// Bytes of the largest seed, so that corpora stay small.
const SEED_BYTES_MAX: u64 = 16 << 10;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_seed_keeps_the_law_of_its_target() {
    for target in TARGETS {
        let folder = fuzz().join("seeds").join(target.name);
        for name in names(&folder) {
            let path = folder.join(&name);
            assert!(path.metadata().unwrap().len() <= SEED_BYTES_MAX, "{}", path.display());
            println!("{} {name}", target.name);
            (target.run)(&fs::read(&path).unwrap());
        }
    }
}

#[test]
fn every_target_is_built_and_described_and_has_seeds() {
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let readme = fs::read_to_string(fuzz().join("README.md")).unwrap();
    let known: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    let binaries = manifest.split("[[bin]]\nname = \"").skip(1);
    let binaries = binaries.map(|rest| rest.split('"').next().unwrap().to_owned());
    assert_eq!(binaries.collect::<BTreeSet<_>>(), known, "fuzz/Cargo.toml");
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(rows.map(str::to_owned).collect::<BTreeSet<_>>(), known, "fuzz/README.md");
    let files: BTreeSet<String> = known.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names(&fuzz().join("fuzz_targets")), files);
    assert_eq!(names(&fuzz().join("seeds")), known);
    for name in &known {
        assert!(!names(&fuzz().join("seeds").join(name)).is_empty(), "{name} has no seed");
    }
}

#[test]
fn any_change_of_an_onnx_seed_keeps_its_law() {
    let run = TARGETS.iter().find(|target| target.name == "onnx").unwrap().run;
    let folder = fuzz().join("seeds/onnx");
    for name in names(&folder) {
        let seed = fs::read(folder.join(name)).unwrap();
        for change in 0..200_u64 {
            let choice = change.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            run(&thinwire_outside::protobuf::mutate(&seed, choice));
        }
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_keep_the_law_of_headers(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..48)) {
        thinwire_outside::header(&bytes);
    }

    #[test]
    fn any_talk_of_clients_keeps_the_law_of_services(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)
    ) {
        thinwire_outside::service(&bytes);
    }
}
