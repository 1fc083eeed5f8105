//! Laws of what moving bytes takes of a device's own time.

use proptest::prelude::*;
use thinwire_model::named;
use thinwire_plan::cost::{Division, Precision, Sharding};
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
        let text = |rate: f64, us: f64| format!("handling_gbyte_per_s = {rate}\nhandling_us = {us}");
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
