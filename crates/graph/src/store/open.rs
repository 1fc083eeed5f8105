//! A graph in a mapped file.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Crc;

use super::ids::Ids;
use super::layout::{FeatureRows, HEADER_BYTES, Header, IdTable, Layout};
use super::map::{Map, Opened};
use crate::adjacency::Adjacency;
use crate::array::Array;
use crate::error::Error;
use crate::sample::Weights;
use crate::store::{NO_LABEL, Split, ensure_little_endian};

/// Graph in a file that is mapped into memory, with the data of its vertices.
///
/// Processes that open the same file share its pages. The file must not be changed in place while it is open;
/// [`write`](super::write()) replaces files and never changes one. [`Store::ensure_unchanged`], which a
/// loader calls with every batch, detects such a change; data that was read before the call may be wrong.
/// Reading beyond the new end of the file ends the process ([`name_lost_pages`](super::name_lost_pages)).
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    map: Arc<Map>,
    header: Header,
    layout: Layout,
    adjacency: Adjacency,
    weights: Option<Weights>,
}

impl Store {
    /// Opens a file and checks its header, topology and weights. For this, it reads topology and weights
    /// once.
    ///
    /// # Errors
    /// If the file cannot be read, is not a graph's file, is damaged, or is shorter or longer than its header
    /// says.
    pub fn open(path: &Path) -> Result<Store, Error> {
        open(path).map_err(|error| error.of_file(path))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the topology, which borrows from the file.
    pub fn adjacency(&self) -> &Adjacency {
        &self.adjacency
    }

    /// Returns the weights of edges by their positions, if edges have weights. They borrow from the file.
    pub fn weights(&self) -> Option<&Weights> {
        self.weights.as_ref()
    }

    /// Returns the types of all vertices and the number of types, if vertices have types.
    pub fn types(&self) -> Option<(&[u32], u32)> {
        let types = self.header.types?;
        Some((self.numbers(&self.layout.types), types))
    }

    /// Returns the position of the rows of features, if vertices have features.
    pub fn features(&self) -> Option<FeatureRows> {
        let (format, columns, width) = self.header.features.clone()?;
        Some(FeatureRows { format, columns, width, offset: self.layout.features.start })
    }

    /// Returns the row of a vertex's features; an empty row if vertices have no features.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn row(&self, vertex: u32) -> &[u8] {
        assert!(vertex < self.header.vertices, "no vertex {vertex}");
        let width = self.header.features.as_ref().map_or(0, |(_, _, width)| *width as usize);
        &self.bytes(&self.layout.features)[vertex as usize * width..][..width]
    }

    /// Returns the labels of all vertices, [`NO_LABEL`] for those without one, and the number of classes.
    pub fn labels(&self) -> Option<(&[u32], u32)> {
        let classes = self.header.classes?;
        Some((self.numbers(&self.layout.labels), classes))
    }

    /// Returns the vertices with this use, in ascending order.
    pub fn vertices_of(&self, split: Split) -> Vec<u32> {
        let uses = self.bytes(&self.layout.split);
        (0..)
            .zip(uses)
            .filter(|(_, byte)| **byte == split as u8)
            .map(|(vertex, _)| vertex)
            .collect()
    }

    /// Returns the number of vertices with this use.
    pub fn count_of(&self, split: Split) -> u64 {
        let uses = self.bytes(&self.layout.split).iter();
        uses.filter(|byte| **byte == split as u8).count() as u64
    }

    /// Returns the use of every vertex, if the graph has a split.
    pub fn split(&self) -> Option<Vec<Split>> {
        let uses = self.bytes(&self.layout.split).iter();
        self.header.has_split.then(|| uses.filter_map(|byte| Split::from_byte(*byte)).collect())
    }

    /// Returns the bounds of parts: part `p` has vertices `bounds[p]..bounds[p + 1]`. Empty if the graph was
    /// not partitioned.
    pub fn bounds(&self) -> &[u32] {
        self.numbers(&self.layout.bounds)
    }

    /// Returns the number that every vertex had before parts were made. Empty if the graph was not
    /// partitioned.
    pub fn origins(&self) -> &[u32] {
        self.numbers(&self.layout.origins)
    }

    /// Returns the ids of the vertices in the data from which the graph was imported, if the import has
    /// numbered the vertices.
    pub fn ids(&self) -> Option<Ids> {
        let ids = self.bytes(&self.layout.ids);
        match self.header.ids? {
            IdTable::Numbers => Some(Ids::Numbers(bytemuck::cast_slice(ids).to_vec())),
            IdTable::Texts(_) => {
                let (ends, texts) = (bytemuck::cast_slice(ids), self.bytes(&self.layout.texts));
                let text = |ends: &[u64]| {
                    let bytes = texts.get(ends[0] as usize..ends[1] as usize).unwrap_or_default();
                    String::from_utf8_lossy(bytes).into_owned()
                };
                Some(Ids::Texts(ends.windows(2).map(text).collect()))
            }
        }
    }

    /// Reads the whole file and compares it with its checksums.
    ///
    /// # Errors
    /// If an array differs from what was written, or the file is of version 1, which has no checksums.
    pub fn verify(&self) -> Result<(), Error> {
        let found = self.compare_sums().map_err(|error| error.of_file(&self.path));
        self.ensure_unchanged()?;
        found
    }

