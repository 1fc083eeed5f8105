//! Laws of files with graphs for graph neural networks: those of others, and our own.

use std::fs;

use thinwire_graph::read::{Columns, Format, Options, Weighting, edges_of_bytes};
use thinwire_graph::{Split, Store};
use thinwire_wire::checksum;

use crate::checkpoint::FOLDER;

/// Graphs of more vertices are read, but no lists are made of them.
const VERTICES_MAX: u32 = 1 << 12;

/// Checks that any bytes in any format, which the first byte chooses together with columns and the use of
/// weights, are edges between vertices that there are, with a weight for each or none, or an error of one
/// line.
pub fn edges(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let format = Format::ALL[usize::from(*choice) % Format::ALL.len()];
    let weight = (*choice >= 192).then_some(2);
    let columns = (*choice >= 128).then_some(Columns { source: 3, destination: 1, weight });
    let weights = if choice & 32 == 0 { Weighting::Keep } else { Weighting::Drop };
    let options = Options { vertices: None, columns, weights };
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

/// Checks that any file, its checksum corrected, is a graph whose arrays can be read, or an error of one line.
pub fn topology(bytes: &[u8]) {
    let (path, mut bytes) = (FOLDER.join("graph"), bytes.to_vec());
    if let Some((header, _)) = bytes.split_at_mut_checked(128) {
        let sum = checksum(&header[16..]);
        header[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    fs::write(&path, &bytes).expect("room for a few kilobytes");
    match Store::open(&path) {
        Ok(store) => {
            let vertices = store.adjacency().vertices();
            assert!(store.adjacency().pairs().all(|(a, b)| a.max(b) < vertices));
            (0..vertices).for_each(|vertex| drop(store.row(vertex).to_vec()));
            let weights = store.weights().map(|weights| weights.values());
            assert!(
                weights.is_none_or(|weights| weights.iter().all(|it| it.is_finite() && *it >= 0.0))
            );
            assert!(store.types().is_none_or(|(types, count)| types.iter().all(|it| *it < count)));
            let trained = store.count_of(Split::Train);
            assert!(trained <= u64::from(vertices) && store.bounds().is_sorted());
            assert!(store.labels().is_none_or(|(labels, _)| labels.len() == vertices as usize));
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}
