//! Law of model files.

use thinwire_model::ModelFile;

use crate::graph::check_graph;

/// Checks that any text is either refused with an error or read as a model file, which is written back
/// unchanged and whose graphs are sound.
pub fn model(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(file) = ModelFile::parse(text) else { return };
    let again = ModelFile::parse(&file.text());
    assert_eq!(again.as_ref().ok(), Some(&file), "{again:?}");
    for batch in [0, 1, 3] {
        if let Ok(graph) = file.graph(batch) {
            check_graph(&graph);
        }
    }
}
