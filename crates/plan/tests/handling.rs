//! Laws of what moving bytes takes of a device's own time.

use proptest::prelude::*;
use thinwire_model::{Layout, Placement, Reduction, named};
use thinwire_plan::cost::{Costs, Division, Precision, Sharding};
use thinwire_plan::pipeline::{Schedule, Stage, simulate};
use thinwire_plan::search::{Candidate, Planner, Rule, Settings};
use thinwire_plan::{Cluster, Error};

const MODEL: &str = "gpt:layers=2,width=64,heads=2,vocabulary=64,positions=32";

fn cluster(fields: &str) -> Cluster {
    Cluster::parse(&format!(
        "[[device]]\nname = \"rank\"\ntflops = 0.03\nmemory_gib = 4\nmemory_gbyte_per_s = 1.2\n\
         {fields}\n[[level]]\nname = \"link\"\nsize = 4\nlatency_us = 150\ngbit = 0.9\n"
    ))
    .unwrap()
}

/// Seconds of a step, and bytes of the fullest device, of stages of data parallelism.
fn price(fields: &str, (stages, ranks, zero): (usize, usize, Sharding)) -> (f64, f64) {
    let settings = Settings { precision: Precision::SINGLE, ..Settings::default() };
    let build = |batch| named(MODEL, batch, 32).map_err(|error| Error::from_model(&error));
    let candidate = Candidate {
        stages,
        mesh: vec![ranks],
        micro_batches: 4 / ranks,
        division: Division::Alike(zero),
        rule: Rule::Data,
    };
    let found = Planner::new(16, settings, build).plan_for(&cluster(fields), &candidate).unwrap();
    (found.best.seconds, found.best.bytes())
}

fn shapes() -> impl Strategy<Value = (usize, usize, Sharding)> {
    let shape = prop_oneof![Just((1, 4)), Just((2, 2)), Just((4, 1))];
    let zero =
        prop_oneof![Just(Sharding::None), Just(Sharding::Optimizer), Just(Sharding::Parameters)];
    (shape, zero).prop_map(|((stages, ranks), zero)| (stages, ranks, zero))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_dearer_byte_or_message_makes_no_plan_cheaper(
        shape in shapes(),
        rate in 0.01_f64..5.0,
        slower in 0.1_f64..1.0,
        message_us in 0.0_f64..200.0,
        more_us in 0.0_f64..200.0,
    ) {
        let text = |rate: f64, us: f64| {
            format!("handling_gbyte_per_s = {rate}\nhandling_us = {us}\nexchange_us = {us}")
        };
        let free = price("", shape).0;
        let some = price(&text(rate, message_us), shape).0;
        let dear = price(&text(rate * slower, message_us + more_us), shape).0;
        prop_assert!(free <= some * (1.0 + 1e-9) && some <= dear * (1.0 + 1e-9), "{free} {some} {dear}");
    }

    #[test]
    fn a_faster_operator_makes_no_plan_dearer(shape in shapes(), pace in 0.1_f64..10.0) {
        let with = |pace: f64| {
            let operators = format!("operators = {{ attention = {pace}, sum = {pace}, update = {pace} }}");
            price(&operators, shape).0
        };
        prop_assert!(with(2.0 * pace) <= with(pace) * (1.0 + 1e-9));
    }

    #[test]
    fn fixed_memory_counts_once_on_every_device(shape in shapes(), mib in 0.0_f64..100.0) {
        let (_, bytes) = price("", shape);
        let (_, more) = price(&format!("fixed_mib = {mib}"), shape);
        let fixed = mib * f64::from(1 << 20);
        prop_assert!((more - bytes - fixed).abs() < 1.0, "{bytes} {more} {fixed}");
    }
}

#[test]
fn messages_are_moved_while_a_rank_would_wait() {
    let seconds = |handling_s: f64, message_s, micro_batches| {
        let stage = Stage { forward_s: 1.0, backward_s: 2.0, message_s, ..Stage::default() };
        let orders = Schedule::OneForwardOneBackward.orders(2, micro_batches).unwrap();
        simulate(&orders, &[Stage { handling_s, ..stage }; 2]).unwrap().seconds
    };
    for handling_s in [0.1, 1.0, 3.0] {
        // The first stage waits between its passes; the last one continues at once.
        let later_s = seconds(handling_s, 0.5, 1) - seconds(0.0, 0.5, 1);
        assert!((later_s - handling_s).abs() < 1e-9, "{handling_s}: {later_s}");
    }
    // Where messages take no time the last stage never waits, and has it after all passes but one.
    let later_s = seconds(0.1, 0.0, 64) - seconds(0.0, 0.0, 64);
    assert!((later_s - 0.1 * 127.0).abs() < 1e-9, "{later_s}");
}

#[test]
fn every_collective_that_is_waited_for_takes_its_own_time_once() {
    const SHAPE: [usize; 2] = [64, 64];
    let taken_s = |mesh: &[usize], from: &Layout, to: &Layout| {
        let [with, without] = ["exchange_us = 700", ""].map(|fields| {
            let cluster = cluster(fields);
            Costs::new(&cluster, mesh, Precision::SINGLE).conversion_s(&SHAPE, from, to)
        });
        with - without
    };
    let (whole, cut) = (Placement::Replicated, Placement::Sharded(0));
    let sum = Placement::Partial(Reduction::Sum);
    for (from, to, collectives) in [
        (sum, whole, 1.0),
        (sum, cut, 1.0),
        (cut, whole, 1.0),
        (cut, Placement::Sharded(1), 1.0),
        // Nobody sends anything.
        (whole, cut, 0.0),
        (whole, whole, 0.0),
    ] {
        let one = |placement| Layout(vec![placement]);
        let found_s = taken_s(&[4], &one(from), &one(to));
        assert!((found_s - 7e-4 * collectives).abs() < 1e-9, "{from:?} {to:?}: {found_s}");
    }
    let found_s = taken_s(&[2, 2], &Layout(vec![sum, sum]), &Layout(vec![whole, whole]));
    assert!((found_s - 2.0 * 7e-4).abs() < 1e-9, "of two dimensions of the mesh: {found_s}");
}
