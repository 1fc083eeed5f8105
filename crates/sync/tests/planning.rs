//! The laws of planning, with made-up gradients over links in memory.

mod made;

use made::{give, options, parameters, spawn, spawn_with};
use serde_json::{Value, json};
use thinwire_codec::{Bound, Choice};
use thinwire_link::mem;
use thinwire_sync::{
    Alternative, Assignment, Feedback, Options, Outcome, Parameter, Plan, Planning, State,
    Synchronizer, Verdict,
};
use thinwire_testkit::{self as testkit, Network};

#[test]
fn a_saved_plan_is_followed_only_for_what_it_was_made_for() {
    let mut saved = spawn(2, "auto:topk:0.5", |sync| sync.state());
    for state in &mut saved {
        let mut plan: Value = serde_json::from_str(&state.plan).unwrap();
        for assignment in plan["assignments"].as_array_mut().unwrap() {
            *assignment = json!({ "codec": "topk:0.5", "algorithm": "gather", "partitions": 1 });
        }
        plan.as_object_mut().unwrap().remove("auto");
        state.plan = plan.to_string();
    }
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
    let is_topk = |codec: &String| codec.starts_with("topk");
    assert!(resumed(options("auto:topk:0.5")).concat().iter().all(is_topk));
    for policy in ["auto:int8", "auto"] {
        let codecs = resumed(options(policy)).concat();
        assert!(!codecs.iter().any(is_topk), "{policy}: {codecs:?}");
    }
    let strict = Options { error_budget: 0.0, ..options("auto") };
    let exact = |codec: &String| codec == "none" || codec.starts_with("lossless");
    assert!(resumed(strict).concat().iter().all(exact));
}

#[test]
fn a_state_of_another_codec_or_feedback_is_refused() {
    let ef21 = |policy: &str| Options { feedback: Feedback::Ef21, ..options(policy) };
    let states = |options: Options| {
        spawn_with(2, &parameters(), &options, |mut sync| {
            let _ = give(&mut sync, 0, false);
            sync.state()
        })
    };
    let refusal = |states: &[State], options: Options| {
        let found = spawn_with(2, &parameters(), &options, |mut sync| {
            let loaded = sync.load(&states[sync.world().rank().index()]);
            let error = loaded.map_err(|error| error.to_string());
            assert_eq!(give(&mut sync, 1, false), Outcome::Averaged);
            error
        });
        assert_eq!(found[0], found[1]);
        found[0].clone().err()
    };
    let int4 = states(options("int4"));
    for policy in ["int8", "none", "powersgd:2", "auto", "auto:int4"] {
        let expected = format!(
            "the state is of a training with codec int4, this one has codec {policy} (hint: continue \
             with int4, or begin without the state)"
        );
        assert_eq!(refusal(&int4, options(policy)), Some(expected));
    }
    let said = refusal(&int4, ef21("int4")).unwrap();
    assert!(said.contains("with feedback classic, this one has feedback ef21"), "{said}");
    let said = refusal(&states(options("auto")), options("int4")).unwrap();
    assert!(said.contains("with codec auto, this one has codec int4"), "{said}");
    assert_eq!(refusal(&states(options("auto")), options("auto:int8")), None);
    // As an older version has written it.
    let mut older = int4.clone();
    for state in &mut older {
        let mut plan: Value = serde_json::from_str(&state.plan).unwrap();
        plan.as_object_mut().unwrap().remove("options");
        state.plan = plan.to_string();
    }
    assert_eq!(refusal(&older, options("int4")), None);
    assert!(
        refusal(&older, options("int8")).unwrap().contains("codec int4, this one has codec int8")
    );
    // Codecs take up what others owe where somebody asks for that.
    spawn(2, "int8", |mut sync| sync.load_tensors(&int4[sync.world().rank().index()]).unwrap());
}

