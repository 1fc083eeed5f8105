//! Parts that do not look at edges.

use thinwire_wire::random::{Key, permutation};

use super::weights::{Options, Weights};

/// Deals training vertices, and then the others, in random order.
pub(super) fn hash(weights: &Weights, options: &Options) -> Vec<u16> {
    let vertices = weights.is_training.len();
    let mut of = vec![0; vertices];
    let mut dealt = [0; 2];
    for vertex in permutation(Key { seed: options.seed, step: 0, tensor: 0 }, vertices as u32) {
        let turn: &mut u32 = &mut dealt[usize::from(weights.is_training[vertex as usize])];
        of[vertex as usize] = (*turn % options.parts) as u16;
        *turn += 1;
    }
    of
}

/// Cuts the vertices, as they are numbered, into ranges of equal weight.
pub(super) fn ranges(weights: &Weights, options: &Options) -> Vec<u16> {
    let (share, last) = (weights.total() / f64::from(options.parts), options.parts - 1);
    let mut before = 0.0;
    let part = |vertex: usize| {
        // The middle of a vertex decides, so that no part has more than half a vertex too much.
        let middle = before + weights.of(vertex) / 2.0;
        before += weights.of(vertex);
        ((middle / share) as u32).min(last) as u16
    };
    (0..weights.is_training.len()).map(part).collect()
}
