//! Laws of elastic jobs over loopback: real sockets, a thread per process.

mod process;
mod training;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thinwire_job::elastic::{
    Coordinator, CoordinatorMode, Event, Id, JobAddress, Membership, Next, Operator, Options,
};
use thinwire_job::{Kind, Settings};
use thinwire_link as link;

use process::{LONG, Order, Processes};

type Events = Arc<Mutex<Vec<Event>>>;

/// Longer silence than usual: the machine may do more than these tests.
const SILENCE: Duration = Duration::from_secs(8);

fn options(min: u32, max: u32) -> Options {
    Options { silence: SILENCE, ..Options::new(CoordinatorMode::Saved, min, max) }
}

fn bind(options: Options) -> (Coordinator, Events) {
    let events = Events::default();
    let told = Arc::clone(&events);
    let tell = move |event: &Event| told.lock().unwrap().push(event.clone());
    (Coordinator::bind("127.0.0.1:0", "secret", options, None, tell).unwrap(), events)
}

/// A job of so many processes that train.
fn job(options: Options, processes: usize) -> (Coordinator, Events, Processes) {
    let (coordinator, events) = bind(options);
    let mut job = Processes::new(options);
    (0..processes).for_each(|name| job.start(name, &coordinator.address()));
    job.wait_for_epoch(&(0..processes).collect::<Vec<_>>(), 0);
    (coordinator, events, job)
}

fn spec(model: &str) -> Vec<(String, String)> {
    vec![("data".to_owned(), "a.txt".to_owned()), ("model".to_owned(), model.to_owned())]
}

#[test]
fn survivors_of_a_killed_process_train_on_together() {
    let (coordinator, events, job) = job(options(1, 3), 3);
    let before = job.wait_for_steps(&[0, 1, 2], 5);
    job.order(1, Order::Die);
    let after = job.wait_for_epoch(&[0, 2], before[0].epoch);
    // State sources have all steps but perhaps the one that was interrupted.
    assert!(after.iter().all(|news| news.from + 1 >= before[1].done), "{before:?} {after:?}");
    let mut operator = Operator::connect(&coordinator.address(), "secret", LONG).unwrap();
    assert!(!operator.status().unwrap().contains(&job.id(1).to_string()));
    let gone = format!("gone: {}", job.id(1));
    assert!(events.lock().unwrap().iter().any(|event| event.text.contains(&gone)));
}

#[test]
fn a_process_learns_once_why_no_epoch_begins() {
    let options = options(2, 2);
    let (coordinator, _events) = bind(options);
    let job_address = JobAddress::new(coordinator.address(), "secret").unwrap();
    let mut membership =
        Membership::join(&job_address, &Settings::default(), options, spec("gpt")).unwrap();
    let begun = Instant::now();
    let mut look = || {
        assert!(begun.elapsed() < LONG);
        assert!(membership.next_within(Duration::from_millis(50)).unwrap().is_none());
        membership.obstacle()
    };
    let reason = loop {
        if let Some(reason) = look() {
            break reason;
        }
    };
    assert_eq!(reason, "1 of at least 2 ranks are there");
    assert_eq!(look(), None);
}

#[test]
fn two_that_are_killed_at_once_are_survived() {
    let (_coordinator, _events, job) = job(options(1, 5), 5);
    let before = job.wait_for_steps(&[0, 1, 2, 3, 4], 5);
    [0, 3].iter().for_each(|name| job.order(*name, Order::Die));
    job.wait_for_epoch(&[1, 2, 4], before[0].epoch);
}

#[test]
fn a_process_joins_a_job_that_trains_without_a_lost_step() {
    let (coordinator, _events, mut job) = job(options(1, 3), 2);
    let before = job.wait_for_steps(&[0, 1], 5);
    job.start(2, &coordinator.address());
    let after = job.wait_for_epoch(&[0, 1, 2], before[0].epoch);
    let from = after[0].from;
    assert!(from >= before[0].done && after.iter().all(|news| news.from == from), "{after:?}");
}

#[test]
fn a_leaver_goes_after_a_step_that_all_have_done() {
    let (_coordinator, events, job) = job(options(1, 3), 3);
    let before = job.wait_for_steps(&[0, 1, 2], 5);
    job.order(0, Order::Leave);
    let left = job.wait_for_end(&[0]);
    let after = job.wait_for_epoch(&[1, 2], before[0].epoch);
    assert!(after.iter().all(|news| news.from == left[0].done), "{left:?} {after:?}");
    let gone = format!("{} (left)", job.id(0));
    assert!(events.lock().unwrap().iter().any(|event| event.text.contains(&gone)));
}

