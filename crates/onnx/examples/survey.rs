//! Which ONNX files of some folders can be read, and why the others cannot.
//!
//! `cargo run --release -p thinwire-onnx --example survey -- FOLDER...`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use thinwire_model::Graph;
use thinwire_onnx::OnnxFile;

/// A batch and a sequence that most files can take, where those are open.
const SIZES: [usize; 2] = [2, 8];

fn main() {
    let mut files = Vec::new();
    std::env::args().skip(1).for_each(|path| collect(Path::new(&path), &mut files));
    files.sort();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut read = 0;
    for path in &files {
        let found = std::fs::read(path).map_err(|error| error.to_string());
        let graph = found.and_then(|bytes| graph(bytes).map_err(|error| error.to_string()));
        match graph {
            Ok(graph) => {
                read += 1;
                println!("{}: {}", path.display(), operators(&graph));
            }
            Err(error) => {
                println!("{}: {error}", path.display());
                *reasons.entry(reason(&error)).or_default() += 1;
            }
        }
    }
    println!("\n{read} of {} files", files.len());
    reasons.iter().for_each(|(reason, count)| println!("{count:4} {reason}"));
}

/// All files that end as ONNX does.
fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    let onnx = path.extension().is_some_and(|extension| extension == "onnx");
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().for_each(|entry| collect(&entry.path(), files)),
        Err(_) if onnx => files.push(path.to_owned()),
        Err(_) => {}
    }
}

fn graph(bytes: Vec<u8>) -> Result<Graph, thinwire_model::Error> {
    let file = OnnxFile::new(bytes)?;
    file.graph(file.batch()?.unwrap_or(SIZES[0]), SIZES[1])
}

/// How often each operator is there.
fn operators(graph: &Graph) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    graph.nodes.iter().for_each(|node| *counts.entry(node.operator.name()).or_default() += 1);
    let counts: Vec<String> =
        counts.iter().map(|(operator, count)| format!("{operator} {count}")).collect();
    counts.join(", ")
}

/// An error without its node and without the list of what is supported.
fn reason(error: &str) -> String {
    let error = error.split(", only ").next().unwrap_or(error);
    match error.split_once("': ") {
        Some((_, reason)) => reason.to_owned(),
        None => error.to_owned(),
    }
}
