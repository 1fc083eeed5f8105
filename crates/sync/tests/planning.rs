//! The laws of planning, with made-up gradients over links in memory.

mod made;

use made::{give, options, parameters, spawn};
use thinwire_codec::{Bound, Choice};
use thinwire_link::mem;
use thinwire_sync::{
    Alternative, Assignment, Options, Outcome, Plan, Planning, Synchronizer, Verdict,
};
use thinwire_testkit::{self as testkit, Network};

#[test]
fn a_saved_plan_is_followed_only_for_what_it_was_made_for() {
    let saved = spawn(2, "topk:0.5", |mut sync| {
        let _ = give(&mut sync, 0, false);
        sync.state()
    });
    let resumed = |options: Options| {
        testkit::spawn(Network::Mem, 2, |link| {
            let mut sync = Synchronizer::start(link, parameters(), options.clone()).unwrap();
            sync.load(&saved[sync.world().rank().index()]).unwrap();
            let codecs: Vec<_> =
                sync.plan().assignments.iter().map(|one| one.codec.clone()).collect();
            assert_eq!(give(&mut sync, 1, false), Outcome::Averaged);
            codecs
        })
    };
    for policy in ["auto:int8", "auto", "int4", "none"] {
        let codecs = resumed(options(policy)).concat();
        assert!(codecs.iter().all(|codec| !codec.starts_with("topk")), "{policy}: {codecs:?}");
    }
    let strict = Options { error_budget: 0.0, ..options("auto") };
    let exact = |codec: &String| codec == "none" || codec.starts_with("lossless");
    assert!(resumed(strict).concat().iter().all(exact));
}

#[test]
fn an_error_budget_that_nobody_keeps_is_refused() {
    let options = Options { error_budget: 0.3, ..options("auto:int8") };
    let link = mem::alone();
    let error = Synchronizer::start(link, parameters(), options).unwrap_err().to_string();
    assert_eq!(error, "error budget 0.3 with codec auto:int8: only auto, without names, keeps one");
}

#[test]
fn all_ranks_take_the_plan_of_rank_0() {
    // A rank that thinks its cores crowded would plan otherwise.
    let limit = Some("20mbit".parse().unwrap());
    let plans = testkit::spawn_limited(Network::Tcp, 2, limit, |link| {
        let local_ranks = [Some(1), Some(1000)][link.world().rank().index()];
        let options = Options { local_ranks, ..options("auto") };
        let mut sync = Synchronizer::start(link, parameters(), options).unwrap();
        let first = sync.plan().clone();
        (0..2).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
        [first, sync.plan().clone()]
    });
    assert_eq!(plans[0], plans[1]);
}

/// Two steps of `auto` over a link so slow that everything is worth compressing; the plan and what
/// was said of it on each rank.
fn planned(error_budget: f64) -> Vec<(Plan, Option<Planning>)> {
    let limit = Some("20mbit".parse().unwrap());
    testkit::spawn_limited(Network::Tcp, 2, limit, |link| {
        let options = Options { error_budget, ..options("auto") };
        let mut sync = Synchronizer::start(link, parameters(), options).unwrap();
        (0..2).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
        (sync.plan().clone(), sync.record().planning.as_deref().cloned())
    })
}

#[test]
fn codecs_over_the_error_budget_are_not_used() {
    for budget in [0.0, 0.001, 0.03] {
        let (plan, planning) = planned(budget).swap_remove(0);
        let planning = planning.expect("the first step is planned after");
        for (decision, assignment) in planning.buckets.iter().zip(&plan.assignments) {
            assert_eq!(decision.chosen.as_ref(), Some(assignment));
            let over = |one: &&Alternative| one.verdict == Verdict::OverBudget;
            for alternative in &decision.alternatives {
                let over = over(&alternative);
                assert_eq!(over, alternative.error > budget, "{alternative:?}");
                let way = |it: &Assignment| (it.codec.clone(), it.algorithm.clone());
                assert!(!over || way(&alternative.assignment) != way(assignment));
            }
        }
        let raw = |one: &Assignment| ["none", "lossless"].contains(&one.codec.as_str());
        assert_eq!(plan.assignments.iter().all(raw), budget == 0.0, "{plan:?}");
    }
}

