//! Calls in the wrong order, and ranks at different steps: errors that say so.

mod made;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::time::Duration;

use made::{options, spawn_with};
use thinwire_link::mem;
use thinwire_sync::{Options, Outcome, Parameter, Synchronizer};

fn weight() -> Vec<Parameter> {
    vec![Parameter::new("weight", &[2, 2])]
}

fn alone() -> Synchronizer {
    Synchronizer::start(mem::alone(), weight(), Options::default()).unwrap()
}

/// The message of a panic of `read`.
fn panic_of(read: impl FnOnce() -> f32) -> String {
    let panic = catch_unwind(AssertUnwindSafe(read)).unwrap_err();
    panic.downcast_ref::<String>().unwrap().clone()
}

#[test]
fn two_parameters_of_one_name_are_refused() {
    let parameters = ["a", "b", "a"].map(|name| Parameter::new(name, &[8, 8])).to_vec();
    let refusal = Synchronizer::start(mem::alone(), parameters, Options::default()).unwrap_err();
    assert_eq!(refusal.to_string(), r#"two parameters are called "a", expected two names"#);
}

#[test]
fn calls_outside_of_a_step_are_refused() {
    let mut sync = alone();
    let hint = "(hint: call begin with the next step)";
    let before = format!("before the first step has begun {hint}");
    let refused = |result: Result<(), thinwire_sync::Error>| result.unwrap_err().to_string();
    assert_eq!(refused(sync.ready(0, &[1.0; 4])), format!("gradient of weight {before}"));
    assert_eq!(refused(sync.absent(0)), format!("absence of weight {before}"));
    assert_eq!(refused(sync.finish().map(drop)), format!("finish {before}"));
    sync.begin(3).unwrap();
    sync.ready(0, &[1.0; 4]).unwrap();
    assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
    let after = format!("after step 3 has ended {hint}");
    assert_eq!(refused(sync.ready(0, &[2.0; 4])), format!("gradient of weight {after}"));
    assert_eq!(refused(sync.finish().map(drop)), format!("finish {after}"));
    assert_eq!(sync.gradient(0), [1.0; 4]);
}

#[test]
fn an_average_that_there_is_none_of_is_not_returned() {
    let mut sync = alone();
    let none = "no average of weight";
    assert_eq!(panic_of(|| sync.gradient(0)[0]), format!("{none} yet: no step has begun"));
    sync.begin(3).unwrap();
    sync.ready(0, &[1.0; 4]).unwrap();
    let unfinished = format!("{none} yet: finish of step 3 was not called");
    assert_eq!(panic_of(|| sync.gradient(0)[0]), unfinished);
    assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
    assert_eq!(sync.gradient(0), [1.0; 4]);
    sync.begin(4).unwrap();
    sync.ready(0, &[1.0, f32::NAN, 1.0, 1.0]).unwrap();
    assert_eq!(sync.finish().unwrap(), Outcome::Skipped);
    assert_eq!(panic_of(|| sync.gradient(0)[0]), format!("{none}: step 4 was skipped"));
}

#[test]
fn ranks_at_different_steps_are_named_with_both() {
    for (size, algorithm) in [(2, "gather"), (2, "two-shot"), (3, "ring"), (4, "two-shot")] {
        let asked = Options {
            algorithm: Some(algorithm.parse().unwrap()),
            timeout: Duration::from_secs(20),
            ..options("none")
        };
        // The error of one rank reaches another one before what was sent earlier.
        let started = Barrier::new(size);
        let errors = spawn_with(size, &weight(), &asked, |mut sync| {
            started.wait();
            let late = sync.world().rank().0 == 1;
            sync.begin(if late { 3 } else { 4 }).unwrap();
            let given = sync.ready(0, &[1.0; 4]);
            given.and_then(|()| sync.finish()).unwrap_err().to_string()
        });
        let both = "ranks are at different steps: rank 1 at step 3, this rank at step 4";
        assert!(errors.iter().any(|error| error.contains(both)), "{algorithm}: {errors:?}");
        assert!(errors.iter().all(|error| error.contains("different steps")), "{errors:?}");
        assert!(errors.iter().all(|error| !error.contains("timeout")), "{errors:?}");
    }
}
