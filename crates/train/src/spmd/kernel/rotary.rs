//! Rotary positions: a table of rotations per position, and one pass over the features.

use rayon::prelude::*;
use thinwire_model::{Region, Rotary};

use super::operands::operands;
use crate::spmd::value::Value;

/// Rotates pairs of features by an angle that grows with the position.
pub fn rotary(rotary: &Rotary, inputs: Vec<Value>, region: &Region<'_>) -> Value {
    let [x] = operands(inputs);
    let (head, half) = (rotary.head_size, rotary.head_size / 2);
    let (tokens, [_, features]) = (x.shape()[1], x.rows());
    let turns = turns(rotary, region.part('s').start, tokens);
    x.edited(|values| {
        let rows = values.par_chunks_mut(features.max(1)).enumerate();
        rows.for_each(|(row, values)| {
            let turns = &turns[row % tokens * half..][..half];
            for head in values.chunks_exact_mut(head) {
                let (lower, upper) = head.split_at_mut(half);
                for ((a, b), [sine, cosine]) in lower.iter_mut().zip(upper).zip(turns) {
                    (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
                }
            }
        });
    })
}

/// Returns sine and cosine of every position's angles.
fn turns(rotary: &Rotary, first: usize, tokens: usize) -> Vec<[f32; 2]> {
    let half = rotary.head_size / 2;
    let turn = |index: usize| {
        let (token, feature) = (index / half, index % half);
        let slowness = rotary.base.powf(feature as f64 / half as f64);
        let angle = (first + token) as f64 / slowness;
        let (sine, cosine) = if rotary.back { -angle } else { angle }.sin_cos();
        [sine as f32, cosine as f32]
    };
    (0..tokens * half).map(turn).collect()
}
