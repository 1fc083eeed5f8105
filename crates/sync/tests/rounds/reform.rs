//! Rounds that continue among other ranks.

use std::sync::{Barrier, Mutex};

use thinwire_collective::Group;
use thinwire_link::mem;
use thinwire_sync::{Averager, AveragerState, Channel, Tensors};
use thinwire_testkit::{Network, spawn};
use thinwire_wire::Rank;

use super::{Trained, Values, options, parameters};

/// A rank after some of three have met anew: its parameters and those in common just before, its state a step earlier,
/// and what it is now.
struct Changed {
    before: (Values, Option<Values>),
    kept: AveragerState,
    trained: Trained,
}

/// Trains three ranks for so many steps each. Then the third goes and another one joins, and `then` is done.
fn changed<T: Send>(
    mode: &str,
    codec: &str,
    steps: [u64; 3],
    then: impl Fn(Changed) -> T + Sync,
) -> Vec<T> {
    let later = mem::mesh_of_epoch(1, 3).into_iter().map(|link| Mutex::new(Some(link)));
    let (later, parting) = (later.collect::<Vec<_>>(), Barrier::new(3));
    spawn(Network::Mem, 3, |link| {
        let rank = link.world().rank();
        let mut trained = Trained::start(Channel::new(Group::new(link)), mode, &options(codec));
        trained.steps(steps[rank.index()] - 1);
        let kept = trained.averager.state();
        trained.steps(1);
        // Nobody goes before the others have what it has sent.
        parting.wait();
        let before = (trained.values.clone(), trained.averager.common());
        let link = later[rank.index()].lock().unwrap().take().unwrap();
        let (world, channel) = (link.world(), Channel::new(Group::new(link)));
        if rank == Rank(2) {
            let (mode, mut values) = (mode.parse().unwrap(), trained.values);
            trained.averager.channel().stop().stop("killed");
            let joined = Averager::join(channel, &parameters(), mode, &options(codec), &mut values);
            trained = Trained { world, averager: joined.unwrap(), values };
        } else {
            trained.averager.reform(channel, &mut trained.values).unwrap();
        }
        then(Changed { before, kept, trained })
    })
}

/// What all ranks have in common of a state.
fn in_common(state: &AveragerState) -> Tensors {
    let mut tensors = state.tensors.clone();
    tensors.retain(|name, _| name.starts_with("common.") || name.starts_with("outer"));
    tensors
}

#[test]
fn ranks_that_meet_anew_have_all_in_common() {
    // The first rank has ended a round of the second fragment, of which the second rank has only seen the begin.
    for (mode, codec) in [
        ("diloco:4,fragments=2,delay=2", "int4"),
        ("diloco:4,fragments=2,delay=2,alpha=0", "powersgd:2"),
        ("diloco:4,outer=adam,lr=0.1", "topk:0.1"),
        ("sma:0.3,every=4", "int8"),
    ] {
        let ranks = changed(mode, codec, [6, 5, 5], |changed| {
            let Changed { before, mut trained, .. } = changed;
            let (state, common) = (trained.averager.state(), trained.averager.common());
            match trained.world.rank() {
                Rank(2) => assert_eq!(Some(&trained.values), common.as_ref(), "{mode}"),
                _ => assert_eq!(trained.values, before.0, "{mode}"),
            }
            assert!(trained.world.rank() != Rank(0) || common == before.1, "{mode}");
            trained.steps(7);
            trained.averager.finish(&mut trained.values).unwrap();
            (in_common(&state), state.progress, trained.values)
        });
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{mode}");
        assert!(ranks[0].2.concat().iter().all(|value| value.is_finite()), "{mode}");
    }
}

/// The rounds and updates of each fragment.
fn counts(state: &AveragerState) -> serde_json::Value {
    serde_json::from_str::<serde_json::Value>(&state.progress).unwrap()["fragments"].clone()
}

#[test]
fn a_round_that_is_dropped_leaves_no_trace() {
    for (mode, codec) in
        [("diloco:4,delay=2", "int4"), ("diloco:4,fragments=2,delay=1", "topk:0.1")]
    {
        changed(mode, codec, [8, 8, 8], |Changed { before, kept, trained }| {
            if trained.world.rank() == Rank(2) {
                return;
            }
            assert_eq!(trained.values, before.0, "{mode}");
            let state = trained.averager.state();
            assert_eq!(state.tensors, kept.tensors, "{mode}");
            // The round that had begun is counted no more.
            assert_eq!(counts(&state), counts(&kept), "{mode}");
        });
    }
}

#[test]
fn a_rank_that_missed_the_end_of_a_round_keeps_what_it_owes() {
    let owed = |mut state: AveragerState| {
        state.tensors.retain(|name, _| name.starts_with("residual."));
        state.tensors
    };
    for (mode, codec) in [("diloco:4,delay=2", "topk:0.1"), ("diloco:4,delay=2,alpha=0", "int4")] {
        // The first rank ends the round that all have begun after their eighth step.
        changed(mode, codec, [10, 8, 8], |Changed { before, kept, trained }| {
            if trained.world.rank() == Rank(1) {
                assert_ne!(trained.averager.common(), before.1, "{mode}");
                assert_eq!(trained.values, before.0, "{mode}");
                let kept = owed(kept);
                assert!(kept.values().flat_map(|(_, owed)| owed).any(|owed| *owed != 0.0));
                assert_eq!(owed(trained.averager.state()), kept, "{mode}");
            }
        });
    }
}

#[test]
fn pairs_that_meet_anew_end_with_the_same_parameters() {
    let all = changed("pair:2", "none", [3, 2, 3], |Changed { before, mut trained, .. }| {
        assert_eq!(trained.values, before.0);
        trained.steps(6);
        trained.averager.finish(&mut trained.values).unwrap();
        trained.values
    });
    assert!(all.iter().all(|values| *values == all[0]));
}
