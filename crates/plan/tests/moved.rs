//! Laws of what tensors send: never less than the bound, and together what the plan sends.

mod made;

use thinwire_plan::cost::Exchange;
use thinwire_plan::output::{MovedKind, moved};
use thinwire_plan::search::{Chain, Found, Planner, Recompute, Settings, costs, spared_costs};
use thinwire_plan::{Cluster, Error};

/// Every plan that was found: the best, those next to it, and the experts'.
fn all(found: &Found) -> Vec<Found> {
    let experts = found.experts.iter().filter_map(|(_, plan)| plan.as_ref().ok());
    let plans = [&found.best].into_iter().chain(&found.others).chain(experts);
    plans.map(|best| Found { best: best.clone(), ..found.clone() }).collect()
}

fn check(planner: &Planner, cluster: &Cluster, found: &Found) {
    let what = format!("{:?} {}", found.best.candidate, found.best.schedule);
    let moved = moved(planner, cluster, found).unwrap();
    for one in &moved.tensors {
        let enough = one.sent_bytes >= one.least_bytes * (1.0 - 1e-9);
        assert!(enough && one.sent_bytes.is_finite(), "{what}: {one:?}");
    }
    assert!(moved.sent_bytes >= moved.least_bytes * (1.0 - 1e-9), "{what}");
    let outcome = &found.best;
    let costs = costs(cluster, &outcome.candidate, planner.settings());
    let prepared = planner.prepared(&outcome.candidate).unwrap();
    let sent = Chain::sent(prepared, &costs, outcome.candidate.rule, None).unwrap();
    let blocks = sent.costs(&outcome.choice);
    let blocks = spared_costs((&sent, &outcome.choice), &blocks, &outcome.spared);
    let rounds = outcome.rounds as f64;
    let expected: f64 = blocks.iter().map(|cost| rounds * cost.micro_s() + cost.sync_s).sum();
    let within = moved.tensors.iter().filter(|one| one.kind != MovedKind::Message);
    let total: f64 = within.map(|one| one.sent_bytes).sum();
    let near = (total - expected).abs() <= 1e-9 * expected.max(1.0);
    assert!(near, "{what}: {total} bytes of tensors, the plan sends {expected}");
}

#[test]
fn no_tensor_sends_less_than_its_bound() {
    for (nodes, gbit, memory_gib) in
        [(1, 25.0, 80.0), (4, 1.0, 80.0), (4, 800.0, 80.0), (2, 25.0, 1.0), (3, 25.0, 80.0)]
    {
        let cluster = made::cluster(nodes, 4, gbit, memory_gib);
        for exchange in [Exchange::Direct, Exchange::Flat] {
            let settings = Settings { exchange, ..Settings::default() };
            let mut planner = made::planner(made::gpt(6, 512, 512), 24, settings);
            let found = planner.plan(&cluster).unwrap();
            all(&found).iter().for_each(|found| check(&planner, &cluster, found));
        }
    }
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
            all(&found).iter().for_each(|found| check(&planner, &cluster, found));
        }
    }
}
