//! Laws of freedom: whoever may choose from more is never slower, and what is proven of all plans is
//! true of each.

mod made;

use proptest::prelude::*;
use thinwire_plan::cost::{Coding, Division, Sharding};
use thinwire_plan::report::{plan_file, report};
use thinwire_plan::search::{
    Candidate, Evaluated, Planner, Prepared, Recompute, Rule, Scope, Settings,
    candidates as candidates_of, evaluate,
};
use thinwire_plan::{Cluster, Error};

/// So much slower may a plan be: one that is as near to its bound is good enough.
const SLOWER: f64 = 1.05;

/// So much slower may a plan be with more: memory is fitted step by step.
const NOISE: f64 = 1.05;

const SMALL: &str = "gpt:layers=4,width=64,heads=2,vocabulary=512,positions=16";

const CODECS: [&str; 3] = ["int8", "int4", "onebit"];

/// Two nodes of four devices, which move so many gigabytes a second themselves, where they do.
fn cluster(gbit: f64, memory_gib: f64, handling_gbyte_per_s: f64) -> Cluster {
    let mut cluster = made::cluster(2, 4, gbit, memory_gib);
    cluster.devices[0].handling.byte_s = 1e-9 / handling_gbyte_per_s;
    cluster
}

fn codings() -> Vec<Coding> {
    CODECS.iter().map(|name| Coding::parse(name).unwrap()).collect()
}

fn candidates() -> impl Strategy<Value = Candidate> {
    let shapes = [(1, vec![8]), (1, vec![2, 4]), (2, vec![4]), (4, vec![2]), (2, vec![2, 2])];
    let shapes = proptest::sample::select(shapes.to_vec());
    (shapes, proptest::sample::select(vec![1, 2, 4])).prop_map(|((stages, mesh), micro_batches)| {
        let (division, rule) = (Division::Each, Rule::Free);
        Candidate { stages, mesh, micro_batches, division, rule }
    })
}

/// Seconds of the best plan of a candidate, if it fits. Its model has no parameter that several stages
/// use: strategies are chosen without what these send each other for that.
fn seconds(cluster: &Cluster, candidate: &Candidate, settings: Settings) -> f64 {
    let mut planner = Planner::new(32, settings, |batch| {
        let model = "llama:layers=4,width=256,heads=4,key_heads=4,feed_forward=1024,vocabulary=8192,positions=128";
        thinwire_model::named(model, batch, 128).map_err(|error| Error::from_model(&error))
    });
    planner.plan_for(cluster, candidate).map_or(f64::INFINITY, |found| found.best.seconds)
}

/// What is known of all plans of a candidate.
fn verdict(cluster: &Cluster, candidate: &Candidate, settings: &Settings) -> Evaluated {
    let micro = 32 / candidate.micro_batches;
    let prepared = Prepared::new(made::gpt(4, 256, 128).graph(micro, 128).unwrap()).unwrap();
    evaluate(cluster, &prepared, candidate, settings, &|| f64::INFINITY)
}

