//! Graphs and their mini-batches for Python.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use serde::Deserialize;
use thinwire_graph::{Adjacency, Batches, Draw, FanOut, Frontier, Position, Sampling, Weights};
use thinwire_loader::{Batch, Features, Loader, Options, Policy};
use thinwire_rows::{Kind, Source};

use crate::error::Failure;
use crate::lifetime::Lifetime;
use crate::memory::Memory;
use crate::row_source::RowSource;
use crate::wait;

/// In-neighbours of every vertex.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Graph {
    pub(crate) adjacency: Arc<Adjacency>,
}

#[pymethods]
impl Graph {
    /// A graph from compressed sparse columns: addresses and lengths of offsets and of neighbours, all i64.
    #[new]
    fn new(py: Python<'_>, offsets: (usize, usize), neighbors: (usize, usize)) -> PyResult<Graph> {
        let offsets = Memory::rows(offsets.0, offsets.1)?;
        let neighbors = Memory::rows(neighbors.0, neighbors.1)?;
        let adjacency = py.detach(|| {
            let narrow = |vertex: &u64| {
                // No graph has this vertex, so it is refused with all others that do not exist.
                u32::try_from(*vertex).unwrap_or(u32::MAX)
            };
            let neighbors = neighbors.numbers().iter().map(narrow).collect();
            Adjacency::new(offsets.numbers().to_vec(), neighbors)
        });
        Ok(Graph { adjacency: Arc::new(adjacency.map_err(invalid)?) })
    }

    #[getter]
    fn vertices(&self) -> u32 {
        self.adjacency.vertices()
    }

    #[getter]
    fn edges(&self) -> u64 {
        self.adjacency.edges()
    }

    /// Writes the compressed sparse columns to two addresses, as i64: offsets (one more than there are vertices) and
    /// neighbours.
    fn write_columns(&self, offsets: usize, neighbors: usize) -> PyResult<()> {
        let (vertices, edges) = (self.adjacency.vertices(), self.adjacency.edges() as usize);
        let mut offsets = Memory::rows(offsets, vertices as usize + 1)?;
        let mut neighbors = Memory::rows(neighbors, edges)?;
        let (offsets, mut left) = (offsets.numbers_mut(), neighbors.numbers_mut());
        offsets[0] = 0;
        for vertex in 0..vertices {
            let found = self.adjacency.neighbors(vertex);
            let (column, rest) = left.split_at_mut(found.len());
            column.iter_mut().zip(found).for_each(|(place, source)| *place = u64::from(*source));
            offsets[vertex as usize + 1] = offsets[vertex as usize] + found.len() as u64;
            left = rest;
        }
        Ok(())
    }
}

/// Options of a loader, as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    /// Fan-out of each hop, that of the seeds first; none for all in-neighbours.
    fan_outs: Vec<Option<u32>>,
    replace: bool,
    /// Whether every vertex so far is expanded in each hop, as in blocks.
    blocks: bool,
    batch: u32,
    /// Whether batches with fewer seeds are left out.
    full: bool,
    shuffle: bool,
    seed: u64,
    rank: u32,
    ranks: u32,
    pass: u64,
    step: u32,
    threads: usize,
    /// First vertices of the parts, and the number of vertices, if each rank draws from its own part.
    bounds: Option<Vec<u32>>,
    /// Bytes and policy of the cache.
    cache: Option<(u64, String)>,
}

impl Described {
    fn sampling(&self, weights: Option<Arc<Weights>>) -> Sampling {
        let fan_out = |limit: &Option<u32>| limit.map_or(FanOut::All, FanOut::Limit);
        Sampling {
            fan_outs: self.fan_outs.iter().map(fan_out).collect(),
            draw: match (self.replace, weights) {
                (false, None) => Draw::Distinct,
                (true, None) => Draw::Repeated,
                (false, Some(weights)) => Draw::Weighted(weights),
                (true, Some(weights)) => Draw::WeightedRepeated(weights),
            },
            frontier: if self.blocks { Frontier::All } else { Frontier::New },
        }
    }

    fn batches(&self, seeds: Vec<u32>) -> Result<Batches, Failure> {
        let batches = match &self.bounds {
            None => Batches::global(seeds, self.ranks, self.batch, self.seed),
            Some(bounds) if bounds.len() as u64 == u64::from(self.ranks) + 1 => {
                let within = |part: &[u32]| {
                    let is_own = |seed: &&u32| (part[0]..part[1]).contains(seed);
                    seeds.iter().filter(is_own).copied().collect()
                };
                Batches::local(bounds.windows(2).map(within).collect(), self.batch, self.seed)
            }
            Some(bounds) => {
                let (parts, ranks) = (bounds.len().saturating_sub(1), self.ranks);
                return Err(Failure::invalid(format!(
                    "{parts} parts, expected one per rank, {ranks}"
                )));
            }
        };
        let batches = batches.map_err(invalid)?;
        let batches = if self.full { batches.full().map_err(invalid)? } else { batches };
        Ok(if self.shuffle { batches } else { batches.in_order() })
    }

