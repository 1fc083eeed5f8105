//! Laws of what is taken of plans that are nearly as fast: what playing says, and always the same.

use rayon::ThreadPoolBuilder;
use thinwire_model::{AttentionKind, Gpt};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::report::plan_file;
use thinwire_plan::search::{Found, Planner, Settings};
use thinwire_plan::{Cluster, Error};

/// Processors whose exchanges take time of their own, four or eight of them on slow links.
fn cluster(levels: &str) -> Cluster {
    let text = "[[device]]\nname = \"core\"\ntflops = 0.0295\nmemory_gib = 11.7\nfixed_mib = 6.2\n\
        memory_slack = 0.14\nmemory_gbyte_per_s = 1.716\noverhead_us = 2.26\n\
        efficiency = [[0.000033, 0.117], [0.000524, 0.506], [0.004194, 0.667], \
        [0.016777, 0.775], [0.067109, 1.0], [0.268435, 0.868], [1.073742, 0.815]]\n\
        handling_gbyte_per_s = 0.3507\nhandling_us = 42.78\n";
    Cluster::parse(&format!("{text}{levels}")).unwrap()
}

fn flat(size: usize, gbit: f64) -> Cluster {
    cluster(&format!("[[level]]\nname = \"link\"\nsize = {size}\nlatency_us = 30\ngbit = {gbit}\n"))
}

fn gpt(layers: usize, hidden: usize, positions: usize) -> Gpt {
    let (heads, feed_forward, vocabulary) = (4, 4 * hidden, 256);
    let attention = AttentionKind::Fused;
    Gpt { layers, hidden, heads, feed_forward, vocabulary, positions, attention, dropout: 0.0 }
}

fn planner(model: Gpt, batch: usize, schedule: Option<Schedule>) -> Planner {
    let settings = Settings { schedule, ..Settings::of_executor() };
    Planner::new(batch, settings, move |batch| {
        model.graph(batch, model.positions).map_err(|error| Error::from_model(&error))
    })
}

#[test]
fn no_schedule_of_the_same_candidate_is_faster() {
    let cases = [(gpt(6, 128, 64), 32, flat(8, 0.5)), (gpt(8, 64, 32), 16, flat(4, 1.0))];
    for (model, batch, cluster) in cases {
        let found = planner(model, batch, None).plan(&cluster).unwrap();
        let made_s = found.best.seconds;
        let chunks = [2, 4].map(|chunks| Schedule::Interleaved { chunks });
        let plain = [Schedule::OneForwardOneBackward, Schedule::ZeroBubble];
        for schedule in plain.into_iter().chain(chunks) {
            let mut planner = planner(model, batch, Some(schedule));
            let Ok(priced) = planner.plan_for(&cluster, &found.best.candidate) else { continue };
            let priced_s = priced.best.seconds;
            assert!(made_s <= priced_s * (1.0 + 1e-9), "{schedule}: {made_s}, alone {priced_s}");
        }
        let any = planner(model, batch, None).plan_for(&cluster, &found.best.candidate).unwrap();
        assert!((any.best.seconds / made_s - 1.0).abs() < 1e-9);
    }
}

#[test]
fn the_plan_does_not_depend_on_threads() {
    let levels = "[[level]]\nname = \"a\"\nsize = 4\nlatency_us = 30\ngbit = 5\n\
        [[level]]\nname = \"b\"\nsize = 2\nlatency_us = 60\ngbit = 0.5\n";
    let cluster = cluster(levels);
    let plan = || -> (Found, String) {
        let mut planner = planner(gpt(4, 256, 128), 32, None);
        let found = planner.plan(&cluster).unwrap();
        let file = plan_file("small", 128, &planner, &cluster, &found).unwrap();
        (found, file.text())
    };
    let (found, first) = plan();
    assert!(found.best.candidate.mesh[0] > 1, "{:?}", found.best.candidate);
    for threads in [1, 2, 2, 3, 1, 2] {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert_eq!(pool.install(plan).1, first, "{threads} threads");
    }
}