    /// Checks that the file was not changed since it was opened.
    ///
    /// # Errors
    /// If the file was changed; data that was read after the change may be wrong.
    pub fn ensure_unchanged(&self) -> Result<(), Error> {
        self.map.ensure_unchanged()
    }

    fn compare_sums(&self) -> Result<(), Error> {
        let Some(sums) = self.header.sums else {
            let error = Error::format(
                "the file is of version 1, which has no checksums of its arrays".to_owned(),
            );
            return Err(error.with_hint(
                "import or generate the graph again; thinwire graph \
                partition also writes checksums",
            ));
        };
        let mut start = HEADER_BYTES as u64;
        for ((array, place), expected) in self.layout.arrays().into_iter().zip(sums) {
            let mut sum = Crc::new();
            sum.update(self.bytes(&(start..place.end)));
            start = place.end;
            if sum.sum() != expected {
                let found = sum.sum();
                let error = format!("checksum of {array} {found:08x}, expected {expected:08x}");
                let hint = "the file is damaged: import or generate it again";
                return Err(Error::format(error).with_hint(hint));
            }
        }
        Ok(())
    }

    fn bytes(&self, range: &Range<u64>) -> &[u8] {
        &self.map[range.start as usize..range.end as usize]
    }

    fn numbers(&self, range: &Range<u64>) -> &[u32] {
        bytemuck::cast_slice(self.bytes(range))
    }

    /// Checks the data of the vertices.
    fn check(&self) -> Result<(), Error> {
        let vertices = self.header.vertices;
        let wrong = |what: String| Err(Error::format(what));
        if let Some((labels, classes)) = self.labels()
            && let Some(label) =
                labels.iter().find(|label| **label >= classes && **label != NO_LABEL)
        {
            return wrong(format!("label {label}, expected labels of 0..{classes}"));
        }
        if let Some((numbers, types)) = self.types()
            && let Some(number) = numbers.iter().find(|number| **number >= types)
        {
            return wrong(format!("type {number} of a vertex, expected types of 0..{types}"));
        }
        let uses = self.bytes(&self.layout.split);
        if let Some(byte) = uses.iter().find(|byte| Split::from_byte(**byte).is_none()) {
            return wrong(format!("a vertex has use {byte}, expected 0 to 3"));
        }
        let bounds = self.bounds();
        let ends = (bounds.first(), bounds.last());
        if self.header.parts.is_some()
            && (ends != (Some(&0), Some(&vertices)) || !bounds.is_sorted())
        {
            return wrong(format!("bounds of parts that do not ascend from 0 to {vertices}"));
        }
        if let Some(IdTable::Texts(size)) = self.header.ids {
            let ends: &[u64] = bytemuck::cast_slice(self.bytes(&self.layout.ids));
            let texts = std::str::from_utf8(self.bytes(&self.layout.texts));
            let is_start = |end: &u64| {
                let is_start = |texts: &str| texts.is_char_boundary(*end as usize);
                *end <= size && texts.as_ref().is_ok_and(|texts| is_start(texts))
            };
            let is_whole = (ends.first(), ends.last()) == (Some(&0), Some(&size));
            if !(is_whole && ends.is_sorted() && ends.iter().all(is_start)) {
                return wrong(format!("ids that are no texts of {size} bytes together"));
            }
        }
        let mut seen = vec![false; self.origins().len()];
        for origin in self.origins() {
            match seen.get_mut(*origin as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    return wrong(format!(
                        "vertex {origin} is twice in origins, or not below \
                        {vertices}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns the length of the file that begins with these bytes, which must be at least 128.
///
/// # Errors
/// If they are not a header of a graph's file, or it is damaged or contradicts itself.
pub fn file_length(start: &[u8]) -> Result<u64, Error> {
    let start = &start[..start.len().min(HEADER_BYTES)];
    Ok(Header::decode(start)?.layout()?.1)
}

fn open(path: &Path) -> Result<Store, Error> {
    ensure_little_endian()?;
    let failed = |error| Error::io("cannot open", error);
    let opened = Opened::new(path).map_err(failed)?;
    let length = opened.length();
    if length < HEADER_BYTES as u64 {
        return Err(Error::format(format!(
            "{length} bytes, expected a header of {HEADER_BYTES} bytes"
        )));
    }
    let start: [u8; HEADER_BYTES] = opened.read_start().map_err(failed)?;
    let header = Header::decode(&start)?;
    let (layout, end) = header.layout()?;
    if length != end {
        return Err(Error::format(format!("{length} bytes, expected {end} by the header")));
    }
    let map = Arc::new(opened.map().map_err(failed)?);
    if map.len() as u64 != end {
        map.ensure_unchanged()?;
    }
    let range = |range: &Range<u64>| range.start as usize..range.end as usize;
    let offsets = Array::mapped(&map, range(&layout.offsets));
    let neighbors = Array::mapped(&map, range(&layout.neighbors));
    let adjacency = Adjacency::from_arrays(offsets, neighbors)?;
    let weights = Array::mapped(&map, range(&layout.weights));
    let weights = header.has_weights.then(|| Weights::from_array(weights)).transpose()?;
    let store = Store { path: path.to_owned(), map, header, layout, adjacency, weights };
    store.check()?;
    Ok(store)
}