#[test]
fn the_last_process_of_a_job_may_leave_too() {
    let (_coordinator, _events, job) = job(options(1, 2), 2);
    [0, 1].iter().for_each(|name| job.order(*name, Order::Leave));
    job.wait_for_end(&[0, 1]);
}

#[test]
fn an_operator_makes_a_job_larger_and_smaller_again() {
    let (coordinator, _events, mut job) = job(options(1, 3), 3);
    let mut operator = Operator::connect(&coordinator.address(), "secret", LONG).unwrap();
    let status = |operator: &mut Operator| -> serde_json::Value {
        serde_json::from_str(&operator.status().unwrap()).unwrap()
    };
    let before = job.wait_for_steps(&[0, 1, 2], 5);
    operator.resize(2).unwrap();
    assert_eq!(coordinator.target(), 2);
    let stay: Vec<usize> = (0..3).filter(|name| before[*name].rank < 2).collect();
    let smaller = job.wait_for_epoch(&stay, before[0].epoch);
    let said = operator.resize(4).unwrap_err();
    assert_eq!(said.to_string(), "4 ranks, expected 1 to 3");
    operator.resize(3).unwrap();
    // The one that had to go has waited as a spare.
    let larger = job.wait_for_epoch(&[0, 1, 2], smaller[0].epoch);
    coordinator.resize(2).unwrap();
    let stay: Vec<usize> = (0..3).filter(|name| larger[*name].rank < 2).collect();
    job.wait_for_epoch(&stay, larger[0].epoch);
    job.start(3, &coordinator.address());
    let deadline = Instant::now() + LONG;
    while status(&mut operator)["newcomers"].as_array().unwrap().len() < 2 {
        assert!(Instant::now() < deadline);
    }
    let found = status(&mut operator);
    assert_eq!((&found["target"], &found["min"], &found["max"]), (&2.into(), &1.into(), &3.into()));
}

#[test]
fn figures_and_steps_of_members_are_shown() {
    let (coordinator, _events, job) = job(options(1, 2), 2);
    job.order(0, Order::Tell("{\"loss\":2.5}".to_owned()));
    let mut operator = Operator::connect(&coordinator.address(), "secret", LONG).unwrap();
    let deadline = Instant::now() + LONG;
    let members = loop {
        let status: serde_json::Value = serde_json::from_str(&operator.status().unwrap()).unwrap();
        let members = status["members"].as_array().unwrap().clone();
        let of = |name| {
            let id = job.id(name).to_string();
            members.iter().find(|member| member["id"] == *id).unwrap().clone()
        };
        if of(0)["figures"]["loss"] == 2.5 && of(1)["step"].as_u64() > Some(0) {
            break [of(0), of(1)];
        }
        assert!(Instant::now() < deadline, "{status}");
    };
    assert_eq!(members[0]["standing"], "running");
    let figures = &members[1]["figures"];
    assert_eq!(figures["pid"], std::process::id());
    assert!(figures["host"].is_string() && figures["loss"].is_null(), "{figures}");
}

#[test]
fn a_state_that_cannot_be_written_is_noticed_at_the_start() {
    let folder = TempDir::with_prefix("thinwire-job-").unwrap();
    let state = folder.path().join("gone").join("state");
    let bound = Coordinator::bind("127.0.0.1:0", "secret", options(1, 2), Some(&state), |_| {});
    let error = bound.unwrap_err().to_string();
    assert!(
        error.starts_with("saving the coordinator's state in ") && error.contains("gone"),
        "{error}"
    );
    let state = folder.path().join("state");
    Coordinator::bind("127.0.0.1:0", "secret", options(1, 2), Some(&state), |_| {}).unwrap();
    assert!(!state.exists(), "nothing is worth keeping before the first epoch");
}

