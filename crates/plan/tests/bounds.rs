//! Law of bounds: no plan takes less time than the arithmetic of its candidate.

mod made;

use std::collections::HashMap;

use thinwire_plan::cost::Division;
use thinwire_plan::search::{Evaluated, Prepared, Scope, Settings, bound_s, candidates, evaluate};

#[test]
fn no_plan_takes_less_than_its_arithmetic() {
    let (model, batch, settings) = (made::gpt(5, 512, 128), 24, Settings::default());
    let prepared = |micro: usize| Prepared::new(model.graph(micro, 128).unwrap()).unwrap();
    let mut known: HashMap<usize, Prepared> = HashMap::new();
    let blocks = model.graph(1, 128).unwrap().blocks.len();
    let mut met = 0;
    for (nodes, memory_gib) in [(2, 80.0), (3, 0.5)] {
        let cluster = made::cluster(nodes, 4, 1e6, memory_gib);
        for one in candidates(&cluster, &Scope { batch, blocks, idle: true }, &[Division::Each]) {
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
