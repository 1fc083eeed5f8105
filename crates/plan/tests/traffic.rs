//! Laws of what tensors send: never less than the bound, and together what the plan sends.

mod made;

use thinwire_plan::cost::Exchange;
use thinwire_plan::report::{LevelTraffic, traffic};
use thinwire_plan::search::{Found, Planner, Recompute, Settings};
use thinwire_plan::{Cluster, Error};

/// Every plan that was found: the best, those next to it, and the experts'.
fn all(found: &Found) -> Vec<Found> {
    let experts = found.experts.iter().filter_map(|(_, plan)| plan.as_ref().ok());
    let plans = [&found.best].into_iter().chain(&found.others).chain(experts);
    plans.map(|best| Found { best: best.clone(), ..found.clone() }).collect()
}

/// How many of a plan's products have a bound, once its laws hold.
fn check(planner: &Planner, cluster: &Cluster, found: &Found) -> usize {
    let what = format!("{:?} {}", found.best.candidate, found.best.schedule);
    let traffic = traffic(planner, cluster, found).unwrap();
    for one in traffic.tensors.iter().chain(&traffic.products) {
        let enough = one.sent_bytes >= one.least_bytes * (1.0 - 1e-9);
        assert!(enough && one.sent_bytes.is_finite(), "{what}: {one:?}");
    }
    let mut names: Vec<&str> = traffic.tensors.iter().map(|one| &one.name[..]).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{what}: {names:?}");
    assert!(traffic.sent_bytes >= traffic.least_bytes * (1.0 - 1e-9), "{what}");
    let rows: f64 = traffic.tensors.iter().map(|one| one.sent_bytes).sum();
    let total = traffic.sent_bytes;
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.max(1.0);
    assert!(near(rows, total), "{what}: rows of {rows} bytes, {total} in all");
    if found.best.stages.len() == 1 {
        let of =
            |one: &LevelTraffic| one.collective_bytes + one.parameter_bytes + one.message_bytes;
        let levels: f64 = traffic.levels.iter().map(of).sum();
        assert!(near(levels, total), "{what}: {levels} bytes over all levels, {total} in all");
    }
    traffic.products.iter().filter(|one| one.least_bytes > 0.0).count()
}

#[test]
fn no_tensor_sends_less_than_its_bound() {
    let mut bounded = 0;
    for (nodes, gbit, memory_gib) in
        [(1, 25.0, 80.0), (4, 1.0, 80.0), (4, 800.0, 80.0), (2, 25.0, 1.0), (3, 25.0, 80.0)]
    {
        let cluster = made::cluster(nodes, 4, gbit, memory_gib);
        for exchange in [Exchange::Direct, Exchange::Flat] {
            let settings = Settings { exchange, ..Settings::default() };
            let mut planner = made::planner(made::gpt(6, 512, 512), 24, settings);
            let found = planner.plan(&cluster).unwrap();
            bounded += all(&found).iter().map(|one| check(&planner, &cluster, one)).sum::<usize>();
        }
    }
    assert!(bounded > 0, "some products have a bound");
}

#[test]
fn models_of_all_sorts_keep_to_it() {
    let named = ["mlp", "vgg16", "resnet50", "moe-small", "tinyllama-1.1b", "bert-base"];
    for name in named {
        for recompute in [Recompute::Free, Recompute::Always] {
            let settings = Settings { recompute, ..Settings::default() };
            let sequence = thinwire_model::usual_sequence(name).min(256);
            let mut planner = Planner::new(32, settings, move |batch| {
                thinwire_model::named(name, batch, sequence)
                    .map_err(|error| Error::from_model(&error))
            });
            let cluster = made::cluster(2, 4, 25.0, 80.0);
            let found = planner.plan(&cluster).unwrap();
            for found in all(&found) {
                check(&planner, &cluster, &found);
            }
        }
    }
}