#[test]
fn training_goes_on_without_the_coordinator_and_a_restarted_one_goes_on_too() {
    let folder = TempDir::with_prefix("thinwire-job-").unwrap();
    let (state, options) = (folder.path().join("state"), options(1, 3));
    let first = Coordinator::bind("127.0.0.1:0", "secret", options, Some(&state), |_| {}).unwrap();
    let address = first.address();
    let mut job = Processes::new(options);
    (0..3).for_each(|name| job.start(name, &address));
    let before = job.wait_for_epoch(&[0, 1, 2], 0);
    drop(first);
    job.wait_for_steps(&[0, 1, 2], 50);
    let events = Events::default();
    let told = Arc::clone(&events);
    let tell = move |event: &Event| told.lock().unwrap().push(event.clone());
    let second = Coordinator::bind(&address, "secret", options, Some(&state), tell).unwrap();
    let mut operator = Operator::connect(&address, "secret", LONG).unwrap();
    let deadline = Instant::now() + LONG;
    let status = loop {
        let status: serde_json::Value = serde_json::from_str(&operator.status().unwrap()).unwrap();
        let members = status["members"].as_array().unwrap();
        if members.iter().all(|member| member["standing"] == "running") {
            break status;
        }
        assert!(Instant::now() < deadline, "{status}");
    };
    let after = job.wait_for_steps(&[0, 1, 2], 50);
    assert_eq!(status["epoch"], before[0].epoch);
    assert!(after.iter().all(|news| news.epoch == before[0].epoch), "{after:?}");
    assert!(events.lock().unwrap()[0].text.starts_with("the coordinator continues with epoch"));
    job.order(2, Order::Die);
    second.ended(job.id(2));
    job.wait_for_epoch(&[0, 1], before[0].epoch);
}

#[test]
fn a_coordinator_without_state_adopts_the_job_that_comes_to_it() {
    let options = Options { mode: CoordinatorMode::Unsaved, ..options(1, 3) };
    let (first, _events) = bind(options);
    let address = first.address();
    let mut job = Processes::new(options);
    (0..3).for_each(|name| job.start(name, &address));
    let before = job.wait_for_epoch(&[0, 1, 2], 0);
    drop(first);
    job.wait_for_steps(&[0, 1, 2], 20);
    let (sender, told) = std::sync::mpsc::channel();
    let tell = move |event: &Event| drop(sender.send(event.text.clone()));
    let _second = Coordinator::bind(&address, "secret", options, None, tell).unwrap();
    job.start(3, &address);
    job.order(2, Order::Die);
    let after = job.wait_for_epoch(&[0, 1, 3], before[0].epoch);
    assert!(after[0].from > before[0].done, "{after:?}");
    let told: Vec<String> = told.try_iter().collect();
    let adopted = format!("epoch {} of 3 ranks continues under this coordinator", before[0].epoch);
    assert!(told.contains(&adopted), "{told:?}");
}

#[test]
fn a_fact_that_differs_is_named_with_both_values_on_both_sides() {
    let (coordinator, events) = bind(options(2, 2));
    let join = |model: &str| {
        let job_address = JobAddress::new(coordinator.address(), "secret").unwrap();
        Membership::join(&job_address, &Settings::default(), options(2, 2), spec(model))
    };
    let _first = join("gpt").unwrap();
    let error = join("mlp").unwrap_err();
    assert_eq!(error.kind, Kind::Refused);
    assert_eq!(error.to_string(), "ranks disagree on model: this rank has mlp, the job has gpt");
    let said = "ranks disagree on model: it has mlp, the job has gpt";
    assert!(events.lock().unwrap().iter().any(|event| event.text.ends_with(said)), "{events:?}");
    join("gpt").unwrap();
}

/// Before anything waits for the coordinator, which is not there.
#[test]
fn a_port_that_processes_share_is_not_the_coordinators() {
    let settings = Settings { port: Some(9), ..Settings::default() };
    let job_address = JobAddress::new("127.0.0.1:9", "secret").unwrap();
    let joined = Membership::join(&job_address, &settings, options(1, 1), spec("gpt"));
    let said =
        "port 9 is shared by the ranks of a host, and they meet at 127.0.0.1:9: expected two ports";
    assert_eq!(joined.err().map(|error| error.to_string()).as_deref(), Some(said));
}

#[test]
fn another_token_is_refused() {
    let (coordinator, _events) = bind(options(1, 1));
    let job_address = JobAddress::new(coordinator.address(), "another").unwrap();
    let joined = Membership::join(&job_address, &Settings::default(), options(1, 1), spec("gpt"));
    assert_eq!(joined.unwrap_err().kind, Kind::Link(link::Kind::TokenMismatch));
}

