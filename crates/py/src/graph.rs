//! Graphs and their mini-batches for Python.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use serde::Deserialize;
use thinwire_graph::{
    Adjacency, Batches, Contents, Draw, FanOut, Frontier, NO_LABEL, Position, Sampling, Split,
    Store,
};
use thinwire_loader::{Batch, Features, Loader, Options, Policy};
use thinwire_rows::{Frozen, Source};
use thinwire_wire::DType;

use crate::error::Failure;
use crate::lifetime::Lifetime;
use crate::memory::Memory;
use crate::row_source::RowSource;
use crate::wait;

/// In-neighbours of every vertex.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Graph {
    adjacency: Arc<Adjacency>,
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
}

/// A graph in a file of `thinwire graph`, mapped into memory.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct GraphFile {
    store: Store,
}

#[pymethods]
impl GraphFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<GraphFile> {
        let store = py.detach(|| Store::open(&path)).map_err(invalid)?;
        Ok(GraphFile { store })
    }

    /// Writes a file. Features are address, columns and format of the rows, f32 or f16; labels are the
    /// address of i64, below 0 for none; the split is the address of bytes: 0 for none, 1 training,
    /// 2 validation, 3 test.
    #[staticmethod]
    #[pyo3(signature = (path, graph, features = None, labels = None, split = None, bounds = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn write(
        py: Python<'_>,
        path: PathBuf,
        graph: &Graph,
        features: Option<(usize, u32, String)>,
        labels: Option<usize>,
        split: Option<usize>,
        bounds: Option<Vec<u32>>,
    ) -> PyResult<()> {
        let vertices = graph.adjacency.vertices() as usize;
        let labels = labels.map(|address| Memory::rows(address, vertices)).transpose()?;
        let split = split.map(|address| Memory::new(address, vertices)).transpose()?;
        let dtype = |(address, columns, format): (usize, u32, String)| {
            let dtype: DType = format.parse().map_err(invalid)?;
            let memory = Memory::of(address, vertices * columns as usize, dtype)?;
            Ok::<_, Failure>((memory, columns, columns as usize * dtype.size(), format))
        };
        let features = features.map(dtype).transpose()?;
        let written = py.detach(|| {
            let label = |label: &u64| u32::try_from(*label).unwrap_or(NO_LABEL);
            let labels: Option<Vec<u32>> =
                labels.map(|labels| labels.numbers().iter().map(label).collect());
            let of_byte = |byte: &u8| Split::from_byte(*byte).unwrap_or(Split::None);
            let split: Option<Vec<Split>> =
                split.map(|split| split.bytes().iter().map(of_byte).collect());
            let row = |vertex: u32, out: &mut [u8]| {
                let Some((memory, _, width, _)) = &features else { return };
                out.copy_from_slice(&memory.bytes()[vertex as usize * width..][..*width]);
            };
            let features =
                features.as_ref().map(|(_, columns, width, format)| thinwire_graph::Features {
                    format,
                    columns: *columns,
                    width: *width as u32,
                    row: &row,
                });
            // The caller's numbers are those before parts were made.
            let numbers = |_: &Vec<u32>| (0..graph.adjacency.vertices()).collect();
            let origins: Vec<u32> = bounds.as_ref().map_or_else(Vec::new, numbers);
            let contents = Contents {
                graph: &graph.adjacency,
                features,
                labels: labels.as_deref(),
                split: split.as_deref(),
                parts: bounds.as_deref().map(|bounds| (bounds, &origins[..])),
            };
            thinwire_graph::write(&path, &contents)
        });
        Ok(written.map_err(invalid)?)
    }

    /// The topology, which shares the file's memory.
    fn graph(&self) -> Graph {
        Graph { adjacency: Arc::new(self.store.adjacency().clone()) }
    }

    /// Format of the features and numbers per row, if there are features.
    #[getter]
    fn format(&self) -> Option<(String, u32)> {
        self.store.features().map(|rows| (rows.format, rows.columns))
    }

    /// The features of vertices `start..end`.
    fn rows(&self, start: u32, end: u32) -> PyResult<RowSource> {
        let vertices = self.store.adjacency().vertices();
        let about =
            self.store.features().ok_or_else(|| Failure::invalid("the graph has no features"))?;
        if start > end || end > vertices {
            let text = format!("rows {start}..{end}, expected rows of 0..{vertices}");
            return Err(Failure::invalid(text).into());
        }
        let (width, rows) = (about.width as usize, u64::from(end - start));
        let offset = about.offset + u64::from(start) * u64::from(about.width);
        let rows = Frozen::open(self.store.path(), offset, rows, width).map_err(invalid)?;
        Ok(RowSource::of_source(rows, u64::from(end - start)))
    }

    /// Number of classes, if there are labels.
    #[getter]
    fn classes(&self) -> Option<u32> {
        self.store.labels().map(|(_, classes)| classes)
    }

    /// Writes the labels to an address, as i64; -1 where a vertex has none.
    fn write_labels(&self, address: usize) -> PyResult<()> {
        let (labels, _) =
            self.store.labels().ok_or_else(|| Failure::invalid("the graph has no labels"))?;
        let mut out = Memory::rows(address, labels.len())?;
        for (place, label) in out.numbers_mut().iter_mut().zip(labels) {
            *place = if *label == NO_LABEL { u64::MAX } else { u64::from(*label) };
        }
        Ok(())
    }

    /// Writes the use of every vertex to an address, as bytes: 0 for none, 1 training, 2 validation, 3 test.
    fn write_split(&self, address: usize) -> PyResult<()> {
        let vertices = self.store.adjacency().vertices() as usize;
        let uses = self.store.split().unwrap_or_else(|| vec![Split::None; vertices]);
        let mut out = Memory::new(address, vertices)?;
        out.bytes_mut().iter_mut().zip(uses).for_each(|(place, split)| *place = split as u8);
        Ok(())
    }

    /// First vertices of the parts, and the number of vertices; empty if there are none.
    #[getter]
    fn bounds(&self) -> Vec<u32> {
        self.store.bounds().to_vec()
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
    fn sampling(&self) -> Sampling {
        let fan_out = |limit: &Option<u32>| limit.map_or(FanOut::All, FanOut::Limit);
        Sampling {
            fan_outs: self.fan_outs.iter().map(fan_out).collect(),
            draw: if self.replace { Draw::Repeated } else { Draw::Distinct },
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

    fn options(&self) -> Options {
        let mut options = Options::new(self.sampling(), self.rank);
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
    steps: u32,
    lifetime: Lifetime,
    _rows: Py<RowSource>,
}

#[pymethods]
impl GraphLoader {
    /// A loader of the batches of `seeds`, address and number of i64. `rows` are the features of all
    /// vertices.
    #[new]
    fn new(
        py: Python<'_>,
        graph: &Graph,
        rows: Py<RowSource>,
        seeds: (usize, usize),
        options: &str,
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
        let (steps, features) =
            (batches.steps(), described.features(Arc::clone(&rows.get().source))?);
        let adjacency = Arc::clone(&graph.adjacency);
        let start = || Loader::start(adjacency, batches, features, described.options());
        let loader = py.detach(start).map_err(invalid)?;
        let loader = Arc::new(Mutex::new(Some(loader)));
        Ok(GraphLoader { loader, steps, lifetime: Lifetime::new(), _rows: rows })
    }

    /// Number of batches of this rank in a pass.
    #[getter]
    fn steps(&self) -> u32 {
        self.steps
    }

    /// The next batch, once it is loaded.
    fn next(&self, py: Python<'_>) -> PyResult<GraphBatch> {
        self.lifetime.check()?;
        let loader = Arc::clone(&self.loader);
        let batch = wait::for_work(py, move || {
            let mut loader = loader.lock().expect("no holder panics");
            let loader = loader.as_mut().ok_or_else(|| Failure::invalid("the loader is closed"))?;
            loader.next().map_err(invalid)
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

/// A mini-batch. Its memory is used again when the object is gone.
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

    /// Number of sources and of edges of every hop, that of the seeds first.
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

    /// Writes the edges of all hops to three addresses, as i64: sources and destinations by their number in
    /// the batch, and positions in the graph.
    fn write_edges(&self, sources: usize, destinations: usize, positions: usize) -> PyResult<()> {
        let edges = self.batch.sample().edges();
        let mut sources = Memory::rows(sources, edges)?;
        let mut destinations = Memory::rows(destinations, edges)?;
        let mut positions = Memory::rows(positions, edges)?;
        let mut first = 0;
        for block in &self.batch.sample().blocks {
            let part = first..first + block.neighbors.len();
            first = part.end;
            let neighbors = block.neighbors.iter().map(|source| u64::from(*source));
            sources.numbers_mut()[part.clone()].iter_mut().zip(neighbors).for_each(|(a, b)| *a = b);
            positions.numbers_mut()[part.clone()].copy_from_slice(&block.edges);
            let out = &mut destinations.numbers_mut()[part];
            for (destination, column) in block.destinations.clone().zip(block.offsets.windows(2)) {
                out[column[0] as usize..column[1] as usize].fill(u64::from(destination));
            }
        }
        Ok(())
    }
}

fn invalid(error: impl std::fmt::Display) -> Failure {
    Failure::invalid(error.to_string())
}
