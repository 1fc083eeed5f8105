//! The laws of groups of ranks that exchange their own parts of the gradients side by side.

mod made;

use std::sync::Arc;

use made::{averages, gradient, options, parameters, spawn_with};
use thinwire_sync::{Options, Outcome, Parameter, State, Synchronizer};
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::Rank;

const CODECS: [&str; 6] = ["none", "int8", "int4:stochastic", "topk:0.05", "powersgd:2", "auto"];
const STEPS: u64 = 6;
const SPOILT: u64 = 3;

/// The outcome of a step, its averages, and the state after it.
type Step = (Outcome, Vec<Vec<f32>>, State);

/// Hosts {0, 1} and {2, 3}: ranks 0 and 2 exchange one part of the gradients, 1 and 3 another one.
fn peers(rank: u32) -> [Rank; 2] {
    [Rank(rank % 2), Rank(rank % 2 + 2)]
}

fn beside(rank: u32) -> [Rank; 2] {
    [Rank(rank / 2 * 2), Rank(rank / 2 * 2 + 1)]
}

/// Steps of this rank, in one of which only rank 1 has a NaN; the averages and the state after each.
fn steps(sync: &mut Synchronizer, spoil: bool) -> Vec<Step> {
    let rank = sync.world().rank().0;
    let mut step = |number: u64| {
        sync.begin(number).unwrap();
        for (index, parameter) in parameters().iter().enumerate() {
            let mut gradient = gradient(rank, number, index, parameter.elements());
            if spoil && number == SPOILT && rank == 1 && index == 2 {
                gradient[17] = f32::NAN;
            }
            sync.ready(index, &gradient).unwrap();
        }
        let outcome = sync.finish_beside(&beside(rank)).unwrap();
        let averages = if outcome == Outcome::Averaged { averages(sync) } else { Vec::new() };
        (outcome, averages, sync.state())
    };
    (0..STEPS).filter(|number| spoil || *number != SPOILT).map(&mut step).collect()
}

/// The steps of four ranks, of which those of a place in their hosts exchange with each other.
fn side_by_side(options: &Options, spoil: bool) -> Vec<Vec<Step>> {
    testkit::spawn(Network::Mem, 4, |link| {
        let ranks: Arc<[Rank]> = peers(link.world().rank().0).into();
        let of = |parameter| Parameter { ranks: Arc::clone(&ranks), ..parameter };
        let parameters = parameters().into_iter().map(of).collect();
        steps(&mut Synchronizer::start(link, parameters, options.clone()).unwrap(), spoil)
    })
}

#[test]
fn a_step_that_one_group_skips_leaves_no_trace_in_any() {
    for codec in CODECS {
        let all = side_by_side(&options(codec), true);
        for (rank, of_rank) in all.iter().enumerate() {
            let skipped = |(outcome, ..): &Step| *outcome == Outcome::Skipped;
            let found: Vec<usize> =
                (0..of_rank.len()).filter(|step| skipped(&of_rank[*step])).collect();
            assert_eq!(found, [SPOILT as usize], "{codec}, rank {rank}");
            let (before, after) = (&of_rank[SPOILT as usize - 1].2, &of_rank[SPOILT as usize].2);
            if codec != "auto" {
                assert_eq!(before, after, "{codec}, rank {rank}");
            }
            assert_eq!(before.tensors, after.tensors, "{codec}, rank {rank}");
        }
    }
}

/// What a group does is what it would do alone, but for the seeds of random rounding, which are those of ranks.
#[test]
fn groups_side_by_side_average_as_each_would_alone() {
    for codec in ["none", "int8", "topk:0.05", "powersgd:2"] {
        let all = side_by_side(&options(codec), false);
        for place in 0..2 {
            let alone = spawn_with(2, &parameters(), &options(codec), |mut sync| {
                let (me, mut found) = (sync.world().rank().0 * 2 + place, Vec::new());
                for number in (0..STEPS).filter(|number| *number != SPOILT) {
                    sync.begin(number).unwrap();
                    for (index, parameter) in parameters().iter().enumerate() {
                        let gradient = gradient(me, number, index, parameter.elements());
                        sync.ready(index, &gradient).unwrap();
                    }
                    assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
                    found.push(averages(&sync));
                }
                found
            });
            for (host, expected) in alone.iter().enumerate() {
                let found = all[host * 2 + place as usize].iter().map(|(_, averages, _)| averages);
                assert!(found.eq(expected), "{codec}, place {place}, host {host}");
            }
        }
    }
}

#[test]
fn auto_plans_alike_on_all_ranks_by_what_rank_0_and_its_peers_have_measured() {
    let plans = testkit::spawn(Network::Mem, 4, |link| {
        let rank = link.world().rank().0;
        let ranks: Arc<[Rank]> = peers(rank).into();
        let of = |parameter| Parameter { ranks: Arc::clone(&ranks), ..parameter };
        let parameters = parameters().into_iter().map(of).collect();
        let mut sync = Synchronizer::start(link, parameters, options("auto")).unwrap();
        steps(&mut sync, true);
        (sync.plan().clone(), sync.link())
    });
    assert!(plans.iter().all(|found| *found == plans[0]));
    let (_, link) = &plans[0];
    assert_eq!(link.as_ref().unwrap().pairs.len(), 1);
}