#[test]
fn a_coordinator_that_was_away_hears_of_the_last_step_when_it_is_back() {
    let folder = TempDir::with_prefix("thinwire-job-").unwrap();
    let (state, options) = (folder.path().join("state"), options(1, 1));
    let first = Coordinator::bind("127.0.0.1:0", "secret", options, Some(&state), |_| {}).unwrap();
    let address = first.address();
    let job_address = JobAddress::new(&address, "secret").unwrap();
    let mut membership =
        Membership::join(&job_address, &Settings::default(), options, spec("gpt")).unwrap();
    assert!(matches!(membership.next().unwrap(), Next::Run(_)));
    drop(first);
    let completion = thread::spawn(move || membership.complete());
    // It has been tried, in vain.
    thread::sleep(Duration::from_millis(100));
    assert!(!completion.is_finished());
    let events = Events::default();
    let told = Arc::clone(&events);
    let tell = move |event: &Event| told.lock().unwrap().push(event.clone());
    let _second = Coordinator::bind(&address, "secret", options, Some(&state), tell).unwrap();
    completion.join().unwrap().unwrap();
    assert_eq!(events.lock().unwrap().last().unwrap().text, "all steps are done");
}

#[test]
fn a_process_that_leaves_alone_is_told_that_nobody_goes_on() {
    let (coordinator, _events) = bind(options(1, 1));
    let (_, mut membership) = absent(&coordinator, options(1, 1));
    assert!(matches!(membership.next().unwrap(), Next::Run(_)));
    membership.synced(3);
    membership.leave();
    let deadline = Instant::now() + LONG;
    while membership.finishing().is_none() {
        assert!(Instant::now() < deadline);
    }
    membership.halted();
    assert!(matches!(membership.next().unwrap(), Next::Stopped));
}

/// A process that has joined and does not come to the meeting of its epoch.
fn absent(coordinator: &Coordinator, options: Options) -> (Id, Membership) {
    let job_address = JobAddress::new(coordinator.address(), "secret").unwrap();
    let spec = vec![("model".to_owned(), "gpt".to_owned())];
    (job_address.id, Membership::join(&job_address, &Settings::default(), options, spec).unwrap())
}

#[test]
fn a_meeting_ends_when_its_epoch_does() {
    let (coordinator, events) = bind(options(1, 2));
    let mut job = Processes::new(options(1, 2));
    let (_, absent) = absent(&coordinator, options(1, 2));
    job.start(0, &coordinator.address());
    let deadline = Instant::now() + LONG;
    while !events.lock().unwrap().iter().any(|event| event.text.contains("2 ranks")) {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    drop(absent);
    job.wait_for_epoch(&[0], 1);
}

#[test]
fn who_does_not_come_to_the_meeting_is_given_up() {
    let (coordinator, _events) = bind(options(1, 2));
    let mut job = Processes::new(options(1, 2));
    job.settings.timeout = Duration::from_secs(3);
    job.start(0, &coordinator.address());
    job.wait_for_epoch(&[0], 0);
    let (_, _absent) = absent(&coordinator, options(1, 2));
    job.wait(&[0], "an epoch of one again", |news| news.epoch > 2 && news.ranks == 1);
}

#[test]
fn a_job_that_is_stopped_ends_after_a_step_that_all_have_done() {
    let (coordinator, _events, mut job) = job(options(1, 3), 3);
    // A spare has nothing to end.
    job.start(3, &coordinator.address());
    job.wait_for_steps(&[0, 1, 2], 5);
    coordinator.stop();
    let ended = job.wait_for_end(&[0, 1, 2, 3]);
    assert!(ended[..3].iter().all(|news| news.done == ended[0].done), "{ended:?}");
}

#[test]
fn a_job_whose_steps_are_done_is_over_for_spares_too() {
    let (coordinator, events, mut job) = job(options(1, 2), 2);
    job.start(2, &coordinator.address());
    [0, 1].iter().for_each(|name| job.order(*name, Order::Complete));
    job.wait_for_end(&[0, 1, 2]);
    let events = events.lock().unwrap();
    assert_eq!(events.last().unwrap().text, "all steps are done");
}

#[test]
fn a_process_whose_coordinator_never_comes_back_gives_up_when_it_has_nothing_to_do() {
    let (coordinator, _events) = bind(options(2, 2));
    let job_address = JobAddress::new(coordinator.address(), "secret").unwrap();
    let settings = Settings { timeout: Duration::from_secs(1), ..Settings::default() };
    let mut membership =
        Membership::join(&job_address, &settings, options(2, 2), spec("gpt")).unwrap();
    drop(coordinator);
    let error = membership.next().map(|next| matches!(next, Next::Left)).unwrap_err();
    assert_eq!(error.to_string(), "the coordinator was away for 1 s");
}