/// Three devices of which a batch of 32 keeps two busy.
fn three(latency_us: f64, gbit: f64) -> Cluster {
    Cluster::parse(&format!(
        "[[device]]\nname = \"d\"\ntflops = 14.37\nmemory_gib = 0.759\nmemory_gbyte_per_s = 2068\noverhead_us = 1\n\
         efficiency = [[1, 0.06], [12, 0.4], [1000, 0.8]]\n\
         [[level]]\nname = \"l\"\nsize = 3\nlatency_us = {latency_us}\ngbit = {gbit}\n"
    ))
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_candidate_alone_is_faster_than_the_search(
        latency_us in 0.0_f64..1000.0,
        gbit in 5.0_f64..50.0,
    ) {
        let cluster = three(latency_us, gbit);
        let mut planner = Planner::new(32, Settings::of_executor(), |batch| {
            let model = "bert:layers=2,width=128,heads=4,vocabulary=512,positions=64";
            thinwire_model::named(model, batch, 64).map_err(|error| Error::from_model(&error))
        });
        let found = planner.plan(&cluster).unwrap();
        for (stages, mesh, micro_batches) in [(1, vec![2], 1), (1, vec![2], 2), (2, vec![1], 4), (3, vec![1], 2)] {
            let (division, rule) = (Division::Each, Rule::Free);
            let candidate = Candidate { stages, mesh, micro_batches, division, rule };
            let alone_s = planner.plan_for(&cluster, &candidate).unwrap().best.seconds;
            let found_s = found.best.seconds;
            prop_assert!(found_s <= alone_s * (1.0 + 1e-9), "{candidate:?}: {alone_s}, found {found_s}");
        }
    }

    #[test]
    fn parameters_divided_each_as_is_best_are_as_fast_as_alike(
        candidate in candidates(),
        (gbit, memory_gib, handling) in (0.5_f64..800.0, 0.05_f64..4.0, 0.5_f64..500.0),
    ) {
        let cluster = cluster(gbit, memory_gib, handling);
        let each_s = seconds(&cluster, &candidate, Settings::default());
        let mut checks = 0;
        for sharding in [Sharding::None, Sharding::Optimizer, Sharding::Parameters] {
            let division = Division::Alike(sharding);
            let alike = Candidate { division, ..candidate.clone() };
            let alike_s = seconds(&cluster, &alike, Settings::default());
            checks += usize::from(alike_s.is_finite());
            prop_assert!(each_s <= SLOWER * alike_s, "{:?}: {}, each {}", sharding, alike_s, each_s);
        }
        prop_assume!(checks > 0);
    }

    #[test]
    fn what_is_known_of_all_plans_holds_for_those_that_give_up_alike(
        candidate in candidates(),
        (gbit, room) in (0.5_f64..800.0, prop_oneof![0.8_f64..1.0, 1.0_f64..6.0]),
        encoded in any::<bool>(),
    ) {
        let codings = if encoded { codings() } else { Vec::new() };
        let free = Settings { codings, ..Settings::default() };
        // About as much memory as the smallest plan needs.
        let mut cluster = cluster(gbit, 1e-3, f64::INFINITY);
        let Evaluated::TooLarge(all) = verdict(&cluster, &candidate, &free) else {
            panic!("1 MiB is no room for {candidate:?}");
        };
        cluster.devices[0].memory_bytes = room * all.needed_bytes / (1.0 - free.reserve);
        let all = verdict(&cluster, &candidate, &free);
        let (bound_s, least_bytes) = match &all {
            Evaluated::Found(plan) => {
                let bounds = plan.other_schedules.iter().map(|other| other.bound_s);
                (bounds.fold(plan.bound_s.min(plan.infeasible_bound_s), f64::min), 0.0)
            }
            Evaluated::TooLarge(all) => (all.bound_s, all.least_bytes),
            Evaluated::TooSlow(seconds) => (*seconds, 0.0),
            Evaluated::Impossible => (f64::INFINITY, 0.0),
        };
        let mut checks = 0;
        for recompute in [Recompute::Never, Recompute::Always] {
            for sharding in [Sharding::None, Sharding::Optimizer, Sharding::Parameters] {
                let candidate = Candidate { division: Division::Alike(sharding), ..candidate.clone() };
                let settings = Settings { recompute, ..free.clone() };
                let some = verdict(&cluster, &candidate, &settings);
                checks += usize::from(matches!(some, Evaluated::Found(_) | Evaluated::TooLarge(_)));
                match some {
                    Evaluated::Found(plan) => {
                        let seconds = plan.seconds * (1.0 + 1e-9);
                        prop_assert!(bound_s <= seconds, "{sharding:?}: {bound_s}, a plan {seconds}");
                    }
                    Evaluated::TooLarge(some) => {
                        let bytes = some.needed_bytes * (1.0 + 1e-9);
                        prop_assert!(least_bytes <= bytes, "{sharding:?}: {least_bytes}, a plan {bytes}");
                    }
                    Evaluated::TooSlow(_) | Evaluated::Impossible => {}
                }
            }
        }
        prop_assume!(checks > 0);
    }

    #[test]
    fn whoever_may_encode_gradients_is_as_fast_as_who_may_not(
        candidate in candidates(),
        (gbit, memory_gib) in (0.5_f64..800.0, 0.05_f64..4.0),
        error_budget in 0.0_f64..0.1,
    ) {
        let cluster = cluster(gbit, memory_gib, f64::INFINITY);
        let raw_s = seconds(&cluster, &candidate, Settings::default());
        prop_assume!(raw_s.is_finite());
        let settings = Settings { codings: codings(), error_budget, ..Settings::default() };
        let encoded_s = seconds(&cluster, &candidate, settings);
        prop_assert!(encoded_s <= SLOWER * raw_s, "{}, raw {}", encoded_s, raw_s);
    }
}