    fn features(&self, source: impl Source + Send + 'static) -> Result<Features, Failure> {
        let Some((bytes, policy)) = &self.cache else { return Ok(Features::direct(source)) };
        let policy = match &policy[..] {
            "foreseen" => Policy::Foreseen,
            "sieve" => Policy::Sieve,
            "lru" => Policy::Lru,
            other => {
                let most = "expected foreseen, sieve or lru";
                return Err(Failure::invalid(format!("policy \"{other}\" of the cache, {most}")));
            }
        };
        Ok(Features::cached(source, *bytes, policy))
    }

    fn options(&self, weights: Option<Arc<Weights>>) -> Options {
        let mut options = Options::new(self.sampling(weights), self.rank);
        options.start = Position { pass: self.pass, step: self.step };
        if self.threads > 0 {
            options.threads = self.threads;
        }
        options
    }
}

/// Mini-batches of a graph in the order of their positions, loaded ahead.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct GraphLoader {
    loader: Arc<Mutex<Option<Loader>>>,
    /// Number of seeds of all ranks in each step of a pass.
    together: Vec<usize>,
    lifetime: Lifetime,
    _rows: Py<RowSource>,
}

#[pymethods]
impl GraphLoader {
    /// A loader of the batches of `seeds`, address and number of i64. `rows` are the features of all
    /// vertices; `weights` are the address of f32, one per edge, in proportion to which neighbours are drawn.
    #[new]
    #[pyo3(signature = (graph, rows, seeds, options, weights = None))]
    fn new(
        py: Python<'_>,
        graph: &Graph,
        rows: Py<RowSource>,
        seeds: (usize, usize),
        options: &str,
        weights: Option<usize>,
    ) -> PyResult<GraphLoader> {
        let described: Described = serde_json::from_str(options)
            .map_err(|error| Failure::invalid(format!("options: {error}")))?;
        let vertices = graph.adjacency.vertices();
        let found = rows.get().rows;
        if found != u64::from(vertices) {
            let text = format!("{found} rows of features, expected one per vertex, {vertices}");
            return Err(Failure::invalid(text).into());
        }
        let narrow = |seed: &u64| {
            let fits = u32::try_from(*seed).ok().filter(|seed| *seed < vertices);
            fits.ok_or_else(|| {
                Failure::invalid(format!("seed {}, expected 0..{vertices}", *seed as i64))
            })
        };
        let seeds = Memory::rows(seeds.0, seeds.1)?;
        let seeds = seeds.numbers().iter().map(narrow).collect::<Result<Vec<u32>, Failure>>()?;
        let batches = described.batches(seeds)?;
        let together = (0..batches.steps()).map(|step| batches.together(step)).collect();
        let features = described.features(Arc::clone(&rows.get().source))?;
        let adjacency = Arc::clone(&graph.adjacency);
        let weights = weights.map(|address| weights_at(address, adjacency.edges() as usize));
        let options = described.options(weights.transpose()?.map(Arc::new));
        let start = || Loader::start(adjacency, batches, features, options);
        let loader = py.detach(start).map_err(invalid)?;
        let loader = Arc::new(Mutex::new(Some(loader)));
        Ok(GraphLoader { loader, together, lifetime: Lifetime::new(), _rows: rows })
    }

    /// Number of batches of this rank in a pass.
    #[getter]
    fn steps(&self) -> usize {
        self.together.len()
    }

    /// Number of seeds of all ranks in a step.
    fn together(&self, step: usize) -> PyResult<usize> {
        let found = self.together.get(step).copied();
        Ok(found.ok_or_else(|| {
            Failure::invalid(format!("step {step}, expected steps of 0..{}", self.steps()))
        })?)
    }

    /// The next batch, once it is loaded.
    fn next(&self, py: Python<'_>) -> PyResult<GraphBatch> {
        self.lifetime.check()?;
        // A batch that is ready needs no waiting thread. If one waits, it holds the lock.
        if let Ok(mut loader) = self.loader.try_lock()
            && let Some(loader) = loader.as_mut()
            && let Some(batch) = loader.try_next().map_err(|error| failed(&error))?
        {
            return Ok(GraphBatch { batch });
        }
        let loader = Arc::clone(&self.loader);
        let batch = wait::for_work(py, move || {
            let mut loader = loader.lock().expect("no holder panics");
            let loader = loader.as_mut().ok_or_else(|| Failure::invalid("the loader is closed"))?;
            loader.next().map_err(|error| failed(&error))
        })?;
        Ok(GraphBatch { batch })
    }

