//! Plans for numbers of devices and sequences that do not divide.

mod made;

use thinwire_plan::Cluster;
use thinwire_plan::output::report;
use thinwire_plan::search::Settings;

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
            assert_eq!(text.contains("ATTENTION"), used < devices, "{text}");
        }
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