#[test]
fn an_error_budget_that_nobody_keeps_is_refused() {
    let options = Options { error_budget: 0.3, ..options("auto:int8") };
    let link = mem::alone();
    let error = Synchronizer::start(link, parameters(), options).unwrap_err().to_string();
    assert_eq!(
        error,
        "error budget 0.3 has no effect with codec auto:int8: only auto without a list of codecs \
         has one"
    );
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

/// The error budget over the part of it that a training has in its first steps.
const FIRST: f64 = 20.0;

#[test]
fn codecs_over_the_error_budget_are_not_used() {
    for budget in [0.0, 0.001, 0.03] {
        let (plan, planning) = planned(FIRST * budget).swap_remove(0);
        let planning = planning.expect("the first step is planned after");
        assert!((planning.error_budget - budget).abs() < 1e-9, "{}", planning.error_budget);
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
            let options = Options { error_budget: FIRST * error_budget, ..options("auto") };
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

/// Runs `body` on two ranks under `auto` over a link of 20 Mbit/s, whose measurements agree on a busy machine.
fn spawn_slow<T: Send>(
    parameters: &[Parameter],
    options: &Options,
    body: impl Fn(Synchronizer) -> T + Sync,
) -> Vec<T> {
    let limit = Some("20mbit".parse().unwrap());
    testkit::spawn_limited(Network::Tcp, 2, limit, |link| {
        body(Synchronizer::start(link, parameters.to_vec(), options.clone()).unwrap())
    })
}

/// `auto` over a slow link: the plan of every step, and what was said at last.
fn tried(steps: u64, error_budget: f64) -> Vec<(Vec<u32>, Option<Planning>)> {
    let options = Options { error_budget, ..options("auto") };
    spawn_slow(&parameters(), &options, |mut sync| {
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
fn a_loaded_state_goes_on_with_its_trial() {
    spawn_slow(&parameters(), &options("auto"), |mut sync| {
        (0..20).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
        let state = sync.state();
        let plans = |sync: &mut Synchronizer| {
            let step = |step| {
                assert_eq!(give(sync, step, false), Outcome::Averaged);
                sync.plan().hash()
            };
            // After the next step ranks tell each other times, which decide on plans.
            (20..23).map(step).collect::<Vec<_>>()
        };
        let whole = plans(&mut sync);
        sync.load(&state).unwrap();
        assert_eq!(state, sync.state());
        if let Some(planning) = sync.planning() {
            assert_eq!(planning.reason, "a state was loaded");
        }
        assert_eq!(plans(&mut sync), whole);
        (23..60).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
    });
}

/// Everything that a state says of `auto` may come from a file that was tampered with.
#[test]
fn what_cannot_be_a_state_of_auto_is_refused_on_all_ranks() {
    let tampered = [
        ("/auto/link/bytes_per_s", json!(-1.0)),
        ("/auto/measured/buckets", json!([])),
        ("/auto/errors", json!([[0.5]])),
        ("/auto/trials/steps", json!(-1)),
        ("/auto/trials/under_way", json!([{ "arms": [], "steps": 9, "seconds": [] }, []])),
        (
            "/auto/trials/under_way",
            json!([{ "arms": [{ "error": 0.0, "predicted_s": 0.0 }], "steps": 9, "seconds": [[]] }, []]),
        ),
        ("/predicted_s", json!([])),
        ("/auto/codecs", json!(3)),
    ];
    spawn(2, "auto", |mut sync| {
        (0..19).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
        let (rank, sound) = (sync.world().rank().0, sync.state());
        for (place, value) in &tampered {
            let mut plan: Value = serde_json::from_str(&sound.plan).unwrap();
            if rank == 1 {
                *plan.pointer_mut(place).unwrap() = value.clone();
            }
            let state = State { plan: plan.to_string(), ..sound.clone() };
            let line = sync.load(&state).expect_err("it was not refused").to_string();
            assert_eq!(line.starts_with("rank 1 says: "), rank == 0, "{place}: {line}");
            assert!(!line.contains('\n'), "{line}");
        }
        sync.load(&sound).unwrap();
        assert_eq!(give(&mut sync, 19, false), Outcome::Averaged);
    });
}

#[test]
fn states_of_different_moments_are_refused() {
    spawn(2, "auto", |mut sync| {
        let mut states = Vec::new();
        for step in 0..8 {
            assert_eq!(give(&mut sync, step, false), Outcome::Averaged);
            states.push(sync.state());
        }
        let mixed = [3, 5][sync.world().rank().index()];
        let error = sync.load(&states[mixed]).unwrap_err().to_string();
        assert!(error.starts_with("the states of ranks were not saved together: "), "{error}");
        sync.load(&states[7]).unwrap();
        assert_eq!(give(&mut sync, 8, false), Outcome::Averaged);
    });
}

/// A state of other ranks or other buckets leaves its plan and its measurements behind.
#[test]
fn auto_plans_anew_for_other_ranks_and_buckets() {
    let auto = options("auto");
    let states = spawn_slow(&parameters(), &auto, |mut sync| {
        (0..19).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
        sync.state()
    });
    let age = |sync: &Synchronizer| {
        let plan: Value = serde_json::from_str(&sync.state().plan).unwrap();
        plan["auto"]["age"].as_u64().unwrap()
    };
    let ages = spawn_slow(&parameters(), &auto, |mut sync| {
        sync.load(&states[sync.world().rank().index()]).unwrap();
        age(&sync)
    });
    assert_eq!(ages, [19, 19]);
    let ages = spawn(3, "auto", |mut sync| {
        sync.load(&states[0]).unwrap();
        assert_eq!(give(&mut sync, 19, false), Outcome::Averaged);
        age(&sync)
    });
    assert_eq!(ages, [1, 1, 1]);
    let mut swapped = parameters();
    swapped.swap(0, 5);
    let ages = spawn_slow(&swapped, &auto, |mut sync| {
        sync.load(&states[sync.world().rank().index()]).unwrap();
        age(&sync)
    });
    assert_eq!(ages, [0, 0]);
}

#[test]
fn gradients_of_a_skipped_step_are_no_times() {
    spawn(2, "auto", |mut sync| {
        (0..20).for_each(|step| _ = give(&mut sync, step, step == 16));
        let plan: Value = serde_json::from_str(&sync.state().plan).unwrap();
        assert_eq!(plan["auto"]["trials"]["steps"], 19);
    });
}
