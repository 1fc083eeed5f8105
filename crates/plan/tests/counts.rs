//! Plans for numbers of devices and sequences that do not divide.

mod made;

use thinwire_plan::Cluster;
use thinwire_plan::cost::{Division, Sharding};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::report::report;
use thinwire_plan::search::{Candidate, Rule, Settings};

fn cluster(devices: usize) -> Cluster {
    made::cluster(1, devices, 100.0, 80.0)
}

#[test]
fn any_number_of_devices_has_a_plan_for_any_batch() {
    for devices in [1, 2, 3, 5, 6, 7, 9, 12, 13] {
        for batch in [1, 3, 7, 10] {
            let mut planner = made::planner(made::gpt(3, 128, 64), batch, Settings::default());
            let found = planner.plan(&cluster(devices)).unwrap();
            let candidate = &found.best.candidate;
            let used = candidate.stages * candidate.mesh.iter().product::<usize>();
            assert!(used <= devices && batch.is_multiple_of(candidate.micro_batches));
            let text = report(&planner, &cluster(devices), &found).unwrap();
            assert_eq!(text.contains("devices stay idle"), used < devices, "{text}");
        }
    }
}

#[test]
fn counts_that_nobody_has_are_refused() {
    let candidate = |micro_batches| Candidate {
        stages: 2,
        mesh: vec![1],
        micro_batches,
        division: Division::Alike(Sharding::None),
        rule: Rule::Free,
    };
    let planner = |batch, schedule| {
        let settings = Settings { schedule, ..Settings::default() };
        made::planner(made::gpt(2, 128, 64), batch, settings)
    };
    let many = planner(1_000_000_007, None).plan(&cluster(2)).unwrap_err().to_string();
    assert_eq!(many, "a step of 1000000007 sequences, expected at most 1048576");
    let priced = |batch, chunks, micro_batches| {
        let schedule = Some(Schedule::Interleaved { chunks });
        let plan = planner(batch, schedule).plan_for(&cluster(2), &candidate(micro_batches));
        plan.unwrap_err().to_string()
    };
    assert!(priced(1 << 20, 2, 1 << 20).ends_with("micro-batches, expected at most 65536"));
    let chunks = "interleaved 1F1B of 3 chunks on 2 stages for 4 blocks, expected a block for each";
    assert!(priced(4, 3, 2).starts_with(chunks), "{}", priced(4, 3, 2));
    let groups = "interleaved 1F1B of 2 chunks on 2 stages with 1 micro-batches, expected a";
    assert!(priced(4, 2, 1).starts_with(groups), "{}", priced(4, 2, 1));
}

#[test]
fn memory_binds_where_a_plan_without_its_end_is_faster() {
    let text = |memory_gib| {
        let mut planner = made::planner(made::gpt(3, 512, 512), 8, Settings::default());
        let cluster = made::cluster(1, 4, 100.0, memory_gib);
        let found = planner.plan(&cluster).unwrap();
        (found.best.seconds, report(&planner, &cluster, &found).unwrap())
    };
    let (most_s, room) = text(80.0);
    assert!(room.contains("memory does not bind"), "{room}");
    for memory_gib in [0.4, 0.2, 0.15] {
        let (seconds, tight) = text(memory_gib);
        let slower = seconds > 1.01 * most_s;
        assert!(!slower || tight.contains("memory binds: "), "{memory_gib}: {tight}");
    }
}

#[test]
fn nobody_is_idle_where_that_is_asked_for() {
    for devices in [5, 7, 12] {
        let settings = Settings { idle: false, ..Settings::default() };
        let mut planner = made::planner(made::gpt(3, 128, 64), 10, settings);
        let candidate = planner.plan(&cluster(devices)).unwrap().best.candidate;
        assert_eq!(candidate.stages * candidate.mesh.iter().product::<usize>(), devices);
    }
}

#[test]
fn idle_devices_are_no_reason_to_be_slower() {
    let plan = |devices, idle| {
        let settings = Settings { idle, ..Settings::default() };
        let mut planner = made::planner(made::gpt(3, 512, 512), 10, settings);
        planner.plan(&cluster(devices)).unwrap().best.seconds
    };
    for devices in [6, 7] {
        assert!(plan(devices, true) <= plan(devices, false) * (1.0 + 1e-9));
    }
}
