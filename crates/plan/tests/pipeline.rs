//! Laws of pipelines: orders can be run, keep what the formulas say, and idle as published.

use std::ops::Range;

use proptest::prelude::*;
use thinwire_plan::pipeline::{Kind, Pass, Schedule, Stage, cut, cut_by, simulate};

const SCHEDULES: [Schedule; 5] = [
    Schedule::Gpipe,
    Schedule::OneForwardOneBackward,
    Schedule::ZeroBubble,
    Schedule::Interleaved { chunks: 1 },
    Schedule::Interleaved { chunks: 3 },
];

/// Equal stages; forward and the gradients of inputs and of weights take these seconds.
fn stages(schedule: Schedule, ranks: usize, [f, b, w]: [f64; 3]) -> Vec<Stage> {
    let chunks = schedule.chunks() as f64;
    let (backward_s, weight_s) = match schedule {
        Schedule::ZeroBubble => (b, w),
        _ => ((b + w) / chunks, 0.0),
    };
    let stage = Stage { forward_s: f / chunks, backward_s, weight_s, ..Stage::default() };
    vec![stage; ranks * schedule.chunks()]
}

#[test]
fn every_pass_is_done_once_and_in_time() {
    for schedule in SCHEDULES {
        for (ranks, micro_batches) in [(1, 1), (1, 4), (2, 2), (3, 6), (4, 4), (4, 12), (8, 8)] {
            let orders = schedule.orders(ranks, micro_batches).unwrap();
            let run = simulate(&orders, &stages(schedule, ranks, [1.0, 1.0, 1.0]));
            let run = run.unwrap_or_else(|| panic!("{schedule:?} of {ranks} waits for ever"));
            for (rank, order) in orders.iter().enumerate() {
                let kinds = if schedule == Schedule::ZeroBubble { 3 } else { 2 };
                assert_eq!(order.len(), kinds * micro_batches * schedule.chunks());
                for pass in order {
                    let place =
                        |kind| order.iter().position(|other| *other == Pass { kind, ..*pass });
                    assert!(place(Kind::Forward) < place(Kind::Backward));
                    let weight = place(Kind::Weight);
                    assert!(weight.is_none_or(|weight| Some(weight) > place(Kind::Backward)));
                }
                let kept = run.in_flight(rank) as f64 / schedule.chunks() as f64;
                let formula = schedule.in_flight(rank, ranks, micro_batches);
                assert!(
                    (kept - formula).abs() < 1e-9,
                    "{schedule:?} {rank} of {ranks}: {kept} {formula}"
                );
            }
        }
    }
}

#[test]
fn ranks_idle_as_published() {
    let [f, b, w] = [1.0, 1.1, 0.9];
    for (ranks, micro_batches) in [(2, 4), (4, 8), (4, 16), (8, 16)] {
        let idle = |schedule: Schedule| {
            let orders = schedule.orders(ranks, micro_batches).unwrap();
            let run = simulate(&orders, &stages(schedule, ranks, [f, b, w])).unwrap();
            run.seconds - run.ranks[0].iter().map(|pass| pass.end_s - pass.start_s).sum::<f64>()
        };
        let others = ranks as f64 - 1.0;
        let close = |schedule, expected: f64| {
            let found = idle(schedule);
            assert!(
                (found - expected).abs() < 1e-9,
                "{schedule:?} {ranks}: {found}, expected {expected}"
            );
        };
        close(Schedule::Gpipe, others * (f + b + w));
        close(Schedule::OneForwardOneBackward, others * (f + b + w));
        close(Schedule::Interleaved { chunks: 2 }, others * (f + b + w) / 2.0);
        close(Schedule::ZeroBubble, others * (f + b - w));
    }
}

#[test]
fn interleaving_needs_micro_batches_in_multiples_of_the_ranks() {
    assert!(Schedule::Interleaved { chunks: 2 }.orders(4, 6).is_none());
    assert!(Schedule::Interleaved { chunks: 2 }.orders(4, 8).is_some());
}

