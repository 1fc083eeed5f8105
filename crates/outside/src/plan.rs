//! Laws of plan files and cluster files.

use std::sync::LazyLock;

use thinwire_model::{Graph, fingerprint, named};
use thinwire_plan::Cluster;
use thinwire_plan::report::PlanFile;

/// Model that plans are read for.
pub const MODEL: &str = "gpt:layers=2,width=8,heads=2,vocabulary=11,positions=4";
/// Sequences of a micro-batch of [`MODEL`].
pub const BATCH: usize = 4;
/// Tokens of a sequence of [`MODEL`].
pub const SEQUENCE: usize = 4;

pub(crate) static GRAPH: LazyLock<Graph> =
    LazyLock::new(|| named(MODEL, BATCH, SEQUENCE).expect("a model of this name can be built"));

/// Reads a plan file, with the fingerprint of [`MODEL`] in place of the written one.
pub(crate) fn read(bytes: &[u8]) -> Option<PlanFile> {
    let file = PlanFile::parse(std::str::from_utf8(bytes).ok()?).ok()?;
    Some(PlanFile { fingerprint: format!("{:016x}", fingerprint(&GRAPH)), ..file })
}

/// Checks that any text is either refused with an error of one line or read as a plan file, which is
/// written back unchanged and gives every node of a model a strategy.
pub fn plan(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match PlanFile::parse(text) {
        Ok(file) => assert_eq!(PlanFile::parse(&file.text()).ok(), Some(file)),
        Err(error) => assert!(!error.to_string().contains('\n') || text.contains("\\n"), "{error}"),
    }
    let Some(file) = read(bytes) else { return };
    if let Ok(strategies) = file.strategies(&GRAPH) {
        assert_eq!(strategies.len(), GRAPH.nodes.len());
        assert!(strategies.iter().all(|strategy| strategy.0.len() == file.mesh.len()));
    }
}

/// Checks that any text is either read as a cluster, whose devices can be counted and averaged, or
/// refused with an error.
pub fn cluster(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(cluster) = Cluster::parse(text) else { return };
    assert!(cluster.size() >= 1);
    let _ = (cluster.mean(cluster.size()), cluster.pace());
}