    /// Hits and misses of the cache so far.
    fn hits(&self) -> PyResult<(u64, u64)> {
        let loader = self.loader.lock().expect("no holder panics");
        let hits = loader.as_ref().map(Loader::hits).unwrap_or_default();
        Ok((hits.hits, hits.misses))
    }
}

impl Drop for GraphLoader {
    /// Ends the threads before the rows go. A fork has none of the threads.
    fn drop(&mut self) {
        let loader = self.loader.lock().expect("no holder panics").take();
        match self.lifetime.is_forked() {
            true => std::mem::forget(loader),
            false => drop(loader),
        }
    }
}

/// A mini-batch. Its memory is reused when the object is gone.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct GraphBatch {
    batch: Batch,
}

#[pymethods]
impl GraphBatch {
    /// Pass, and step in the pass.
    #[getter]
    fn position(&self) -> (u64, u32) {
        let position = self.batch.position();
        (position.pass, position.step)
    }

    /// Number of seeds.
    #[getter]
    fn seeds(&self) -> u32 {
        self.batch.sample().seeds
    }

    /// Number of vertices.
    #[getter]
    fn vertices(&self) -> usize {
        self.batch.sample().vertices.len()
    }

    /// Numbers of sources and of edges of every hop, beginning with the seeds' hop.
    #[getter]
    fn hops(&self) -> Vec<(u32, usize)> {
        let blocks = &self.batch.sample().blocks;
        blocks.iter().map(|block| (block.sources, block.neighbors.len())).collect()
    }

    /// Address and bytes of the feature rows, which stay while this object is there.
    #[getter]
    fn rows(&self) -> (usize, usize) {
        let rows = self.batch.rows();
        (rows.as_ptr().addr(), rows.len())
    }

    /// Writes the vertices to an address, as i64.
    fn write_vertices(&self, address: usize) -> PyResult<()> {
        let vertices = &self.batch.sample().vertices;
        let mut out = Memory::rows(address, vertices.len())?;
        let places = out.numbers_mut().iter_mut();
        places.zip(vertices).for_each(|(place, vertex)| *place = u64::from(*vertex));
        Ok(())
    }

    /// Writes the edges of all hops to two addresses, as i64: sources and destinations by their number in the
    /// batch.
    fn write_edges(&self, sources: usize, destinations: usize) -> PyResult<()> {
        let edges = self.batch.sample().edges();
        let mut sources = Memory::rows(sources, edges)?;
        let mut destinations = Memory::rows(destinations, edges)?;
        let (mut sources, mut destinations) = (sources.numbers_mut(), destinations.numbers_mut());
        for block in &self.batch.sample().blocks {
            let (own, left) = sources.split_at_mut(block.neighbors.len());
            own.iter_mut().zip(&block.neighbors).for_each(|(place, it)| *place = u64::from(*it));
            let (own, rest) = destinations.split_at_mut(block.neighbors.len());
            for (destination, column) in block.destinations.clone().zip(block.offsets.windows(2)) {
                own[column[0] as usize..column[1] as usize].fill(u64::from(destination));
            }
            (sources, destinations) = (left, rest);
        }
        Ok(())
    }

    /// Writes the positions of the edges of all hops in the graph to an address, as i64.
    fn write_positions(&self, address: usize) -> PyResult<()> {
        let mut positions = Memory::rows(address, self.batch.sample().edges())?;
        let mut positions = positions.numbers_mut();
        for block in &self.batch.sample().blocks {
            let (own, left) = positions.split_at_mut(block.edges.len());
            own.copy_from_slice(&block.edges);
            positions = left;
        }
        Ok(())
    }
}

/// Copies weights of edges from an address.
pub(crate) fn weights_at(address: usize, edges: usize) -> PyResult<Weights> {
    let memory = Memory::new(address, edges * size_of::<f32>())?;
    let values = memory.bytes().chunks_exact(size_of::<f32>());
    let value = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().expect("chunks of four bytes"));
    Ok(Weights::new(values.map(value).collect()).map_err(invalid)?)
}

/// Error of a batch: a peer's if the source did not give its rows, otherwise the caller's mistake.
fn failed(error: &thinwire_loader::Error) -> Failure {
    let rows = std::error::Error::source(error).and_then(|it| it.downcast_ref());
    let is_peer = rows.is_some_and(|it: &thinwire_rows::Error| it.kind() == Kind::Source);
    if is_peer { Failure::Peer(error.to_string()) } else { invalid(error) }
}

/// Error of a caller's mistake.
pub(crate) fn invalid(error: impl std::fmt::Display) -> Failure {
    Failure::invalid(error.to_string())
}
