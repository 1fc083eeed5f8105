//! Pins: cuts that the user has chosen, `block.*.mlp.up: n=tensor`.
//!
//! A pin names nodes by a pattern, in which `*` stands for any letters, and puts one of their axes on a
//! dimension of the mesh: `data`, the first, or `tensor`, the second, whose devices are nearest to each
//! other. Instead of an axis, `-` stands for none (all ranks do the same work), and `+` for partial sums, if
//! an operator is linear. Operators that place a tensor act as pins of the model itself. Everything else is
//! planned. Pins hold on meshes of two dimensions, one of which may have size 1.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use thinwire_model::{Cut, Declaration, Graph, NodeId, Operator, Place, Split, matches};
use thinwire_program::{MESH_DIMENSIONS, mesh_dimension};

use crate::Error;
use crate::cost::Pinned;

/// Largest number of names in a hint.
const NAMES: usize = 8;

/// Cut that the user has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Text as it was written.
    text: String,
    pattern: String,
    /// Letters of axes, with their mesh dimensions.
    cuts: Vec<(char, usize)>,
}

impl FromStr for Pin {
    type Err = Error;

    fn from_str(text: &str) -> Result<Pin, Error> {
        let form = || {
            let found = format!("pin '{text}', expected NODES: AXIS=DIMENSION");
            Error::impossible(found).with_hint("for instance 'block.*.mlp.up: n=tensor'")
        };
        // Names of nodes may contain colons, cuts cannot.
        let (pattern, cuts) = text.rsplit_once(':').ok_or_else(form)?;
        let cut = |cut: &str| {
            let (axis, dim) = cut.split_once('=').ok_or_else(form)?;
            let mut letters = axis.trim().chars();
            let (Some(letter), None) = (letters.next(), letters.next()) else { return Err(form()) };
            Ok((letter, dimension(dim.trim())?))
        };
        let cuts = cuts.split(',').map(cut).collect::<Result<Vec<_>, _>>()?;
        match pattern.trim() {
            "" => Err(form()),
            pattern => Pin { text: text.to_owned(), pattern: pattern.to_owned(), cuts }.checked(),
        }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Pin {
    /// Refuses a pin that puts two axes on one dimension.
    fn checked(self) -> Result<Pin, Error> {
        let mut known: [Option<char>; MESH_DIMENSIONS.len()] = Default::default();
        for (letter, dim) in &self.cuts {
            if let Some(other) = known[*dim].replace(*letter).filter(|other| other != letter) {
                let (pin, dim) = (&self.text, MESH_DIMENSIONS[*dim][0]);
                let both = format!("pin '{pin}' puts {other} and {letter} on dimension {dim}");
                return Err(Error::impossible(format!("{both}, expected one of them"))
                    .with_hint(format!("leave {other} or {letter} out")));
            }
        }
        Ok(self)
    }

    /// Refuses a mesh without a dimension that the pin names.
    ///
    /// # Errors
    /// Returns an error that names the pin and the mesh.
    pub fn check_mesh(&self, mesh: &[usize]) -> Result<(), Error> {
        let Some((_, dim)) = self.cuts.iter().find(|(_, dim)| *dim >= mesh.len()) else {
            return Ok(());
        };
        let (name, place) = (MESH_DIMENSIONS[*dim][0], dim + 1);
        let found = format!("pin '{self}' is on {name}, dimension {place} of a mesh");
        let mesh: Vec<String> = mesh.iter().map(usize::to_string).collect();
        let (count, mesh) = (mesh.len(), mesh.join(","));
        let error = Error::impossible(format!("{found}, expected at most {count} as in {mesh}"));
        Err(error.with_hint(format!(
            "give a mesh of {place} dimensions, such as 1,{mesh}, or pin the axis to data"
        )))
    }

    /// Returns whether the pin cuts anything on a mesh: every dimension on which it puts an axis has a size
    /// above 1.
    pub(super) fn binds(&self, mesh: &[usize]) -> bool {
        let cuts = self.cuts.iter().filter(|(letter, _)| *letter != '-');
        cuts.into_iter().all(|(_, dim)| mesh.get(*dim).is_none_or(|size| *size > 1))
    }
}

fn dimension(name: &str) -> Result<usize, Error> {
    let unknown = || {
        let found = format!("no dimension of a mesh is called '{name}'");
        let names = MESH_DIMENSIONS.concat().join(", ");
        Error::impossible(format!("{found}, expected one of {names}")).with_hint(
            "data, dp and 0 are the first dimension; tensor, tp and 1 are the second, whose \
             devices are nearest to each other",
        )
    };
    mesh_dimension(name).ok_or_else(unknown)
}

/// Refuses pins that match no node of a model, name no axis of one, or contradict each other.
///
/// # Errors
/// Returns an error for the first such pin, with the names that would be valid.
pub fn check_pins(graph: &Graph, pins: &[Pin]) -> Result<(), Error> {
    pinned(graph, pins).map(|_| ())
}

/// Returns the pinned cuts, by node.
pub(super) fn pinned(graph: &Graph, pins: &[Pin]) -> Result<HashMap<NodeId, Vec<Pinned>>, Error> {
    let mut all: HashMap<NodeId, Vec<(&Pin, Pinned)>> = HashMap::new();
    let placed = placed(graph)?;
    for pin in placed.iter().chain(pins) {
        let fits = |id: &NodeId| matches(&pin.pattern, &graph.nodes[*id].name);
        let nodes: Vec<NodeId> = (0..graph.nodes.len()).filter(fits).collect();
        if nodes.is_empty() {
            return Err(no_node(graph, pin));
        }
        for id in nodes {
            let declaration = graph.declaration(&graph.nodes[id]);
            for (letter, dim) in &pin.cuts {
                let name = &graph.nodes[id].name;
                let new = Pinned { dim: *dim, cut: cut(&declaration, *letter, pin, name)? };
                let known = all.entry(id).or_default();
                let clash = known.iter().find(|(_, one)| one.dim == *dim && one.cut != new.cut);
                if let Some((other, _)) = clash {
                    let both = format!("pins '{other}' and '{pin}' contradict each other");
                    return Err(Error::impossible(format!("{both} at '{name}'"))
                        .with_hint("one axis goes on one dimension; leave one of the pins out"));
                }
                known.push((pin, new));
            }
        }
    }
    let without = |(id, all): (NodeId, Vec<(&Pin, Pinned)>)| {
        (id, all.into_iter().map(|(_, pinned)| pinned).collect())
    };
    Ok(all.into_iter().map(without).collect())
}

/// Returns the pins of operators that place a tensor.
fn placed(graph: &Graph) -> Result<Vec<Pin>, Error> {
    let pin = |(name, place): (&str, &Place)| {
        let cut = |(dim, letter): (&String, &char)| Ok((*letter, dimension(dim)?));
        let texts = place.cuts.iter().map(|(dim, letter)| format!("{letter}={dim}"));
        let text = format!("{name}: {}", texts.collect::<Vec<_>>().join(","));
        let cuts = place.cuts.iter().map(cut).collect::<Result<_, Error>>()?;
        Pin { text, pattern: name.to_owned(), cuts }.checked()
    };
    let places = graph.nodes.iter().filter_map(|node| match &node.operator {
        Operator::Place(place) => Some((&node.name[..], place)),
        _ => None,
    });
    places.map(pin).collect()
}

/// Returns the cut that a letter stands for in an operator.
fn cut(declaration: &Declaration, letter: char, pin: &Pin, node: &str) -> Result<Cut, Error> {
    if letter == '-' {
        return Ok(Cut::Whole);
    }
    if letter == '+' && declaration.linear {
        return Ok(Cut::Sum);
    }
    let can = |axis: &&thinwire_model::Axis| axis.split != Split::Never;
    let known = declaration.axes.iter().filter(can).map(|axis| axis.name.to_string());
    let sums = declaration.linear.then(|| "+".to_owned());
    let known = known.chain(["-".to_owned()]).chain(sums).collect::<Vec<_>>().join(", ");
    match declaration.axis(letter) {
        Some(axis) if declaration.axes[axis].split != Split::Never => Ok(Cut::Axis(axis)),
        Some(_) => {
            let found = format!("pin '{pin}': axis '{letter}' of '{node}' cannot be cut");
            Err(Error::impossible(format!("{found}, expected one of {known}")))
        }
        None => {
            let found = format!("pin '{pin}': '{node}' has no axis '{letter}'");
            Err(Error::impossible(format!("{found}, expected one of {known}")))
        }
    }
}

/// Returns an error that names nodes which the pattern may have meant: nodes with the same last part of the
/// name, or otherwise any.
fn no_node(graph: &Graph, pin: &Pin) -> Error {
    let last = pin.pattern.rsplit('.').next().unwrap_or("");
    let ends = |name: &&str| name.rsplit('.').next() == Some(last);
    let names = || graph.nodes.iter().map(|node| &node.name[..]);
    let alike = names().filter(ends).chain(names().filter(|name| !ends(name)));
    let (count, alike) = (graph.nodes.len(), alike.take(NAMES).collect::<Vec<_>>().join(", "));
    let more = if count > NAMES { ", ..." } else { "" };
    Error::impossible(format!("pin '{pin}' fits none of the model's {count} nodes"))
        .with_hint(format!("nodes are called {alike}{more}"))
}

#[cfg(test)]
mod tests {
    use thinwire_wire::Hint;

    use super::*;

    #[test]
    fn a_mesh_needs_the_dimensions_of_a_pin() {
        let pin: Pin = "*.up: n=tp".parse().unwrap();
        let error = pin.check_mesh(&[4]).unwrap_err();
        let expected =
            "pin '*.up: n=tp' is on tensor, dimension 2 of a mesh, expected at most 1 as in 4";
        assert_eq!(error.to_string(), expected);
        let hint = "give a mesh of 2 dimensions, such as 1,4, or pin the axis to data";
        assert_eq!(error.hint(), Some(hint));
        assert!(
            pin.check_mesh(&[1, 4]).is_ok()
                && "*: b=0".parse::<Pin>().unwrap().check_mesh(&[4]).is_ok()
        );
    }

    #[test]
    fn what_is_no_pin_is_refused_in_one_line() {
        for (text, expected) in [
            ("mlp.up", "pin 'mlp.up', expected NODES: AXIS=DIMENSION"),
            ("mlp.up: n", "pin 'mlp.up: n', expected NODES: AXIS=DIMENSION"),
            ("mlp.up: nn=0", "pin 'mlp.up: nn=0', expected NODES: AXIS=DIMENSION"),
            (
                "mlp.up: n=width",
                "no dimension of a mesh is called 'width', expected one of data, dp, 0, tensor, tp, 1",
            ),
            (
                "*.up: n=tp,k=1",
                "pin '*.up: n=tp,k=1' puts n and k on dimension tensor, expected one of them",
            ),
        ] {
            assert_eq!(text.parse::<Pin>().unwrap_err().to_string(), expected);
        }
        let pin: Pin = "block.*: n=tp, b=0".parse().unwrap();
        assert_eq!(pin.to_string(), "block.*: n=tp, b=0", "a pin is told as it was written");
    }
}
