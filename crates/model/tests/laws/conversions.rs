//! Conversions between layouts keep the tensor, and send what they say.

use thinwire_model::{Array, Collective, Layout, Placement, Reduction, Step, conversion, phases};
use thinwire_wire::random::Key;

use crate::samples::{Values, array};
use crate::shards::{assert_close, concat, gather, reduce, scatter, slice};

const SHAPE: [usize; 2] = [24, 12];

/// Does a step: every group of ranks along its dimension of the mesh by itself.
pub fn run(step: &Step, shards: &[Array], mesh: &[usize]) -> Vec<Array> {
    let size = mesh[step.mesh_dim];
    let stride: usize = mesh[step.mesh_dim + 1..].iter().product();
    let mut after = shards.to_vec();
    for first in (0..shards.len()).filter(|rank| (rank / stride).is_multiple_of(size)) {
        let ranks: Vec<usize> = (0..size).map(|at| first + at * stride).collect();
        let before: Vec<Array> = ranks.iter().map(|rank| shards[*rank].clone()).collect();
        for (at, rank) in ranks.iter().enumerate() {
            after[*rank] = received(step.collective, &before, at);
        }
    }
    after
}

/// What one of a group of ranks has after a collective.
fn received(collective: Collective, before: &[Array], at: usize) -> Array {
    let own = |whole: &Array, dim: usize| {
        let length = whole.shape()[dim] / before.len();
        slice(whole, dim, at * length, length)
    };
    match collective {
        Collective::Slice { dim } => own(&before[at], dim),
        Collective::ReduceScatter { reduction, dim } => own(&reduce(before, reduction), dim),
        Collective::AllReduce { reduction } => reduce(before, reduction),
        Collective::AllGather { dim } => concat(before, dim),
        Collective::AllToAll { from, to } => own(&concat(before, from), to),
        Collective::Pad { reduction, from: None } if at > 0 => {
            Array::full(before[at].shape(), reduction.identity())
        }
        Collective::Pad { from: None, .. } => before[at].clone(),
        Collective::Pad { reduction, from: Some(dim) } => {
            let nothing = Array::full(before[at].shape(), reduction.identity());
            let mut parts = vec![nothing; before.len()];
            parts[at] = before[at].clone();
            concat(&parts, dim)
        }
    }
}

/// Every layout on a mesh whose partial values are all reduced in the same way.
fn layouts(mesh: &[usize], reduction: Reduction) -> Vec<Layout> {
    let placements = [
        Placement::Replicated,
        Placement::Sharded(0),
        Placement::Sharded(1),
        Placement::Partial(reduction),
    ];
    let mut layouts = vec![Layout(Vec::new())];
    for _ in mesh {
        let longer = |layout: &Layout| {
            placements.map(|placement| Layout([&layout.0[..], &[placement]].concat()))
        };
        layouts = layouts.iter().flat_map(longer).collect();
    }
    layouts
}

fn keeps_the_tensor(shape: [usize; 2], mesh: &[usize], from: &Layout, to: &Layout) {
    let steps = conversion(&shape, mesh, from, to).unwrap();
    let elements = shape.iter().product();
    let phases: Vec<_> = phases(from, to).iter().map(|leg| leg.step(elements, mesh)).collect();
    assert_eq!(phases, steps, "{from} to {to} on {mesh:?}");
    let whole = array(&shape, Values::Any, Key { seed: 1, step: 0, tensor: 0 });
    let scattered = scatter(&whole, from, mesh, 1);
    let shards = steps.iter().fold(scattered, |shards, step| run(step, &shards, mesh));
    let local = to.local_shape(&shape, mesh);
    assert!(shards.iter().all(|shard| shard.shape() == local), "{from} to {to}: {steps:?}");
    let what = || format!("{from} to {to} on {mesh:?}: {steps:?}");
    assert_close(&gather(shards, to, mesh), &whole, 1e-9, &what);
}

#[test]
fn a_conversion_between_any_two_layouts_keeps_the_tensor() {
    let sum = Reduction::Sum;
    let reductions =
        [(sum, sum), (Reduction::Max, sum), (Reduction::LogSumExp, sum), (sum, Reduction::Max)];
    for mesh in [&[2][..], &[3], &[2, 3], &[3, 2], &[2, 2, 2]] {
        let ranks = mesh.iter().product();
        for (before, after) in reductions {
            for from in layouts(mesh, before) {
                for to in layouts(mesh, after) {
                    keeps_the_tensor([ranks; 2], mesh, &from, &to);
                }
            }
        }
    }
}

#[test]
fn a_conversion_sends_what_the_table_says() {
    let sent = |from: Placement, to: Placement| -> f64 {
        let steps = conversion(&SHAPE, &[4], &Layout(vec![from]), &Layout(vec![to])).unwrap();
        steps.iter().map(|step| step.sent(4)).sum()
    };
    let (whole, partial) = (Placement::Replicated, Placement::Partial(Reduction::Sum));
    let (rows, columns) = (Placement::Sharded(0), Placement::Sharded(1));
    let n = 288.0;
    assert_eq!(sent(partial, whole), 2.0 * 0.75 * n);
    assert_eq!(sent(partial, rows), 0.75 * n);
    assert_eq!(sent(rows, whole), 0.75 * n);
    assert_eq!(sent(rows, columns), 0.75 * n / 4.0);
    assert_eq!(sent(whole, rows) + sent(whole, partial) + sent(rows, partial), 0.0);
    assert_eq!(sent(rows, rows), 0.0);
}

#[test]
fn what_a_mesh_dimension_sends_does_not_count_what_another_one_has_cut() {
    let from = Layout(vec![Placement::Sharded(0), Placement::Partial(Reduction::Sum)]);
    let to = Layout(vec![Placement::Sharded(0), Placement::Sharded(1)]);
    let steps = conversion(&SHAPE, &[2, 4], &from, &to).unwrap();
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0].sent(4), 0.75 * 144.0);
}

#[test]
fn reducing_goes_before_gathering() {
    let from = Layout(vec![Placement::Sharded(0), Placement::Partial(Reduction::Sum)]);
    let steps = conversion(&SHAPE, &[2, 4], &from, &Layout::replicated(&[2, 4])).unwrap();
    let order: Vec<usize> = steps.iter().map(|step| step.mesh_dim).collect();
    assert_eq!(order, [1, 0]);
}

#[test]
fn a_layout_must_fit() {
    let odd = Layout(vec![Placement::Sharded(1)]);
    let error = conversion(&SHAPE, &[5], &odd, &odd).unwrap_err();
    assert_eq!(error.to_string(), "shape [24, 12] on mesh [5] cannot lie as (S1)");
}
