//! Options of readers.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Facts about a file that the caller knows, and what of it is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Number of vertices, where the caller knows it.
    pub vertices: Option<u32>,
    /// Columns of an edge list. Without them lines must have two columns.
    pub columns: Option<Columns>,
    /// What happens to weights of edges.
    pub weights: Weighting,
    /// How an edge list or an edge index numbers vertices.
    pub numbering: Numbering,
    /// First line of an edge list.
    pub header: Header,
    /// Whose lists `indices` has, where an archive has `indptr` and `indices` without a `format`.
    pub orientation: Option<Orientation>,
}

/// Numbers of vertices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbering {
    /// From 0 on.
    #[default]
    FromZero,
    /// From 1 on.
    FromOne,
    /// Not at all: vertices have ids, and are numbered in the order of these.
    Ids,
}

/// First line of an edge list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Header {
    /// Names of columns if it begins with a letter, otherwise an edge. Where ids are texts, one that begins with a
    /// letter is refused.
    #[default]
    Guessed,
    /// Names of columns.
    Present,
    /// An edge.
    Absent,
}

/// Neighbours of which an array has a list per vertex.
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

/// Columns of an edge list, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Column of the source.
    pub source: u32,
    /// Column of the destination.
    pub destination: u32,
    /// Column of the weight, if edges have any.
    pub weight: Option<u32>,
}

/// Use of the weights of edges that a file has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weighting {
    /// They are kept; weights that no edge can have are an error.
    #[default]
    Keep,
    /// They are left out, and may be of any sort.
    Drop,
}

impl Columns {
    /// Returns the columns that are read with a use of weights.
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