/// Before gradients were seen, a codec may lose as much as it ever can.
#[test]
fn the_first_plan_keeps_the_budget_whatever_the_gradients_are() {
    let limit = Some("20mbit".parse().unwrap());
    let first = |error_budget: f64| {
        let plans = testkit::spawn_limited(Network::Tcp, 2, limit, |link| {
            let options = Options { error_budget, ..options("auto") };
            let sync = Synchronizer::start(link, parameters(), options).unwrap();
            sync.plan().assignments.clone()
        });
        plans.concat()
    };
    let of_codec = |name: &str| match Choice::parse(name).unwrap() {
        Choice::Bytes(codec) => match codec.bound(codec.block().max(128)) {
            // Rounding to half precision has a bound of its own.
            _ if codec.dtype().is_some() => 0.0,
            Bound::Contraction(least) => 1.0 - least,
            other => panic!("{name} has no bound but {other:?}"),
        },
        other => panic!("{other}"),
    };
    // The error of a gather counts a third.
    let worst =
        |it: &Assignment| of_codec(&it.codec) / if it.algorithm == "gather" { 3.0 } else { 1.0 };
    for budget in [0.4, Options::default().error_budget, 0.01, 0.0005] {
        let plan = first(budget);
        assert!(plan.iter().all(|it| worst(it) <= budget * 1.001), "{budget}: {plan:?}");
        // At worst int8 loses 127 / 64643.
        let lossy = plan.iter().any(|it| worst(it) > 1e-4);
        assert_eq!(lossy, budget > 0.0007, "{budget}: {plan:?}");
    }
}

#[test]
fn rank_0_says_why_and_errors_are_those_of_the_gradients() {
    let ranks = planned(1.0);
    assert!(ranks[1].1.is_none() && ranks[0].0 == ranks[1].0);
    let planning = ranks[0].1.as_ref().unwrap();
    let json = serde_json::to_string(planning).unwrap();
    let read: Planning = serde_json::from_str(&json).unwrap();
    assert_eq!((&read.reason, read.buckets.len()), (&planning.reason, planning.buckets.len()));
    assert!(planning.iteration_s < planning.raw_iteration_s);
    let matrix = planning.buckets.iter().find(|bucket| bucket.name == "head.weight").unwrap();
    let error = |codec: &str| {
        let is_it = |one: &&Alternative| {
            one.assignment.codec == codec && one.assignment.algorithm == "two-shot"
        };
        let found = matrix.alternatives.iter().find(is_it);
        found.map(|one| one.error).unwrap()
    };
    // One in fifty gradients is thirty times as large as the others: what lies below is lost, and
    // normal numbers would have said otherwise. It counts by its magnitude, not by its square.
    let errors = ["none", "bf16", "int8", "int4", "int3", "int2", "onebit"].map(error);
    assert!(errors.is_sorted() && errors[0] == 0.0 && errors[4] < 0.5, "{errors:?}");
    assert!(errors[5] > 0.5, "on normal numbers int2 loses an eighth: {errors:?}");
}

/// `auto` over a link of 20 Mbit/s: the plan of every step, and what was said at last.
fn tried(steps: u64, error_budget: f64) -> Vec<(Vec<u32>, Option<Planning>)> {
    let limit = Some("20mbit".parse().unwrap());
    testkit::spawn_limited(Network::Tcp, 2, limit, |link| {
        let options = Options { error_budget, ..options("auto") };
        let mut sync = Synchronizer::start(link, parameters(), options).unwrap();
        let (mut plans, mut planning) = (Vec::new(), None);
        for step in 0..steps {
            assert_eq!(give(&mut sync, step, false), Outcome::Averaged);
            plans.push(sync.plan().hash());
            planning = sync.record().planning.as_deref().cloned().or(planning);
        }
        (plans, planning)
    })
}

#[test]
fn all_ranks_follow_the_same_plan_in_every_step_of_a_trial() {
    let ranks = tried(60, Options::default().error_budget);
    assert_eq!(ranks[0].0, ranks[1].0);
    let line = &ranks[0].1.as_ref().expect("rank 0 has planned").line;
    assert!(line.starts_with("auto: "), "{line}");
    assert!(ranks[1].1.is_none());
}

#[test]
fn a_loaded_state_ends_a_trial() {
    let limit = Some("20mbit".parse().unwrap());
    testkit::spawn_limited(Network::Tcp, 2, limit, |link| {
        let mut sync = Synchronizer::start(link, parameters(), options("auto")).unwrap();
        (0..20).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
        let state = sync.state();
        (20..26).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
        sync.load(&state).unwrap();
        let plan = sync.plan().hash();
        assert_eq!(state, sync.state());
        assert_eq!(give(&mut sync, 20, false), Outcome::Averaged);
        assert_eq!(sync.plan().hash(), plan);
        (21..60).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
    });
}
