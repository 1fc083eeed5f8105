//! Law of ONNX files.

use thinwire_model::fingerprint;
use thinwire_onnx::OnnxFile;

use crate::graph::check_graph;

/// Checks that any bytes are either read as an ONNX file whose graph has a fingerprint and a summary, or
/// refused with an error.
pub fn onnx(bytes: &[u8]) {
    let Ok(file) = OnnxFile::new(bytes.to_vec()) else { return };
    if let Ok(external) = file.external() {
        assert!(
            external.iter().all(|it| it.file.components().count() == 1 && !it.file.is_absolute())
        );
    }
    let (sequence, batch) = (file.has_sequence(), file.batch());
    assert_eq!(sequence.is_err(), batch.is_err());
    if let Ok(graph) = file.graph(2, 8) {
        check_graph(&graph);
        let again = file.graph(2, 8).expect("it was a graph before");
        assert_eq!(fingerprint(&again), fingerprint(&graph));
    }
}
