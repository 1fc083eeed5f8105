//! The blocks of each chunk of a pipeline.
//!
//! If stages have several chunks, chunks go around the stages: chunk c is on stage c mod p. Blocks are
//! divided so that each stage keeps about the work of its range of blocks. Law: chunks contain all blocks, in
//! order, and none is empty.

use std::ops::Range;

use thinwire_model::Graph;

/// Returns the blocks of every chunk, in the pipeline's order. Stage i has about the work of the blocks
/// `stages[i]`, and all stages have the same number of chunks.
///
/// # Panics
/// If there are more chunks than blocks.
pub fn deal(graph: &Graph, stages: &[Range<usize>], chunks: usize) -> Vec<Range<usize>> {
    if chunks == 1 {
        return stages.to_vec();
    }
    let flops = |block: usize| -> f64 {
        let nodes = &graph.nodes[graph.blocks[block].nodes.clone()];
        1.0 + nodes.iter().map(|node| graph.declaration(node).flops).sum::<f64>()
    };
    let work: Vec<f64> = (0..graph.blocks.len()).map(flops).collect();
    let share = |stage: &Range<usize>| work[stage.clone()].iter().sum::<f64>() / chunks as f64;
    let shares: Vec<f64> = stages.iter().map(share).collect::<Vec<_>>().repeat(chunks);
    dealt(&work, &shares)
}

/// Divides blocks in order, so that every chunk has about its share of the work, and at least one block.
fn dealt(work: &[f64], shares: &[f64]) -> Vec<Range<usize>> {
    assert!(shares.len() <= work.len(), "{} chunks for {} blocks", shares.len(), work.len());
    let mut chunks = Vec::new();
    let (mut start, mut done, mut wanted) = (0, 0.0, 0.0);
    for (chunk, share) in shares.iter().enumerate() {
        wanted += share;
        let last = work.len() - (shares.len() - chunk - 1);
        let mut end = start;
        while end < last
            && (end == start || chunk + 1 == shares.len() || done + work[end] / 2.0 <= wanted)
        {
            done += work[end];
            end += 1;
        }
        chunks.push(start..end);
        start = end;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_their_shares() {
        // An embedding, eight layers and a head, on two stages of two chunks.
        let work = [1.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 4.0];
        let chunks = dealt(&work, &[16.5, 18.0, 16.5, 18.0]);
        assert_eq!(chunks, [0..3, 3..5, 5..7, 7..10]);
        let chunks = dealt(&[1.0, 1.0, 1.0], &[3.0, 0.0, 0.0]);
        assert_eq!(chunks, [0..1, 1..2, 2..3]);
    }
}
