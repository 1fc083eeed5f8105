//! Laws of files with graphs for graph neural networks: those of others, and our own.

use std::fs;
use std::sync::Arc;

use thinwire_graph::read::{
    self, Columns, Numbering, Options, Orientation, Weighting, edges_of_bytes,
};
use thinwire_graph::{Split, Store, file_length};
use thinwire_loader::Stored;
use thinwire_rows::{Format, Source};
use thinwire_wire::checksum;

use crate::checkpoint::FOLDER;

/// Graphs of more vertices are read, but no lists are made of them.
const VERTICES_MAX: u32 = 1 << 12;

/// Size of the header of a file.
const HEADER_BYTES: usize = 128;
/// Longest file that is made of a header.
const LENGTH_MAX: u64 = 1 << 16;

/// Checks that any bytes in any format are either read as edges between existing vertices, with a weight
/// for each edge or for none, or refused with an error of one line. The first byte chooses the format,
/// the columns and whether weights are used.
pub fn edges(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let format = read::Format::ALL[usize::from(*choice) % read::Format::ALL.len()];
    let weight = (*choice >= 192).then_some(2);
    let columns = (*choice >= 128).then_some(Columns { source: 3, destination: 1, weight });
    let weights = if choice & 32 == 0 { Weighting::Keep } else { Weighting::Drop };
    let numbering = [Numbering::FromZero, Numbering::Ids, Numbering::FromOne][*choice as usize % 3];
    let orientation = (choice & 16 == 0).then_some(Orientation::In);
    let orientation = orientation.filter(|_| format == read::Format::Npz);
    let options = Options { columns, weights, numbering, orientation, ..Options::default() };
    match edges_of_bytes(bytes, format, options) {
        Ok(edges) => {
            assert!(edges.pairs.iter().all(|(a, b)| *a.max(b) < edges.vertices), "{format}");
            if edges.vertices <= VERTICES_MAX {
                let (graph, weights) = edges.weighted().expect("its vertices are there");
                assert_eq!(graph.edges(), edges.pairs.len() as u64);
                let count = weights.map(|weights| weights.values().len());
                assert!(count.is_none_or(|count| count == edges.pairs.len()));
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// Checks that any file, its checksum and length corrected, is either read as a graph whose arrays and
/// features can be read, or refused with an error of one line.
pub fn topology(bytes: &[u8]) {
    let path = FOLDER.join(format!("graph-{:?}", std::thread::current().id()));
    fs::write(&path, corrected(bytes)).expect("room for a few kilobytes");
    let opened = Store::open(&path);
    let _ = fs::remove_file(&path);
    match opened {
        Ok(store) => {
            check_arrays(&store);
            read_features(Arc::new(store));
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// Returns the file of a graph with the right checksum and the length given in its header.
fn corrected(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some((header, _)) = bytes.split_at_mut_checked(HEADER_BYTES) {
        let sum = checksum(&header[16..]);
        header[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    if let Ok(length) = file_length(&bytes)
        && length <= LENGTH_MAX
    {
        bytes.resize(length as usize, 0);
    }
    bytes
}

fn check_arrays(store: &Store) {
    let vertices = store.adjacency().vertices();
    assert!(store.adjacency().pairs().all(|(a, b)| a.max(b) < vertices));
    let weights = store.weights().map(|weights| weights.values());
    assert!(weights.is_none_or(|weights| weights.iter().all(|it| it.is_finite() && *it >= 0.0)));
    assert!(store.types().is_none_or(|(types, count)| types.iter().all(|it| *it < count)));
    let trained = store.count_of(Split::Train);
    assert!(trained <= u64::from(vertices) && store.bounds().is_sorted());
    assert!(store.labels().is_none_or(|(labels, _)| labels.len() == vertices as usize));
    assert!(store.ids().is_none_or(|ids| ids.len() == vertices as usize));
    let verified = store.verify().map_err(|error| error.to_string());
    assert!(verified.is_ok() || verified.is_err_and(|error| !error.contains('\n')));
}

/// Reads the rows of all vertices as batches have them, and decodes them.
fn read_features(store: Arc<Store>) {
    let Some(rows) = store.features() else { return };
    let vertices = store.adjacency().vertices();
    let format = Format::parse(&rows.format).expect("a file has known formats alone");
    let columns = rows.columns as usize;
    let Some(source) = Stored::new(store) else { return };
    let ids: Vec<u64> = (0..u64::from(vertices)).collect();
    let mut encoded = vec![0; source.width() * ids.len()];
    source.read(&ids, &mut encoded).expect("nobody writes to the file");
    let mut values = vec![0.0; columns * ids.len()];
    format.decode(&encoded, columns, &mut values);
}