#[test]
fn a_bound_is_near_plans_whatever_is_encoded() {
    for (gbit, error_budget) in [(25.0, 0.02), (200.0, 0.005), (670.0, 0.02)] {
        let activation_codings = ["f16", "int8"].map(|name| Coding::of_activations(name).unwrap());
        let settings = Settings {
            codings: codings(),
            error_budget,
            activation_codings: activation_codings.to_vec(),
            ..Settings::default()
        };
        let mut planner = made::planner(made::gpt(6, 512, 128), 64, settings);
        let found = planner.plan(&cluster(gbit, 80.0, f64::INFINITY)).unwrap();
        assert!(found.bound_s > 0.0 && found.bound_s <= found.best.seconds, "{}", found.bound_s);
    }
}

#[test]
fn a_large_batch_is_one_micro_batch_where_memory_allows() {
    let cluster = made::cluster(1, 2, 100.0, 80.0);
    let settings = Settings::default();
    let mut planner = made::planner(made::gpt(2, 128, 32), 256, settings.clone());
    let found = planner.plan(&cluster).unwrap();
    for micro_batches in [1, 2, 4, 8] {
        let (division, rule) = (Division::Each, Rule::Free);
        let candidate = Candidate { stages: 1, mesh: vec![2], micro_batches, division, rule };
        let known_s = planner.plan_for(&cluster, &candidate).unwrap().best.seconds;
        assert!(found.best.seconds <= known_s, "{}, {known_s}", found.best.seconds);
        assert!(found.bound_s <= known_s, "{}, a plan {known_s}", found.bound_s);
    }
}

#[test]
fn a_link_that_is_too_slow_stays_unused() {
    let mut cluster = made::cluster(2, 4, 1e-3, 80.0);
    cluster.levels[1].latency_s = 1.0;
    let mut planner = made::planner(made::gpt(2, 128, 32), 64, Settings::default());
    let found = planner.plan(&cluster).unwrap();
    let alone = planner.plan(&made::cluster(1, 4, 1.0, 80.0)).unwrap();
    let seconds = [found.best.seconds, alone.best.seconds];
    assert!(seconds[0] <= seconds[1] * (1.0 + 1e-9), "{seconds:?}");
    assert!(found.best.candidate.devices() <= 4, "{:?}", found.best.candidate);
}

