//! Random walks along in-neighbours, the way that messages come from.

use thinwire_wire::random::Key;

use super::stream::Stream;
use crate::adjacency::Adjacency;
use crate::error::Error;

/// Entry of a walk after its end.
pub const NO_VERTEX: u32 = u32::MAX;

/// Replaces `walks` by a random walk of `length` steps from each start: `length + 1` vertices, of which the
/// first is the start. A walk ends early at a vertex without in-neighbours; [`NO_VERTEX`] follows.
///
/// # Errors
/// If a start is not a vertex.
pub fn walk(
    graph: &Adjacency,
    starts: &[u32],
    length: u32,
    key: Key,
    walks: &mut Vec<u32>,
) -> Result<(), Error> {
    if let Some(place) = starts.iter().position(|start| *start >= graph.vertices()) {
        let name = format!("start {place}");
        return Err(Error::vertex(&name, u64::from(starts[place]), graph.vertices()));
    }
    walks.clear();
    walks.resize(starts.len() * (length as usize + 1), NO_VERTEX);
    let mut stream = Stream::new(key);
    for (start, walk) in starts.iter().zip(walks.chunks_exact_mut(length as usize + 1)) {
        walk[0] = *start;
        for step in 1..walk.len() {
            let neighbors = graph.neighbors(walk[step - 1]);
            if neighbors.is_empty() {
                break;
            }
            walk[step] = neighbors[stream.below(neighbors.len() as u32) as usize];
        }
    }
    Ok(())
}
