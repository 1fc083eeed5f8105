//! Rows, labels and batches of vertices that a training takes from a file of a graph.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use thinwire_graph::{Batches, NO_LABEL, Split, Store};
use thinwire_job::Place;
use thinwire_loader::{Features, Stored};
use thinwire_plan::report::counted;
use thinwire_rows::Format;
use thinwire_train::gnn::Task;

use crate::failure::hinted;
use crate::output::say;

/// Returns what is learnt from.
///
/// # Errors
/// If the graph has no features, no labels, or no classes.
pub fn task(store: &Arc<Store>) -> Result<Task> {
    let lacks = |what: &str, flag: &str| {
        let error = anyhow!("{} has no {what}", store.path().display());
        hinted(error, format!("thinwire graph import --{flag} FILE.npy"))
    };
    let rows = store.features().ok_or_else(|| lacks("features", "features"))?;
    let (labels, classes) = store.labels().ok_or_else(|| lacks("labels", "labels"))?;
    if classes == 0 {
        return Err(lacks("labels but -1", "labels"));
    }
    let source = Stored::new(store.clone()).ok_or_else(|| lacks("features", "features"))?;
    Ok(Task {
        graph: Arc::new(store.adjacency().clone()),
        features: Features::direct(source),
        format: Format::parse(&rows.format)?,
        columns: rows.columns,
        labels: labels.into(),
        classes,
    })
}

/// Returns the batches of the training: of each rank's own part, where there is one per rank.
///
/// # Errors
/// If there are no training vertices, or one has no label.
pub fn batches(store: &Store, place: &Place, (batch, seed): (u32, u64)) -> Result<Batches> {
    let training = labelled(store, Split::Train)?;
    if training.is_empty() {
        let error = anyhow!("{} has no training vertices", store.path().display());
        return Err(hinted(error, "thinwire graph import --train 0.1, or --split FILE.npy"));
    }
    let bounds = store.bounds();
    let parts = bounds.len().saturating_sub(1);
    if parts > 1 && parts == place.world as usize {
        let of = |ends: &[u32]| {
            let is_own = |vertex: &&u32| (ends[0]..ends[1]).contains(*vertex);
            training.iter().filter(is_own).copied().collect()
        };
        return Ok(Batches::local(bounds.windows(2).map(of).collect(), batch, seed)?);
    }
    if parts > 1 && place.rank == 0 {
        let ranks = counted(place.world as usize, "rank");
        say(format!("{parts} parts and {ranks}: training vertices are dealt to all ranks"));
    }
    Ok(Batches::global(training, place.world, batch, seed)?)
}

/// Returns batches of the vertices for validation or test, if there are any.
///
/// # Errors
/// If one has no label.
pub fn held_out(
    store: &Store,
    (place, split): (&Place, Split),
    batch: u32,
) -> Result<Option<Batches>> {
    let vertices = labelled(store, split)?;
    if vertices.is_empty() {
        return Ok(None);
    }
    Ok(Some(Batches::global(vertices, place.world, batch, 0)?.in_order()))
}

/// Returns the vertices of a use.
///
/// # Errors
/// If one has no label.
fn labelled(store: &Store, split: Split) -> Result<Vec<u32>> {
    let vertices = store.vertices_of(split);
    let labels = store.labels().map_or(&[][..], |(labels, _)| labels);
    match vertices.iter().find(|vertex| labels[**vertex as usize] == NO_LABEL) {
        None => Ok(vertices),
        Some(vertex) => {
            let error = anyhow!("vertex {vertex} is for {split} and has no label");
            Err(hinted(error, "give it a label, or use 0 in --split of thinwire graph import"))
        }
    }
}