#[test]
fn a_small_budget_slows_no_plan() {
    let cluster = "[[device]]\nname = \"a\"\ntflops = 10\nmemory_gib = 0.05\nmemory_gbyte_per_s = 500\n\
        [[level]]\nname = \"node\"\nsize = 4\nlatency_us = 1\ngbit = 100\n";
    let cluster = Cluster::parse(cluster).unwrap();
    let (stages, mesh, micro_batches) = (2, vec![2, 1], 2);
    let (division, rule) = (Division::Each, Rule::Free);
    let candidate = Candidate { stages, mesh, micro_batches, division, rule };
    let seconds = |codings| {
        let settings = Settings { codings, error_budget: 1e-3, ..Settings::default() };
        let mut planner = Planner::new(8, settings, |batch| {
            thinwire_model::named(SMALL, batch, 16).map_err(|error| Error::from_model(&error))
        });
        planner.plan_for(&cluster, &candidate).unwrap().best.seconds
    };
    let [raw_s, encoded_s] = [Vec::new(), codings()].map(seconds);
    assert!(encoded_s <= raw_s, "{encoded_s}, raw {raw_s}");
}

/// Two levels of so many members, with links between nodes of so many gigabits a second.
#[derive(Clone, Copy, Debug)]
struct Machines {
    nodes: usize,
    devices: usize,
    gbit: f64,
    memory_gib: f64,
}

impl Machines {
    fn cluster(self) -> Cluster {
        made::cluster(self.nodes, self.devices, self.gbit, self.memory_gib)
    }

    /// The cluster with one more node, whose devices are a tenth as fast, before or behind others.
    fn with_a_slow_node(self, before: bool) -> Cluster {
        let mut cluster = Machines { nodes: self.nodes + 1, ..self }.cluster();
        let mut slow = cluster.devices[0].clone();
        slow.flops_per_s /= 10.0;
        slow.memory_bytes_per_s /= 10.0;
        slow.memory_bytes /= 2.0;
        cluster.devices.push(slow);
        cluster.kinds = vec![0; self.nodes];
        cluster.kinds.insert(if before { 0 } else { self.nodes }, 1);
        cluster
    }
}

fn machines() -> impl Strategy<Value = Machines> {
    (1_usize..7, 1_usize..5, 0.2_f64..400.0, 0.1_f64..4.0).prop_map(
        |(nodes, devices, gbit, memory_gib)| Machines { nodes, devices, gbit, memory_gib },
    )
}

const MODELS: [&str; 3] =
    ["mlp", SMALL, "bert:layers=3,width=128,heads=4,vocabulary=512,positions=64"];

fn searcher(model: &'static str, batch: usize) -> Planner {
    Planner::new(batch, Settings::of_executor(), move |batch| {
        thinwire_model::named(model, batch, tokens(model))
            .map_err(|error| Error::from_model(&error))
    })
}

