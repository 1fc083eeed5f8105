//! Laws of plans for devices of several kinds: uneven stages and uneven shares.

#[allow(dead_code, reason = "devices of several kinds are clusters of their own")]
mod made;

use thinwire_plan::Cluster;
use thinwire_plan::cost::{Division, Sharding};
use thinwire_plan::pipeline::cut_by;
use thinwire_plan::report::{PlanFile, plan_file, report};
use thinwire_plan::search::{Candidate, Found, Outcome, Planner, Recompute, Rule, Settings};
use thinwire_wire::Hint;

/// Nodes of two devices, by their kinds, of which `slow` has `slow_tflops` and less memory.
fn cluster(kinds: &str, slow_tflops: f64) -> Cluster {
    let count = kinds.matches(',').count() + 1;
    let device = |name: &str, tflops: f64, memory_gib: f64| {
        format!(
            "[[device]]\nname = \"{name}\"\ntflops = {tflops}\nmemory_gib = {memory_gib}\n\
             memory_gbyte_per_s = {}\noverhead_us = 2\n",
            6.5 * tflops
        )
    };
    let (fast, slow) = (device("fast", 300.0, 80.0), device("slow", slow_tflops, 40.0));
    let text = format!(
        "kinds = [{kinds}]\n{fast}{slow}\
         [[level]]\nname = \"node\"\nsize = 2\nlatency_us = 5\ngbit = 2400\n\
         [[level]]\nname = \"pod\"\nsize = {count}\nlatency_us = 10\ngbit = 400\n"
    );
    Cluster::parse(&text).unwrap()
}

fn planner() -> Planner {
    made::planner(made::gpt(12, 1024, 512), 96, Settings::default())
}

fn plan(cluster: &Cluster) -> Found {
    planner().plan(cluster).unwrap()
}

const HALF: &str = "\"fast\", \"fast\", \"slow\", \"slow\"";

#[test]
fn the_slowest_does_not_set_the_pace() {
    let mixed = plan(&cluster(HALF, 100.0)).best.seconds;
    let all_slow = plan(&cluster("\"slow\", \"slow\", \"slow\", \"slow\"", 100.0)).best.seconds;
    let all_fast = plan(&cluster("\"fast\", \"fast\", \"fast\", \"fast\"", 100.0)).best.seconds;
    assert!(all_fast < mixed && mixed < 0.7 * all_slow, "{all_fast} {mixed} {all_slow}");
}

#[test]
fn kinds_that_are_equal_are_one_kind() {
    let equal = plan(&cluster(HALF, 300.0)).best;
    let one = plan(&cluster("\"fast\", \"fast\", \"fast\", \"fast\"", 300.0)).best;
    assert!(equal.shares.is_empty());
    assert!((equal.seconds / one.seconds - 1.0).abs() < 0.02, "{} {}", equal.seconds, one.seconds);
}

#[test]
fn every_micro_batch_is_done_once_and_all_fits() {
    let (cluster, mut planner) = (cluster(HALF, 100.0), planner());
    let found = planner.plan(&cluster).unwrap();
    assert!(found.bound_s <= found.best.seconds);
    let all = [&found.best].into_iter().chain(&found.others);
    for plan in all.filter(|plan| !plan.shares.is_empty()) {
        let Candidate { mesh, micro_batches, .. } = &plan.candidate;
        assert_eq!(plan.shares.len(), mesh[0]);
        assert_eq!(plan.shares.iter().sum::<usize>(), mesh[0] * micro_batches);
        assert!(plan.shares.is_sorted_by(|a, b| a >= b), "{:?}", plan.shares);
    }
    assert!(found.best.over(0.1) <= 0.0);
    for (_, expert) in &found.experts {
        let Ok(expert) = expert else { continue };
        assert!(found.best.seconds <= expert.seconds);
    }
    let file = plan_file("small", 512, &planner, &cluster, &found).unwrap();
    assert_eq!(PlanFile::parse(&file.text()).unwrap(), file);
    assert_eq!(file.shares, found.best.shares);
    let text = report(&planner, &cluster, &found).unwrap();
    assert_eq!(text.contains("along the first dimension"), !file.shares.is_empty(), "{text}");
}

#[test]
fn stages_get_blocks_by_their_speed_as_far_as_they_have_room() {
    let seconds = |stage: usize, _: usize| if stage == 0 { 1.0 } else { 3.0 };
    assert_eq!(cut_by(&seconds, &|_, _| 0, [16, 2]).unwrap(), [0..12, 12..16]);
    let nine = |stage: usize, end: usize| if stage == 0 { end.saturating_sub(9) } else { 0 };
    assert_eq!(cut_by(&seconds, &nine, [16, 2]).unwrap(), [0..9, 9..16]);
    assert_eq!(cut_by(&seconds, &|_, end| end.saturating_sub(7), [16, 2]), None);
}

#[test]
fn a_fast_stage_of_little_memory_gets_no_more_than_fits() {
    let mut cluster = cluster(HALF, 100.0);
    let [fast, slow] = &mut cluster.devices[..] else { unreachable!("two kinds") };
    let (mesh, rule, division) = (vec![4], Rule::Free, Division::Alike(Sharding::Optimizer));
    let candidate = Candidate { stages: 2, mesh, micro_batches: 8, division, rule };
    let settings = Settings { recompute: Recompute::Never, ..Settings::default() };
    (fast.memory_bytes, slow.memory_bytes) = (1e12, 1e12);
    let plan = |cluster: &Cluster| {
        let mut planner = made::planner(made::gpt(12, 1024, 512), 96, settings.clone());
        planner.plan_for(cluster, &candidate)
    };
    let roomy = plan(&cluster).unwrap().best;
    let bytes: Vec<f64> = roomy.stages.iter().map(|stage| stage.bytes()).collect();
    let counts = |plan: &Outcome| plan.stages.iter().map(|stage| stage.blocks.len()).collect();
    let blocks: Vec<usize> = counts(&roomy);
    assert!(blocks[0] > blocks[1], "{blocks:?}");
    cluster.devices[0].memory_bytes = 0.8 * bytes[0] / 0.9;
    let tight = plan(&cluster).expect("the slow devices have room for more").best;
    let fewer: Vec<usize> = counts(&tight);
    assert!(tight.over(0.1) <= 0.0 && fewer[0] < blocks[0], "{fewer:?} of {blocks:?}");
}

#[test]
fn what_is_too_large_names_the_smallest_kind_and_says_nothing_of_others() {
    let mut cluster = cluster(HALF, 100.0);
    cluster.devices.iter_mut().for_each(|device| device.memory_bytes /= 1024.0);
    let mut planner = made::planner(made::gpt(12, 4096, 512), 96, Settings::default());
    let error = planner.plan(&cluster).unwrap_err();
    let expected = "the smallest plan does not fit devices of every kind, \
                    expected at most 36.0 MiB on 'slow'";
    assert_eq!(error.to_string(), expected);
    assert!(!error.hint().unwrap().contains("with "), "{:?}", error.hint());
}
