//! Files of graphs for Python.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use thinwire_graph::{Contents, Ids, NO_LABEL, Split, Store, name_lost_pages};
use thinwire_loader::Stored;

use crate::error::Failure;
use crate::graph::{Graph, invalid, weights_at};
use crate::memory::Memory;
use crate::row_source::RowSource;
use crate::row_values::Values;

/// A graph in a file of `thinwire graph`, mapped into memory.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct GraphFile {
    store: Arc<Store>,
}

/// Ids of vertices as lists of Python.
#[derive(FromPyObject, IntoPyObject)]
pub(crate) enum IdList {
    Numbers(Vec<i64>),
    Texts(Vec<String>),
}

impl IdList {
    fn into_ids(self) -> Ids {
        match self {
            IdList::Numbers(numbers) => Ids::Numbers(numbers),
            IdList::Texts(texts) => Ids::Texts(texts),
        }
    }
}

#[pymethods]
impl GraphFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<GraphFile> {
        name_lost_pages();
        let store = py.detach(|| Store::open(&path)).map_err(invalid)?;
        Ok(GraphFile { store: Arc::new(store) })
    }

    /// Writes a file. Features are address, columns and format of the rows: f32, f16, or int8, which is
    /// encoded from f32; labels are the address of i64, below 0 for none; the split is the address of bytes:
    /// 0 for none, 1 training, 2 validation, 3 test; weights are the address of f32 by positions of edges, and
    /// types that of i64. Ids are a whole number or a text per vertex.
    #[staticmethod]
    #[pyo3(signature = (path, graph, features = None, labels = None, split = None, bounds = None, weights = None, types = None, ids = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn write(
        py: Python<'_>,
        path: PathBuf,
        graph: &Graph,
        features: Option<(usize, u32, String)>,
        labels: Option<usize>,
        split: Option<usize>,
        bounds: Option<Vec<u32>>,
        weights: Option<usize>,
        types: Option<usize>,
        ids: Option<IdList>,
    ) -> PyResult<()> {
        let vertices = graph.adjacency.vertices() as usize;
        let edges = graph.adjacency.edges() as usize;
        let weights = weights.map(|address| weights_at(address, edges)).transpose()?;
        let types = types.map(|address| Memory::rows(address, vertices)).transpose()?;
        let labels = labels.map(|address| Memory::rows(address, vertices)).transpose()?;
        let split = split.map(|address| Memory::new(address, vertices)).transpose()?;
        let features = features.map(|about| Values::new(about, vertices)).transpose()?;
        let ids = ids.map(IdList::into_ids);
        let written = py.detach(|| {
            let label = |label: &u64| u32::try_from(*label).unwrap_or(NO_LABEL);
            let labels: Option<Vec<u32>> =
                labels.map(|labels| labels.numbers().iter().map(label).collect());
            let number = |number: &u64| u32::try_from(*number).unwrap_or(u32::MAX);
            let types: Option<Vec<u32>> =
                types.map(|types| types.numbers().iter().map(number).collect());
            let of_byte = |byte: &u8| Split::from_byte(*byte).unwrap_or(Split::None);
            let split: Option<Vec<Split>> =
                split.map(|split| split.bytes().iter().map(of_byte).collect());
            let row = |vertex: u32, out: &mut [u8]| {
                let values = features.as_ref().expect("rows are written of features alone");
                values.encode(vertex as usize, out);
            };
            let name = features.as_ref().map(|values| values.format.to_string());
            let features = features.as_ref().zip(name.as_ref()).map(|(values, format)| {
                let (columns, width) = (values.columns as u32, values.width() as u32);
                thinwire_graph::Features { format, columns, width, row: &row }
            });
            // The caller's numbers are those before parts were made.
            let numbers = |_: &Vec<u32>| (0..graph.adjacency.vertices()).collect();
            let origins: Vec<u32> = bounds.as_ref().map_or_else(Vec::new, numbers);
            let contents = Contents {
                graph: &graph.adjacency,
                weights: weights.as_ref(),
                types: types.as_deref(),
                features,
                labels: labels.as_deref(),
                split: split.as_deref(),
                parts: bounds.as_deref().map(|bounds| (bounds, &origins[..])),
                ids: ids.as_ref(),
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
        if start > end || end > vertices {
            let text = format!("rows {start}..{end}, expected rows of 0..{vertices}");
            return Err(Failure::invalid(text).into());
        }
        let rows = Stored::of(self.store.clone(), start..end);
        let rows = rows.ok_or_else(|| Failure::invalid("the graph has no features"))?;
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

    /// Writes the weights to an address, as f32 by positions of edges.
    fn write_weights(&self, address: usize) -> PyResult<()> {
        let weights =
            self.store.weights().ok_or_else(|| Failure::invalid("the graph has no weights"))?;
        let bytes: &[u8] = bytemuck::cast_slice(weights.values());
        Memory::new(address, bytes.len())?.bytes_mut().copy_from_slice(bytes);
        Ok(())
    }

    /// Writes the type of every vertex to an address, as i64.
    fn write_types(&self, address: usize) -> PyResult<()> {
        let (types, _) =
            self.store.types().ok_or_else(|| Failure::invalid("the graph has no types"))?;
        let mut out = Memory::rows(address, types.len())?;
        out.numbers_mut().iter_mut().zip(types).for_each(|(place, it)| *place = u64::from(*it));
        Ok(())
    }

    /// Whether edges have weights, and whether vertices have types.
    #[getter]
    fn extras(&self) -> (bool, bool) {
        (self.store.weights().is_some(), self.store.types().is_some())
    }

    /// Writes the use of every vertex to an address, as bytes: 0 for none, 1 training, 2 validation, 3 test.
    fn write_split(&self, address: usize) -> PyResult<()> {
        let vertices = self.store.adjacency().vertices() as usize;
        let uses = self.store.split().unwrap_or_else(|| vec![Split::None; vertices]);
        let mut out = Memory::new(address, vertices)?;
        out.bytes_mut().iter_mut().zip(uses).for_each(|(place, split)| *place = split as u8);
        Ok(())
    }

    /// The ids that vertices had where the graph came from, whole numbers or texts, if it has them.
    fn ids(&self) -> Option<IdList> {
        self.store.ids().map(|ids| match ids {
            Ids::Numbers(numbers) => IdList::Numbers(numbers),
            Ids::Texts(texts) => IdList::Texts(texts),
        })
    }

    /// Writes the number that every vertex had before parts were made to an address, as i64.
    fn write_origins(&self, address: usize) -> PyResult<()> {
        let origins = self.store.origins();
        let mut out = Memory::rows(address, origins.len())?;
        out.numbers_mut().iter_mut().zip(origins).for_each(|(place, it)| *place = u64::from(*it));
        Ok(())
    }

    /// Compares the whole file with its checksums.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.store.verify()).map_err(invalid)?)
    }

    /// First vertices of the parts, and the number of vertices; empty if there are none.
    #[getter]
    fn bounds(&self) -> Vec<u32> {
        self.store.bounds().to_vec()
    }
}
