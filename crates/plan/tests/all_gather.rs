//! Laws of bringing new parameters all_gather: the next forward hides it, as backward hides gradients.

use proptest::prelude::*;
use thinwire_model::named;
use thinwire_plan::Cluster;
use thinwire_plan::cost::{Cost, Division, Sharding};
use thinwire_plan::pipeline::{Schedule, Stage, simulate};
use thinwire_plan::search::{
    Candidate, Evaluated, Outcome, Prepared, Recompute, Rule, Settings, evaluate, simulated_s,
    timeline,
};

const MODEL: &str = "gpt:layers=4,width=256,heads=4,vocabulary=512,positions=128";

/// A plan of four devices, with links of so many Gbit/s.
fn plan(gbit: f64, stages: usize, micro_batches: usize, division: Division) -> Outcome {
    plan_under(Schedule::OneForwardOneBackward, gbit, (stages, micro_batches), division)
}

/// The same under an order of passes.
fn plan_under(
    schedule: Schedule,
    gbit: f64,
    (stages, micro_batches): (usize, usize),
    division: Division,
) -> Outcome {
    let text = format!(
        "[[device]]\nname = \"rank\"\ntflops = 100\nmemory_gib = 80\nmemory_gbyte_per_s = 1000\n\
         overhead_us = 10\n[[level]]\nname = \"link\"\nsize = 4\nlatency_us = 10\ngbit = {gbit}\n"
    );
    let cluster = Cluster::parse(&text).unwrap();
    let graph = named(MODEL, 16 / micro_batches, 128).unwrap();
    let prepared = Prepared::new(graph).unwrap();
    let (mesh, rule) = (vec![4 / stages], Rule::Data);
    let candidate = Candidate { stages, mesh, micro_batches, division, rule };
    let schedule = Some(schedule);
    let settings = Settings { recompute: Recompute::Never, schedule, ..Settings::default() };
    let verdict = evaluate(&cluster, &prepared, &candidate, &settings, &|| f64::INFINITY);
    let Evaluated::Found(plan) = verdict else { panic!("no plan of {candidate:?}") };
    *plan
}

const ALIKE: [Sharding; 4] =
    [Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters];

