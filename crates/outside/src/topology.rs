//! Laws of files with graphs for graph neural networks: those of others, and our own.

use std::fs;

use thinwire_graph::read::{Format, Options, edges_of_bytes};
use thinwire_graph::{Split, Store};
use thinwire_wire::checksum;

use crate::checkpoint::FOLDER;

/// Graphs of more vertices are read, but no lists are made of them.
const VERTICES_MAX: u32 = 1 << 12;

/// Checks that any bytes in any format, which the first byte chooses together with columns, are edges between vertices that there
/// are, or an error of one line.
pub fn edges(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let format = Format::ALL[usize::from(*choice) % Format::ALL.len()];
    let options = Options { columns: (*choice >= 128).then_some((3, 1)), ..Options::default() };
    match edges_of_bytes(bytes, format, options) {
        Ok(edges) => {
            assert!(edges.pairs.iter().all(|(a, b)| *a.max(b) < edges.vertices), "{format}");
            if edges.vertices <= VERTICES_MAX {
                let graph = edges.adjacency().expect("its vertices are there");
                assert_eq!(graph.edges(), edges.pairs.len() as u64);
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
            let trained = store.count_of(Split::Train);
            assert!(trained <= u64::from(vertices) && store.bounds().is_sorted());
            assert!(store.labels().is_none_or(|(labels, _)| labels.len() == vertices as usize));
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}
