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

/// The file of a graph whose header has these numbers, at bytes 16 and 24 to 64.
fn graph_file(edges: u8, words: [u8; 10], format: usize) -> Vec<u8> {
    let [version, vertices, flags, columns, width, classes, parts, types, texts, is_fitting] =
        words;
    let mut bytes = vec![0; 128];
    bytes[..8].copy_from_slice(b"twgraph\n");
    let name = ["f32", "f16", "int8", "f64"][format];
    bytes[40..40 + name.len()].copy_from_slice(name.as_bytes());
    let fitting = [4 * columns, 2 * columns, 4 + columns, 8 * columns][format];
    let width = if is_fitting % 2 == 0 { fitting } else { width };
    let places = [8, 16, 24, 28, 32, 36, 48, 52, 56, 64];
    let numbers = [version, edges, vertices, flags, columns, width, classes, parts, types, texts];
    places.into_iter().zip(numbers).for_each(|(at, number)| bytes[at] = number);
    // Offsets that end with the number of edges: whoever decodes their header reads the others' arrays.
    bytes.resize(128 + 8 * usize::from(vertices), 0);
    bytes.extend(u64::from(edges).to_le_bytes());
    bytes
}

proptest::proptest! {
    #[test]
    fn any_header_of_a_graph_keeps_the_law_of_its_file(
        edges in 0_u8..5, vertices in 0_u8..9, flags in proptest::num::u8::ANY, format in 0_usize..4,
        version in 1_u8..3, sizes in proptest::collection::vec(0_u8..32, 7),
    ) {
        let [columns, width, classes, parts, types, texts, is_fitting] = sizes[..] else { unreachable!() };
        // A number of an array that a file does not have is refused at once; half of all flags are of features.
        let has = |flag: u8, number: u8| if flags & flag != 0 { number } else { 0 };
        let numbers = [
            version, vertices, flags, has(1, columns), has(1, width), has(2, classes), has(8, parts),
            has(32, types), texts % 2 * has(128, texts), is_fitting,
        ];
        let mut bytes = graph_file(edges, numbers, format);
        if flags & 1 == 0 {
            bytes[36..48].fill(0);
        }
        thinwire_outside::topology(&bytes);
    }

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
