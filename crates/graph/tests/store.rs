//! Laws of files of graphs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thinwire_graph::{
    Adjacency, Contents, Features, Id, Ids, Kind, NO_LABEL, Split, Store, Weights, write,
};
use thinwire_wire::Hint;

/// File that is removed when the test ends.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        let name = format!("thinwire-graph-{}-{name}", std::process::id());
        Temporary(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const SPLIT: [Split; 3] = [Split::Train, Split::None, Split::Test];

fn row(vertex: u32, row: &mut [u8]) {
    row.copy_from_slice(&[vertex as u8, 1, 2, 3, 4]);
}

fn write_full(path: &Path) -> Adjacency {
    let graph = Adjacency::from_edges(3, &[(0, 2), (1, 2), (2, 0)]).unwrap();
    let weights = Weights::new(vec![0.5, 0.0, 2.0]).unwrap();
    let ids = Ids::Texts(["é", "", "new york"].map(str::to_owned).to_vec());
    let contents = Contents {
        graph: &graph,
        weights: Some(&weights),
        types: Some(&[1, 0, 1]),
        features: Some(Features { format: "int8", columns: 1, width: 5, row: &row }),
        labels: Some(&[4, NO_LABEL, 0]),
        split: Some(&SPLIT),
        parts: Some((&[0, 1, 3], &[2, 0, 1])),
        ids: Some(&ids),
    };
    write(path, &contents).unwrap();
    graph
}

#[test]
fn a_file_reads_as_it_was_written() {
    let file = Temporary::new("full");
    let graph = write_full(&file.0);
    let store = Store::open(&file.0).unwrap();
    assert_eq!(*store.adjacency(), graph);
    assert_eq!(store.labels(), Some((&[4, NO_LABEL, 0][..], 5)));
    assert_eq!(store.weights().unwrap().values(), [0.5, 0.0, 2.0]);
    assert_eq!(store.types(), Some((&[1, 0, 1][..], 2)));
    assert_eq!(store.split().unwrap(), SPLIT);
    assert_eq!(store.vertices_of(Split::Train), [0]);
    assert_eq!((store.bounds(), store.origins()), (&[0, 1, 3][..], &[2, 0, 1][..]));
    let ids = store.ids().unwrap();
    assert_eq!(
        [0, 1, 2].map(|vertex| ids.get(vertex)),
        [Id::Text("é"), Id::Text(""), Id::Text("new york")]
    );
    store.verify().unwrap();
    let features = store.features().unwrap();
    assert_eq!((features.format.as_str(), features.columns, features.width), ("int8", 1, 5));
    let bytes = fs::read(&file.0).unwrap();
    for vertex in 0..3 {
        let at = features.offset as usize + 5 * vertex as usize;
        assert_eq!(store.row(vertex), &bytes[at..at + 5]);
        assert_eq!(store.row(vertex), [vertex as u8, 1, 2, 3, 4]);
    }
}

#[test]
fn a_file_of_topology_alone_has_nothing_else() {
    let file = Temporary::new("bare");
    for vertices in [0, 4] {
        let graph = Adjacency::from_edges(vertices, &[]).unwrap();
        write(&file.0, &Contents::new(&graph)).unwrap();
        let store = Store::open(&file.0).unwrap();
        assert_eq!(*store.adjacency(), graph);
        assert_eq!((store.features(), store.labels(), store.split()), (None, None, None));
        assert!(store.weights().is_none() && store.types().is_none() && store.ids().is_none());
        store.verify().unwrap();
        assert!(store.bounds().is_empty() && store.origins().is_empty());
        assert!(store.vertices_of(Split::Train).is_empty());
    }
}

#[test]
fn a_changed_file_is_an_error_or_another_graph() {
    let file = Temporary::new("changed");
    write_full(&file.0);
    let bytes = fs::read(&file.0).unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        fs::write(&file.0, changed).unwrap();
        match Store::open(&file.0) {
            Ok(store) => {
                let graph = store.adjacency();
                assert!(graph.pairs().all(|(a, b)| a < 3 && b < 3));
                let weights = store.weights().unwrap().values();
                assert!(weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0));
                assert!(store.types().unwrap().0.iter().all(|it| *it < 2));
                assert!(at >= 128, "byte {at} of the header");
                assert_eq!(store.ids().unwrap().len(), 3);
                assert!(store.verify().is_err(), "byte {at} of an array");
            }
            Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        }
        fs::write(&file.0, &bytes[..at]).unwrap();
        assert!(Store::open(&file.0).is_err(), "{at} bytes");
    }
}

