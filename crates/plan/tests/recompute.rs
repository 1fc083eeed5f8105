//! Laws of planning again: what earlier plans have learnt makes none slower, and bounds stay true.

mod made;

use std::collections::HashMap;

use thinwire_model::Gpt;
use thinwire_plan::Cluster;
use thinwire_plan::cost::Division;
use thinwire_plan::search::{Evaluated, Prepared, Scope, Settings, bound_s, candidates, evaluate};

/// Nodes, the part of links within them that is left, and Gbit/s between them.
const CHANGES: [(usize, f64, f64); 8] = [
    (4, 1.0, 100.0),
    (4, 1.0, 50.0),
    (4, 1.0, 400.0),
    (3, 1.0, 400.0),
    (4, 0.25, 100.0),
    (4, 1.0, 5.0),
    (4, 1.0, 100.0),
    (2, 1.0, 200.0),
];

/// So much slower may a plan be that is made again: of plans that take as long, which is refined
/// further depends on what was found first.
const SLOWER: f64 = 1.005;

fn changed((nodes, within, gbit): (usize, f64, f64), memory_gib: f64) -> Cluster {
    let mut cluster = made::cluster(nodes, 4, gbit, memory_gib);
    cluster.levels[0].bytes_per_s *= within;
    cluster
}

fn check(model: Gpt, batch: usize, memory_gib: f64) {
    let fresh = || made::planner(model, batch, Settings::default());
    let mut again = fresh();
    for change in CHANGES {
        let cluster = changed(change, memory_gib);
        let (second, anew) = (again.plan(&cluster).unwrap(), fresh().plan(&cluster).unwrap());
        let (second_s, anew_s) = (second.best.seconds, anew.best.seconds);
        assert!(second_s <= SLOWER * anew_s, "{change:?}: {second_s}, expected {anew_s}");
        let least_s = second_s.min(anew_s) * (1.0 + 1e-9);
        assert!(second.bound_s <= least_s, "{change:?}: {}, a plan {least_s}", second.bound_s);
        assert!(second.best.over(0.1) <= 0.0);
    }
}

#[test]
fn planning_again_finds_what_planning_anew_does() {
    check(made::gpt(6, 512, 512), 32, 80.0);
}

#[test]
fn planning_again_finds_what_planning_anew_does_with_many_sequences() {
    check(made::gpt(8, 1024, 256), 192, 80.0);
}

#[test]
fn planning_again_finds_what_planning_anew_does_where_memory_binds() {
    check(made::gpt(6, 1024, 512), 48, 1.0);
}

#[test]
fn no_plan_takes_less_than_its_arithmetic() {
    let (model, batch, settings) = (made::gpt(5, 512, 128), 24, Settings::default());
    let prepared = |micro: usize| Prepared::new(model.graph(micro, 128).unwrap()).unwrap();
    let mut known: HashMap<usize, Prepared> = HashMap::new();
    let blocks = model.graph(1, 128).unwrap().blocks.len();
    let mut met = 0;
    for (nodes, memory_gib) in [(2, 80.0), (3, 0.5)] {
        let cluster = made::cluster(nodes, 4, 1e6, memory_gib);
        for one in candidates(
            &cluster,
            &Scope { batch, blocks, sequences: usize::MAX },
            &[Division::Each],
            true,
        ) {
            let micro = batch / one.micro_batches;
            let prepared = known.entry(micro).or_insert_with(|| prepared(micro));
            let least_s = bound_s(&cluster, prepared, &one, &settings);
            let verdict = evaluate(&cluster, prepared, &one, &settings, &|| f64::INFINITY);
            let Evaluated::Found(plan) = verdict else { continue };
            let seconds = plan.seconds;
            assert!(least_s <= seconds * (1.0 + 1e-9), "{one:?}: {least_s}, a plan {seconds}");
            met += usize::from(least_s > 0.9 * seconds);
        }
    }
    assert!(met > 0, "no bound is within a tenth of a plan");
}
