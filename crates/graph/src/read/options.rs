//! Options of readers.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Facts about a file that the caller knows, and the parts of it to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Number of vertices, if the caller knows it.
    pub vertices: Option<u32>,
    /// Columns of an edge list. Without them, lines must have two columns.
    pub columns: Option<Columns>,
    /// Treatment of weights of edges.
    pub weights: Weighting,
    /// Numbering of vertices in an edge list or an edge index.
    pub numbering: Numbering,
    /// First line of an edge list.
    pub header: Header,
    /// Neighbours that `indices` lists, for an archive with `indptr` and `indices` but without `format`.
    pub orientation: Option<Orientation>,
}

/// Numbering of vertices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbering {
    /// From 0.
    #[default]
    FromZero,
    /// From 1.
    FromOne,
    /// No numbering: vertices have ids, and are numbered in the order of their ids.
    Ids,
}

/// First line of an edge list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Header {
    /// Names of columns if it begins with a letter, otherwise an edge. If ids are texts, a first line that
    /// begins with a letter is refused.
    #[default]
    Guessed,
    /// Names of columns.
    Present,
    /// An edge.
    Absent,
}

/// Neighbours that an array lists for each vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orientation {
    /// In-neighbours: a matrix in compressed sparse columns.
    In,
    /// Out-neighbours: a matrix in compressed sparse rows.
    Out,
}

impl FromStr for Orientation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Orientation, Error> {
        match text {
            "in" => Ok(Orientation::In),
            "out" => Ok(Orientation::Out),
            _ => Err(Error::value(format!("orientation '{text}', expected in or out"))),
        }
    }
}

impl fmt::Display for Orientation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Orientation::In => "in",
            Orientation::Out => "out",
        })
    }
}

/// Columns of an edge list, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Column of the source.
    pub source: u32,
    /// Column of the destination.
    pub destination: u32,
    /// Column of the weight, if edges have weights.
    pub weight: Option<u32>,
}

/// Treatment of the weights of edges in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weighting {
    /// Weights are kept; weights that an edge cannot have are an error.
    #[default]
    Keep,
    /// Weights are left out, and may have any values.
    Drop,
}

impl Columns {
    /// Returns the columns to read, given the treatment of weights.
    pub(super) fn kept(self, weights: Weighting) -> Columns {
        match weights {
            Weighting::Keep => self,
            Weighting::Drop => Columns { weight: None, ..self },
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Columns { source, destination, weight } = *self;
        let is_same = source == destination || [source, destination].map(Some).contains(&weight);
        if !is_same && source.min(destination).min(weight.unwrap_or(1)) > 0 {
            return Ok(());
        }
        let weight = weight.map_or_else(String::new, |weight| format!(", weight {weight}"));
        let what = format!("columns of source {source}, destination {destination}{weight}");
        Err(Error::value(format!("{what}, expected different ones of at least 1")))
    }
}