#[test]
fn errors_name_the_file_and_both_values() {
    let file = Temporary::new("errors");
    let path = file.0.display().to_string();
    let message = |bytes: &[u8]| {
        fs::write(&file.0, bytes).unwrap();
        Store::open(&file.0).unwrap_err().to_string()
    };
    assert_eq!(message(b"abc"), format!("{path}: 3 bytes, expected a header of 128 bytes"));
    assert_eq!(message(&[7; 200]), format!("{path}: no file of a graph"));
    write_full(&file.0);
    let bytes = fs::read(&file.0).unwrap();
    let (found, length) = (bytes.len() - 1, bytes.len());
    assert_eq!(
        message(&bytes[..found]),
        format!("{path}: {found} bytes, expected {length} by the header")
    );
    let mut later = bytes.clone();
    later[8] = 3;
    assert_eq!(message(&later), format!("{path}: version 3, expected at most 2"));
    let graph = Adjacency::from_edges(2, &[]).unwrap();
    let contents = Contents { labels: Some(&[1]), ..Contents::new(&graph) };
    let error = write(&file.0, &contents).unwrap_err();
    assert_eq!(error.to_string(), format!("{path}: 1 labels, expected 2, one per vertex"));
    let weights = Weights::new(vec![1.0]).unwrap();
    let contents = Contents { weights: Some(&weights), ..Contents::new(&graph) };
    let error = write(&file.0, &contents).unwrap_err();
    assert_eq!(error.to_string(), format!("{path}: 1 weights, expected one per edge, 0"));
}

#[test]
fn ids_may_be_numbers() {
    let file = Temporary::new("numbers");
    let graph = Adjacency::from_edges(2, &[(0, 1)]).unwrap();
    let ids = Ids::Numbers(vec![i64::MIN, i64::MAX]);
    write(&file.0, &Contents { ids: Some(&ids), ..Contents::new(&graph) }).unwrap();
    let store = Store::open(&file.0).unwrap();
    assert_eq!(store.ids().unwrap(), ids);
    assert_eq!(store.ids().unwrap().of(&[1, 0]), Ids::Numbers(vec![i64::MAX, i64::MIN]));
    let short = Ids::Numbers(vec![1]);
    let contents = Contents { ids: Some(&short), ..Contents::new(&graph) };
    let error = write(&file.0, &contents).unwrap_err().to_string();
    assert!(error.ends_with("1 ids of vertices, expected 2, one per vertex"), "{error}");
}

/// A file of 2 vertices, the edge 0 to 1 and types 0 and 2, as it was before arrays had checksums.
#[test]
fn files_of_version_1_are_read_and_have_no_checksums() {
    let file = Temporary::new("version-1");
    let mut bytes = vec![0; 256];
    bytes[..12].copy_from_slice(b"twgraph\n\x01\0\0\0");
    bytes[12..16].copy_from_slice(&0x7227_0f0d_u32.to_le_bytes());
    (bytes[16], bytes[24], bytes[28], bytes[56]) = (1, 2, 32, 3);
    bytes[144] = 1;
    bytes.extend([0, 0, 0, 0, 2, 0, 0, 0]);
    fs::write(&file.0, &bytes).unwrap();
    let store = Store::open(&file.0).unwrap();
    assert_eq!(store.adjacency().pairs().collect::<Vec<_>>(), [(0, 1)]);
    assert_eq!(store.types(), Some((&[0, 2][..], 3)));
    let error = store.verify().unwrap_err();
    let expected = "the file is of version 1, which has no checksums of its arrays";
    assert!(error.to_string().ends_with(expected) && error.hint().is_some(), "{error}");
}

#[test]
fn a_file_that_is_written_to_while_it_is_open_is_an_error_with_its_name() {
    let file = Temporary::new("written-to");
    let path = file.0.display().to_string();
    let graph = write_full(&file.0);
    let bytes = fs::read(&file.0).unwrap();
    let store = Store::open(&file.0).unwrap();
    // Another file of that name is none of its business.
    fs::remove_file(&file.0).unwrap();
    write_full(&file.0);
    store.ensure_unchanged().unwrap();
    assert_eq!(*store.adjacency(), graph);
    let store = Store::open(&file.0).unwrap();
    let written = fs::OpenOptions::new().write(true).open(&file.0).unwrap();
    let later = written.metadata().unwrap().modified().unwrap() + Duration::from_secs(1);
    written.set_modified(later).unwrap();
    let error = store.adjacency().ensure_unchanged().unwrap_err();
    assert_eq!(error.kind(), Kind::Changed);
    assert_eq!(
        error.to_string(),
        format!("{path}: another program has written to the file since it was opened")
    );
    written.set_len(300).unwrap();
    let error = store.ensure_unchanged().unwrap_err().to_string();
    let expected = bytes.len();
    assert_eq!(error, format!("{path}: 300 bytes, expected {expected} as it was opened"));
}
