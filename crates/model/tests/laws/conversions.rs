//! Conversions between layouts keep the tensor, and send what they say.

use proptest::prelude::*;
use thinwire_model::{Array, Collective, Kind, Layout, Placement, Reduction, Step, conversion};
use thinwire_wire::random::Key;

use crate::samples::{Values, array};
use crate::shards::{assert_close, concat, gather, reduce, scatter, slice};

const SHAPE: [usize; 2] = [24, 12];

/// Does a step: every group of ranks along its dimension of the mesh by itself.
fn run(step: &Step, shards: &[Array], mesh: &[usize]) -> Vec<Array> {
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

fn placements(from: bool) -> impl Strategy<Value = Placement> {
    let reductions =
        prop_oneof![Just(Reduction::Sum), Just(Reduction::Max), Just(Reduction::LogSumExp)];
    prop_oneof![
        Just(Placement::Replicated),
        Just(Placement::Sharded(0)),
        Just(Placement::Sharded(1)),
        reductions.prop_map(move |reduction| {
            Placement::Partial(if from { reduction } else { Reduction::Sum })
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_conversion_between_any_two_layouts_keeps_the_tensor(
        mesh in prop_oneof![
            Just(vec![2]), Just(vec![3]), Just(vec![2, 2]), Just(vec![2, 3]), Just(vec![2, 1, 2]),
            Just(vec![2, 2, 3]),
        ],
        from in proptest::collection::vec(placements(true), 3),
        to in proptest::collection::vec(placements(false), 3),
        seed: u64,
    ) {
        let (from, to) = (Layout(from[..mesh.len()].to_vec()), Layout(to[..mesh.len()].to_vec()));
        let reductions: Vec<_> =
            from.0.iter().copied().filter(|p| matches!(p, Placement::Partial(_))).collect();
        prop_assume!(reductions.windows(2).all(|pair| pair[0] == pair[1]));
        let steps = match conversion(&SHAPE, &mesh, &from, &to) {
            Err(error) => {
                // Values that are partial cannot be partial in another way.
                prop_assert_eq!(error.kind(), Kind::Layout);
                prop_assert!(from.0.iter().zip(&to.0).any(|pair| matches!(
                    pair, (Placement::Partial(a), Placement::Partial(b)) if a != b
                )));
                return Ok(());
            }
            Ok(steps) => steps,
        };
        let mixed = reductions.iter().any(|p| *p != Placement::Partial(Reduction::Sum))
            && to.0.iter().any(|p| matches!(p, Placement::Partial(_)));
        prop_assume!(!mixed);
        let whole = array(&SHAPE, Values::Any, Key { seed, step: 0, tensor: 0 });
        let mut shards = scatter(&whole, &from, &mesh, seed);
        for step in &steps {
            shards = run(step, &shards, &mesh);
        }
        let local = to.local_shape(&SHAPE, &mesh);
        prop_assert!(shards.iter().all(|shard| shard.shape() == local));
        let what = || format!("{from} to {to} on {mesh:?}: {steps:?}");
        assert_close(&gather(shards, &to, &mesh), &whole, 1e-9, &what);
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