/// Tokens of a sequence of one of the models.
fn tokens(model: &str) -> usize {
    if model == "mlp" { thinwire_model::usual_sequence(model) } else { 16 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn no_mesh_of_the_search_is_faster_than_the_plan(
        machines in machines(),
        model in proptest::sample::select(MODELS.to_vec()),
        batch in proptest::sample::select(vec![24_usize, 96, 256]),
        places in proptest::collection::vec(any::<proptest::sample::Index>(), 8),
        sharding in proptest::sample::select(vec![Sharding::None, Sharding::Optimizer, Sharding::Parameters]),
    ) {
        let (cluster, mut planner) = (machines.cluster(), searcher(model, batch));
        let found = planner.plan(&cluster);
        prop_assume!(found.is_ok());
        let (found, mut checks) = (found.unwrap(), 0);
        let blocks = thinwire_model::named(model, 1, tokens(model)).unwrap().blocks.len();
        let scope = Scope { batch, blocks, idle: true };
        let all = candidates_of(&cluster, &scope, &[Division::Each, Division::Alike(sharding)]);
        for candidate in places.iter().map(|place| place.get(&all)) {
            let Ok(alone) = planner.plan_for(&cluster, candidate) else { continue };
            let (alone_s, found_s) = (alone.best.seconds, found.best.seconds);
            prop_assert!(found_s <= alone_s * (1.0 + 1e-9), "{candidate:?}: {alone_s}, found {found_s}");
            checks += 1;
        }
        prop_assume!(checks > 0);
    }

    #[test]
    fn whoever_has_more_machines_is_as_fast_as_who_has_fewer(
        machines in machines(),
        model in proptest::sample::select(MODELS.to_vec()),
        batch in proptest::sample::select(vec![24_usize, 96, 256]),
        before in any::<bool>(),
    ) {
        let seconds = |cluster: &Cluster| {
            searcher(model, batch).plan(cluster).map_or(f64::INFINITY, |found| found.best.seconds)
        };
        let less_s = seconds(&machines.cluster());
        prop_assume!(less_s.is_finite());
        let Machines { nodes, gbit, memory_gib, .. } = machines;
        for more in [
            Machines { nodes: nodes + 1, ..machines }.cluster(),
            Machines { nodes: 2 * nodes, ..machines }.cluster(),
            Machines { gbit: 2.0 * gbit, ..machines }.cluster(),
            Machines { memory_gib: 2.0 * memory_gib, ..machines }.cluster(),
            machines.with_a_slow_node(before),
        ] {
            let more_s = seconds(&more);
            prop_assert!(more_s <= less_s * NOISE, "{more_s}, with less {less_s}: {more:?}");
        }
    }
}

#[test]
fn the_fastest_devices_are_used_wherever_they_stand() {
    let machines = Machines { nodes: 1, devices: 4, gbit: 0.1, memory_gib: 4.0 };
    let cluster = machines.with_a_slow_node(true);
    let mut planner = searcher(SMALL, 64);
    let alone_s = searcher(SMALL, 64).plan(&machines.cluster()).unwrap().best.seconds;
    let found = planner.plan(&cluster).unwrap();
    assert!(found.best.seconds <= alone_s * (1.0 + 1e-9), "{} {alone_s}", found.best.seconds);
    let file = plan_file(SMALL, 16, &planner, &cluster, &found).unwrap();
    let ranks = found.best.candidate.devices();
    assert_eq!(file.devices, (4..4 + ranks).collect::<Vec<_>>());
    let text = report(&planner, &cluster, &found).unwrap();
    assert!(text.contains("no plan for all is faster; ranks are for devices 4"), "{text}");
}

#[test]
fn plans_of_experts_are_candidates_where_a_kind_is_left_out() {
    let kind = |name: &str, part: f64| {
        format!(
            "[[device]]\nname = \"{name}\"\ntflops = {}\nmemory_gib = 80\nmemory_gbyte_per_s = {}\noverhead_us = 0.909\n",
            384.0 * part,
            804.0 * part
        )
    };
    let levels = |nodes: usize| {
        format!(
            "[[level]]\nname = \"node\"\nsize = 2\nlatency_us = 44.6\ngbit_matrix = [[0, 35.7], [302, 0]]\n\
             [[level]]\nname = \"pod\"\nsize = {nodes}\nlatency_us = 34.9\ngbit = 265.5\n"
        )
    };
    let fast = kind("fast", 1.0);
    let alone = Cluster::parse(&(fast.clone() + &levels(4))).unwrap();
    let kinds = "kinds = [\"slow\", \"fast\", \"fast\", \"fast\", \"fast\"]\n";
    let mixed = kinds.to_owned() + &fast + &kind("slow", 0.1) + &levels(5);
    let mixed = Cluster::parse(&mixed).unwrap();
    let seconds = |cluster: &Cluster| {
        let mut planner = Planner::new(24, Settings::of_executor(), |batch| {
            thinwire_model::named("resnet50", batch, thinwire_model::usual_sequence("resnet50"))
                .map_err(|error| Error::from_model(&error))
        });
        planner.plan(cluster).unwrap().best.seconds
    };
    let [alone_s, mixed_s] = [&alone, &mixed].map(seconds);
    assert!(mixed_s <= alone_s * (1.0 + 1e-9), "{mixed_s}, without the slow node {alone_s}");
}