#[test]
fn messages_delay_and_share_their_link() {
    let orders = Schedule::Gpipe.orders(2, 3).unwrap();
    let stage = Stage { forward_s: 1.0, backward_s: 2.0, message_s: 5.0, ..Stage::default() };
    let run = simulate(&orders, &[stage, stage]).unwrap();
    // The third message leaves after two others of five seconds, comes after sixteen, and so on.
    assert_eq!(run.ranks[1][2].start_s, 16.0);
    assert_eq!(run.seconds, 17.0 + 2.0 + 3.0 * 5.0 + 2.0);
}

proptest! {
    #[test]
    fn no_cut_has_a_faster_slowest_stage(
        seconds in proptest::collection::vec(0.0_f64..9.0, 1..9), stages in 1_usize..6,
    ) {
        let found = cut(&seconds, stages);
        prop_assert_eq!(found.is_some(), stages <= seconds.len());
        let Some(found) = found else { return Ok(()) };
        prop_assert_eq!(found.len(), stages);
        prop_assert!(found.iter().all(|stage| !stage.is_empty()));
        prop_assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start));
        prop_assert_eq!((found[0].start, found[stages - 1].end), (0, seconds.len()));
        let slowest = |cut: &[std::ops::Range<usize>]| {
            cut.iter().map(|stage| seconds[stage.clone()].iter().sum::<f64>()).fold(0.0, f64::max)
        };
        prop_assert!(slowest(&found) <= best(&seconds, stages) * (1.0 + 1e-9) + 1e-9);
    }

    #[test]
    fn no_cut_whose_stages_have_room_has_a_faster_slowest_stage(
        blocks in proptest::collection::vec((0.0_f64..9.0, 1.0_f64..9.0), 1..9),
        devices in proptest::collection::vec((0.1_f64..9.0, 1.0_f64..30.0), 1..5),
    ) {
        let count = blocks.len();
        let bytes = |range: Range<usize>| blocks[range].iter().map(|(_, bytes)| bytes).sum::<f64>();
        let seconds = |stage: usize, block: usize| devices[stage].0 * blocks[block].0;
        let fits = |stage: usize, range: Range<usize>| bytes(range) <= devices[stage].1;
        let room = |stage: usize, end: usize| {
            (0..end).find(|start| fits(stage, *start..end)).unwrap_or(end)
        };
        let found = cut_by(&seconds, &room, [count, devices.len()]);
        // All cuts: a bit for every place between two blocks.
        let all = (0_u32..1 << (count - 1)).map(|bits| {
            let places = (1..count).filter(|place| bits >> (place - 1) & 1 == 1);
            let ends: Vec<usize> = [0].into_iter().chain(places).chain([count]).collect();
            ends.windows(2).map(|pair| pair[0]..pair[1]).collect::<Vec<_>>()
        });
        let fitting = |cut: &Vec<Range<usize>>| {
            let mut stages = cut.iter().enumerate();
            cut.len() == devices.len() && stages.all(|(stage, range)| fits(stage, range.clone()))
        };
        let slowest = |cut: &Vec<Range<usize>>| {
            let stage = |(stage, range): (usize, &Range<usize>)| {
                range.clone().map(|block| seconds(stage, block)).sum::<f64>()
            };
            cut.iter().enumerate().map(stage).fold(0.0, f64::max)
        };
        let least = all.filter(fitting).map(|cut| slowest(&cut)).reduce(f64::min);
        prop_assert_eq!(found.is_some(), least.is_some());
        let (Some(found), Some(least)) = (found, least) else { return Ok(()) };
        prop_assert!(fitting(&found), "{found:?}");
        prop_assert_eq!((found[0].start, found[found.len() - 1].end), (0, count));
        prop_assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start));
        prop_assert!(slowest(&found) <= least * (1.0 + 1e-9), "{found:?}, least {least}");
    }
}

/// The slowest stage's time of the best of all cuts.
fn best(seconds: &[f64], stages: usize) -> f64 {
    if stages == 1 {
        return seconds.iter().sum();
    }
    let firsts = 1..=seconds.len() + 1 - stages;
    let rest = |first: usize| {
        seconds[..first].iter().sum::<f64>().max(best(&seconds[first..], stages - 1))
    };
    firsts.map(rest).fold(f64::MAX, f64::min)
}