fn sharding() -> impl Strategy<Value = Sharding> {
    proptest::sample::select(ALIKE.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn one_stage_takes_the_longer_of_each_pass_and_what_travels_behind_it(
        gbit in -2.0_f64..3.0,
        micro_batches in proptest::sample::select(vec![1_usize, 2, 4]),
        sharding in sharding(),
    ) {
        let plan = plan(10_f64.powf(gbit), 1, micro_batches, Division::Alike(sharding));
        let Cost { forward_s, backward_s, sync_s, all_gather_s, .. } = plan.stages[0].cost;
        let forward = forward_s.max(all_gather_s) - forward_s;
        let backward = backward_s.max(sync_s) - backward_s;
        let rounds = micro_batches as f64 * plan.stages[0].cost.micro_s();
        let expected = rounds + forward + backward + plan.stages[0].cost.optimizer_s;
        let played = simulated_s(&plan, Settings::default().overlap).unwrap();
        prop_assert!((plan.seconds / expected - 1.0).abs() < 1e-9, "{} {expected}", plan.seconds);
        prop_assert!((played / expected - 1.0).abs() < 1e-9, "{played} {expected}");
    }

    #[test]
    fn no_division_is_faster_than_the_bound_of_all(
        gbit in -2.0_f64..3.0,
        (stages, micro_batches) in proptest::sample::select(vec![(1_usize, 1_usize), (1, 4), (2, 2), (4, 4)]),
    ) {
        let gbit = 10_f64.powf(gbit);
        let each = plan(gbit, stages, micro_batches, Division::Each);
        prop_assert!(each.bound_s <= each.seconds * (1.0 + 1e-9));
        // To divide nothing is no choice without codecs.
        for sharding in &ALIKE[1..] {
            let alike = plan(gbit, stages, micro_batches, Division::Alike(*sharding));
            prop_assert!(alike.bound_s <= alike.seconds * (1.0 + 1e-9), "{sharding:?}");
            let least_s = alike.seconds * (1.0 + 1e-9);
            prop_assert!(each.bound_s <= least_s, "{sharding:?}: {} {least_s}", each.bound_s);
            prop_assert!(each.seconds <= least_s, "{sharding:?}: {} {least_s}", each.seconds);
        }
    }

    #[test]
    fn later_stages_have_longer_to_bring_them_home(all_gather_s in 0.0_f64..9.0, first_s in 0.0_f64..1.0) {
        let stage = Stage { forward_s: 1.0, backward_s: 2.0, ..Stage::default() };
        let orders = Schedule::OneForwardOneBackward.orders(3, 4).unwrap();
        let seconds = |at: usize| {
            let mut stages = [stage; 3];
            stages[at] = Stage { home_s: all_gather_s, first_s, ..stage };
            simulate(&orders, &stages).unwrap().seconds
        };
        let calm = simulate(&orders, &[stage; 3]).unwrap().seconds;
        let beyond = |at: usize| (all_gather_s - 1.0 - at as f64).max(first_s);
        // The last stage is never idle once it has begun.
        prop_assert!((seconds(2) - calm - beyond(2)).abs() < 1e-9, "{}", seconds(2) - calm);
        prop_assert!(seconds(1) >= seconds(2) - 1e-9 && seconds(0) >= seconds(1) - 1e-9);
        prop_assert!(seconds(0) <= calm + beyond(0) + 1e-9);
    }
}

#[test]
fn gradients_travel_behind_the_last_of_what_makes_them() {
    let overlap = Settings::default().overlap;
    let orders = [
        (Schedule::OneForwardOneBackward, 1.0),
        (Schedule::Gpipe, 1.0),
        (Schedule::ZeroBubble, 0.5),
    ];
    for (schedule, part) in orders {
        let plan = plan_under(schedule, 1.0, (2, 4), Division::Alike(Sharding::None));
        let end = |cost: Cost| cost.sync_s - part * cost.backward_s + cost.optimizer_s;
        let expected_s = plan.stages.iter().map(|stage| end(stage.cost)).fold(0.0, f64::max);
        let found_s = plan.tail_s(overlap);
        assert!((found_s / expected_s - 1.0).abs() < 1e-9, "{schedule}: {found_s} {expected_s}");
        let played_s = simulated_s(&plan, overlap).unwrap();
        assert!(plan.bound_s <= played_s.min(plan.seconds) * (1.0 + 1e-9), "{schedule}");
    }
}

#[test]
fn a_stage_that_is_done_early_has_as_long_for_its_gradients() {
    let overlap = Settings::default().overlap;
    let schedule = Schedule::OneForwardOneBackward;
    let mut plan = plan_under(schedule, 1.0, (2, 4), Division::Alike(Sharding::None));
    plan.stages.iter_mut().for_each(|stage| stage.cost.sync_s = 0.0);
    let calm_s = simulated_s(&plan, overlap).unwrap();
    let runs = timeline(&plan, overlap).unwrap().ranks;
    let [first, last] = [0, 1].map(|place: usize| runs[place].last().unwrap().end_s);
    assert!(last < first, "the last stage is done before the first one: {last} {first}");
    // It begins when its last message is gone, and has until the first stage is done with all.
    let room_s = calm_s - last - plan.stages[1].cost.optimizer_s;
    for (sync_s, later_s) in [(0.99 * room_s, 0.0), (room_s + 1.0, 1.0)] {
        plan.stages[1].cost.sync_s = sync_s;
        let found_s = simulated_s(&plan, overlap).unwrap();
        assert!((found_s - calm_s - later_s).abs() < 1e-9, "{sync_s}: {found_s} {calm_s}");
    }
}
