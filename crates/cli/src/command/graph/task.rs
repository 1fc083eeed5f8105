//! Rows, labels and batches of vertices that a training reads from a graph's file.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use thinwire_graph::{Batches, NO_LABEL, Split, Store};
use thinwire_job::Place;
use thinwire_loader::{Features, Stored};
use thinwire_plan::report::counted;
use thinwire_rows::Format;
use thinwire_train::gnn::{Rows, Task};

use crate::failure::hinted;

/// Largest width of learned features.
const COLUMNS_MAX: u32 = 1 << 16;

/// Learned features, for a file without features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Number of values in a row.
    pub columns: u32,
}

/// Parses `learned:WIDTH`.
///
/// # Errors
/// If the text has another form.
pub fn parse_learned(text: &str) -> Result<Learned, String> {
    let columns = text.strip_prefix("learned:").and_then(|columns| columns.parse().ok());
    let columns = columns.filter(|columns| (1..=COLUMNS_MAX).contains(columns));
    columns.map(|columns| Learned { columns }).ok_or_else(|| {
        format!("features '{text}', expected learned:WIDTH with a width of 1 to {COLUMNS_MAX}")
    })
}

/// Returns the task of a training: the rows and the labels.
///
/// # Errors
/// If the graph has no labels or no classes, or has both features and learned ones, or neither.
pub fn task(store: &Arc<Store>, learned: Option<Learned>) -> Result<Task> {
    let lacks = |what: &str, flag: &str| {
        let error = anyhow!("{} has no {what}", store.path().display());
        hinted(error, format!("thinwire graph import --{flag} FILE.npy"))
    };
    let rows = rows(store, learned)?;
    let (labels, classes) = store.labels().ok_or_else(|| lacks("labels", "labels"))?;
    if classes == 0 {
        return Err(lacks("labels other than -1", "labels"));
    }
    let graph = Arc::new(store.adjacency().clone());
    Ok(Task { graph, rows, labels: labels.into(), classes })
}

fn rows(store: &Arc<Store>, learned: Option<Learned>) -> Result<Rows> {
    let path = store.path().display();
    match (store.features().zip(Stored::new(store.clone())), learned) {
        (Some((rows, source)), None) => Ok(Rows::Read {
            source: Features::direct(source),
            format: Format::parse(&rows.format)?,
            columns: rows.columns,
        }),
        (None, Some(Learned { columns })) => Ok(Rows::Learned { columns }),
        (Some((rows, _)), Some(Learned { columns })) => {
            let (found, format) = (rows.columns, rows.format);
            let error = anyhow!(
                "--features learned:{columns}, but {path} has features already, {found} {format}"
            );
            Err(hinted(error, "leave --features out, or import the graph without features"))
        }
        (None, None) => {
            let hint =
                "thinwire graph import --features FILE.npy, or --features learned:64 to train some";
            Err(hinted(anyhow!("{path} has no features"), hint))
        }
    }
}

/// Returns the number of seeds in a rank's batch: its part of `batch` if given, or else `usual`.
///
/// # Errors
/// If ranks would have different numbers of seeds.
pub fn per_rank(batch: Option<u32>, ranks: u32, usual: u32) -> Result<u32> {
    match batch {
        None => Ok(usual),
        Some(batch) if batch % ranks == 0 => Ok(batch / ranks),
        Some(batch) => {
            let error =
                anyhow!("--batch {batch} over {ranks} ranks, expected a multiple of {ranks}");
            Err(hinted(error, format!("give --batch {}", batch.next_multiple_of(ranks))))
        }
    }
}

/// Returns the batches of the training. If the file has one part per rank, they are from the rank's own part.
///
/// # Errors
/// If there are no training vertices, or one has no label.
pub fn batches(store: &Store, place: &Place, batch: u32, seed: u64) -> Result<Batches> {
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
    Ok(Batches::global(training, place.world, batch, seed)?)
}

/// Returns the notice that the parts of a file do not match the ranks, if it has parts.
pub fn dealt(store: &Store, world: u32) -> Option<String> {
    let parts = store.bounds().len().saturating_sub(1);
    let ranks = counted(world as usize, "rank");
    let line =
        || format!("{parts} parts and {ranks}: training vertices are distributed over all ranks");
    (parts > 1 && parts != world as usize).then(line)
}

/// Returns batches of the vertices for validation or test, or `None` without such vertices.
///
/// # Errors
/// If one of these vertices has no label.
pub fn held_out(store: &Store, place: &Place, split: Split, batch: u32) -> Result<Option<Batches>> {
    let vertices = labelled(store, split)?;
    if vertices.is_empty() {
        return Ok(None);
    }
    Ok(Some(Batches::global(vertices, place.world, batch, 0)?.in_order()))
}

/// Returns the vertices with a use.
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
            Err(hinted(
                error,
                "give this vertex a label, or a 0 in --split of thinwire graph import",
            ))
        }
    }
}
