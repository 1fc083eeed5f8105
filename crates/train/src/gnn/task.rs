//! Task: the data from which a network learns, and the facts that all ranks of a training must have in
//! common.

use std::sync::Arc;

use thinwire_graph::{Adjacency, Batches, Draw, FanOut, Weights};
use thinwire_loader::{Batch, Features};
use thinwire_rows::{Format, Frozen};

use super::served::ServedRows;
use super::trainer::Settings;
use crate::error::{Error, Kind};

/// Graph with features and labels to learn from, the same on all ranks.
#[derive(Clone, Debug)]
pub struct Task {
    /// Topology.
    pub graph: Arc<Adjacency>,
    /// Features of all vertices.
    pub rows: Rows,
    /// Labels of all vertices. The labels of training vertices are below `classes`.
    pub labels: Arc<[u32]>,
    /// Number of classes.
    pub classes: u32,
}

/// Features of all vertices.
#[derive(Clone, Debug)]
pub enum Rows {
    /// Rows that are read ahead of the training.
    Read {
        /// Source of the rows of all vertices.
        source: Features,
        /// Format of a row.
        format: Format,
        /// Numbers per row.
        columns: u32,
    },
    /// Rows that are trained with the network; every rank has all of them.
    Learned {
        /// Numbers per row.
        columns: u32,
    },
    /// Rows that are trained with the network, on servers.
    Served {
        /// Numbers per row.
        columns: u32,
        /// This rank's access to the rows.
        rows: Arc<ServedRows>,
    },
}

impl Rows {
    /// Returns the numbers per row.
    pub fn columns(&self) -> u32 {
        match self {
            Rows::Read { columns, .. }
            | Rows::Learned { columns }
            | Rows::Served { columns, .. } => *columns,
        }
    }

    /// Returns the source from which a loader reads rows.
    pub(super) fn source(&self, vertices: u32) -> Result<Features, Error> {
        match self {
            Rows::Read { source, .. } => Ok(source.clone()),
            Rows::Learned { .. } | Rows::Served { .. } => {
                // Trained rows are read when a step begins; until then a batch has a byte for each.
                let nothing = Frozen::in_memory(vec![0; vertices as usize], 1);
                let nothing = nothing.map_err(|error| Error::new(Kind::Data, error.to_string()))?;
                Ok(Features::direct(nothing))
            }
        }
    }
}

impl Task {
    /// Returns the labels of a batch's seeds.
    pub(super) fn labels(&self, batch: &Batch) -> Vec<u32> {
        let sample = batch.sample();
        let seeds = sample.vertices[..sample.seeds as usize].iter();
        seeds.map(|vertex| self.labels[*vertex as usize]).collect()
    }
}

/// Returns the facts that must be equal on all ranks, and between a checkpoint and the training that
/// continues from it.
///
/// # Errors
/// If features cannot be read.
pub(super) fn facts(
    task: &Task,
    batches: &Batches,
    settings: &Settings,
) -> Result<Vec<(String, String)>, Error> {
    let Settings {
        model, hidden, heads, fan_outs, learning_rate, weight_decay, dropout, seed, ..
    } = settings;
    let (vertices, edges) = (task.graph.vertices(), task.graph.edges());
    let labels = thinwire_wire::checksum(bytemuck::cast_slice(&task.labels));
    let columns = bytemuck::cast_slice(task.graph.offsets());
    let neighbors = bytemuck::cast_slice(task.graph.all_neighbors());
    let topology = thinwire_wire::checksum_of_parts(&[columns, neighbors]);
    let hops: Vec<String> = fan_outs.iter().map(fan_out).collect();
    let trained: Vec<String> =
        (0..batches.ranks()).map(|rank| batches.training(rank).to_string()).collect();
    let rows = match &task.rows {
        Rows::Read { source, format, columns } => {
            let probe = source.probe(vertices.into());
            let probe = probe.map_err(|error| Error::new(Kind::Data, error.to_string()))?;
            format!("{columns} {format} with checksum {:08x}", thinwire_wire::checksum(&probe))
        }
        Rows::Learned { columns } => format!("{columns} learned"),
        Rows::Served { columns, .. } => format!("{columns} on servers"),
    };
    let fact = |name: &str, value: String| (name.to_owned(), value);
    Ok(vec![
        fact(
            "the graph",
            format!(
                "{vertices} vertices, {edges} edges with checksum {topology:08x}, labels with {labels:08x}"
            ),
        ),
        fact("features", rows),
        fact("the model", format!("{model} of {hidden} hidden outputs, {heads} heads")),
        fact("fan-outs", hops.join(",")),
        fact("draws", draw(&settings.draw)),
        fact("training vertices", format!("{} in {} steps", trained.join(","), batches.steps())),
        fact(
            "the recipe",
            format!("rate {learning_rate}, decay {weight_decay}, dropout {dropout}, seed {seed}"),
        ),
    ])
}

fn draw(draw: &Draw) -> String {
    let by = |how: &str, weights: &Weights| {
        let hash = thinwire_wire::checksum(bytemuck::cast_slice(weights.values()));
        format!("{how} by weights {hash:08x}")
    };
    match draw {
        Draw::Distinct => "distinct".to_owned(),
        Draw::Repeated => "repeated".to_owned(),
        Draw::Weighted(weights) => by("distinct", weights),
        Draw::WeightedRepeated(weights) => by("repeated", weights),
    }
}

fn fan_out(fan_out: &FanOut) -> String {
    match fan_out {
        FanOut::All => "all".to_owned(),
        FanOut::Limit(limit) => limit.to_string(),
    }
}
