//! Laws of parameters that two stages use: sums and new values travel between them once a step.

use thinwire_model::named;
use thinwire_plan::Cluster;
use thinwire_plan::cost::{Cost, Division, Sharding};
use thinwire_plan::search::{
    Candidate, Evaluated, Outcome, Prepared, Recompute, Rule, Settings, evaluate, simulated_s,
};

const VOCABULARY: usize = 8192;
const WIDTH: usize = 64;

/// Two stages of so many devices, with links of so many Gbit/s that take no time but for bytes.
fn plan(model: &str, gbit: f64, width: usize, sharding: Sharding) -> Outcome {
    let text = format!(
        "[[device]]\nname = \"rank\"\ntflops = 1\nmemory_gib = 80\nmemory_gbyte_per_s = 100\n\
         [[level]]\nname = \"link\"\nsize = {}\nlatency_us = 0\ngbit = {gbit}\n",
        2 * width
    );
    let cluster = Cluster::parse(&text).unwrap();
    let prepared = Prepared::new(named(model, 4, 32).unwrap()).unwrap();
    let (mesh, rule, division) = (vec![width], Rule::Data, Division::Alike(sharding));
    let candidate = Candidate { stages: 2, mesh, micro_batches: 2, division, rule };
    let settings = Settings { recompute: Recompute::Never, ..Settings::of_executor() };
    let verdict = evaluate(&cluster, &prepared, &candidate, &settings, &|| f64::INFINITY);
    let Evaluated::Found(plan) = verdict else { panic!("no plan of {candidate:?}") };
    *plan
}

fn gpt() -> String {
    format!("gpt:layers=2,width={WIDTH},heads=2,vocabulary={VOCABULARY},positions=32")
}

/// Seconds of the embedding on a link of so many Gbit/s.
fn embedding_s(gbit: f64) -> f64 {
    (4 * VOCABULARY * WIDTH + thinwire_wire::HEADER_BYTES) as f64 / (gbit * 1e9 / 8.0)
}

#[test]
fn an_embedding_that_is_the_heads_weight_goes_there_and_back() {
    for gbit in [0.1, 1.0, 10.0, 1e4] {
        let plan = plan(&gpt(), gbit, 1, Sharding::None);
        let Cost { forward_s, backward_s, .. } = plan.stages[0].cost;
        let whole_s = embedding_s(gbit);
        let expected_s = (whole_s - backward_s).max(0.0) + (whole_s - forward_s).max(0.0);
        let found_s = plan.stages[0].shared_parameter_s;
        assert!((found_s - expected_s).abs() <= 1e-9 * whole_s, "{gbit}: {found_s} {expected_s}");
        assert_eq!(plan.stages[1].shared_parameter_s, 0.0);
        let overlap = Settings::of_executor().overlap;
        let played_s = simulated_s(&plan, overlap).unwrap();
        assert!(plan.seconds.min(played_s) > expected_s, "{gbit}: {} {played_s}", plan.seconds);
        assert!(plan.bound_s <= plan.seconds.min(played_s) * (1.0 + 1e-9));
    }
}

#[test]
fn what_is_divided_is_sent_in_parts() {
    let shared_parameter_s =
        |sharding| plan(&gpt(), 0.01, 2, sharding).stages[0].shared_parameter_s;
    let [whole, sums, all] =
        [Sharding::None, Sharding::Optimizer, Sharding::Parameters].map(shared_parameter_s);
    let embedding_s = embedding_s(0.01);
    assert!((whole / (2.0 * embedding_s) - 1.0).abs() < 0.05, "{whole} of {embedding_s}");
    assert!((sums / (1.5 * embedding_s) - 1.0).abs() < 0.05, "{sums} of {embedding_s}");
    assert!((all / embedding_s - 1.0).abs() < 0.05, "{all} of {embedding_s}");
}

#[test]
fn heads_with_weights_of_their_own_send_nothing() {
    let llama =
        "llama:layers=2,width=64,heads=2,key_heads=2,feed_forward=64,vocabulary=8192,positions=32";
    assert_eq!(plan(llama, 0.1, 1, Sharding::None).stages[0].shared_parameter_s, 0.0);
}
