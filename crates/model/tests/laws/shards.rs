//! Shards: what the ranks of a mesh have of a tensor, made from the whole and brought together.

use thinwire_model::{Array, Layout, Part, Placement, Reduction};
use thinwire_wire::random::Key;

/// The coordinates of all ranks.
pub fn ranks(mesh: &[usize]) -> Vec<Vec<usize>> {
    let mut ranks = Vec::new();
    Array::each_index(mesh, |coordinates| ranks.push(coordinates.to_vec()));
    ranks
}

/// What each rank has of a tensor; partial values are random ones that come to the tensor.
pub fn scatter(whole: &Array, layout: &Layout, mesh: &[usize], seed: u64) -> Vec<Array> {
    let mut shards = vec![whole.clone()];
    for (at, (placement, size)) in layout.0.iter().zip(mesh).enumerate() {
        let key = Key { seed, step: 2, tensor: at as u32 };
        shards = shards.iter().flat_map(|shard| cut(shard, *placement, *size, key)).collect();
    }
    shards
}

/// The tensor that the ranks have together.
///
/// # Panics
/// If ranks that should have the same do not.
pub fn gather(mut shards: Vec<Array>, layout: &Layout, mesh: &[usize]) -> Array {
    for (placement, size) in layout.0.iter().zip(mesh).rev() {
        shards = shards.chunks(*size).map(|shards| join(shards, *placement)).collect();
    }
    assert_eq!(shards.len(), 1);
    shards.remove(0)
}

/// A part of a dimension and all of the others.
pub fn slice(array: &Array, dim: usize, start: usize, length: usize) -> Array {
    let mut parts: Vec<Part> =
        array.shape().iter().map(|length| Part { start: 0, length: *length }).collect();
    parts[dim] = Part { start, length };
    array.slice(&parts)
}

/// Arrays one after the other along a dimension.
pub fn concat(arrays: &[Array], dim: usize) -> Array {
    let length = arrays[0].shape()[dim];
    let mut shape = arrays[0].shape().to_vec();
    shape[dim] = length * arrays.len();
    Array::from_fn(shape, |at| {
        let mut place = at.to_vec();
        place[dim] = at[dim] % length;
        arrays[at[dim] / length].at(&place)
    })
}

/// Partial values brought together.
pub fn reduce(arrays: &[Array], reduction: Reduction) -> Array {
    let mut total = Array::full(arrays[0].shape(), reduction.identity());
    for array in arrays {
        let values = total.values_mut().iter_mut().zip(array.values());
        values.for_each(|(a, b)| *a = reduction.combine(*a, *b));
    }
    total
}

pub fn assert_close(actual: &Array, expected: &Array, tolerance: f64, what: &dyn Fn() -> String) {
    assert_eq!(actual.shape(), expected.shape(), "{}", what());
    for (a, b) in actual.values().iter().zip(expected.values()) {
        let close = a == b || (a - b).abs() <= tolerance * (1.0 + b.abs());
        assert!(close, "{}: {a} is not {b}", what());
    }
}

fn cut(whole: &Array, placement: Placement, size: usize, key: Key) -> Vec<Array> {
    match placement {
        Placement::Replicated => vec![whole.clone(); size],
        Placement::Sharded(dim) => {
            let length = whole.shape()[dim] / size;
            (0..size).map(|at| slice(whole, dim, at * length, length)).collect()
        }
        Placement::Partial(reduction) => partial(whole, reduction, size, key),
    }
}

/// Random values that come to the whole: all but the last are anything small enough.
fn partial(whole: &Array, reduction: Reduction, size: usize, key: Key) -> Vec<Array> {
    let mut parts = vec![whole.clone(); size];
    for (place, value) in whole.values().iter().enumerate() {
        let random = |at: usize| f64::from(key.normal((place * size + at) as u64));
        let owner = key.below(place as u64, size as u32) as usize;
        let mut sum = 0.0;
        for at in (0..size).filter(|at| *at != owner) {
            let part = match reduction {
                Reduction::Sum => random(at),
                Reduction::Max => value - random(at).abs(),
                Reduction::LogSumExp => value - 3.0 - random(at).abs(),
            };
            parts[at].values_mut()[place] = part;
            sum += if reduction == Reduction::Sum { part } else { (part - value).exp() };
        }
        parts[owner].values_mut()[place] = match reduction {
            Reduction::Sum => value - sum,
            Reduction::Max => *value,
            Reduction::LogSumExp => value + (1.0 - sum).ln(),
        };
    }
    parts
}

fn join(shards: &[Array], placement: Placement) -> Array {
    match placement {
        Placement::Replicated => {
            let same = shards.iter().all(|shard| shard == &shards[0]);
            assert!(same, "replicas differ");
            shards[0].clone()
        }
        Placement::Sharded(dim) => concat(shards, dim),
        Placement::Partial(reduction) => reduce(shards, reduction),
    }
}
