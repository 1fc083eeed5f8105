//! Laws of jobs with servers over loopback: two rosters, presences, and views.

mod ledger;
mod process;

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thinwire_job::elastic::{
    Coordinator, CoordinatorMode, Event, Id, Job, JobAddress, Membership, Next, Operator, Options,
    Presence, Role, Servers, ViewsConnection, job_address,
};
use thinwire_job::{Overrides, Settings};

use ledger::Ledger;
use process::Process;

/// Longest time that anything here takes.
const LONG: Duration = Duration::from_secs(300);
/// Longer silence than usual: the machine may do more than these tests.
const SILENCE: Duration = Duration::from_secs(8);

type Events = Arc<Mutex<Vec<Event>>>;

fn options(min: u32, max: u32) -> Options {
    Options { silence: SILENCE, ..Options::new(CoordinatorMode::Saved, min, max) }
}

/// A job whose servers have these settings.
fn job(servers: Options) -> Job {
    let workers = options(1, 8);
    Job { workers, servers: Some(Servers::new(servers, Ledger::default)) }
}

fn bind(servers: Options) -> (Coordinator, Events) {
    let events = Events::default();
    let told = Arc::clone(&events);
    let tell = move |event: &Event| told.lock().unwrap().push(event.clone());
    (Coordinator::bind("127.0.0.1:0", "secret", job(servers), None, tell).unwrap(), events)
}

fn server(address: &str) -> Presence {
    join(&JobAddress::server(address, "secret").unwrap(), "tables")
}

fn worker(address: &str) -> Presence {
    join(&JobAddress::new(address, "secret").unwrap(), "gpt")
}

fn join(job_address: &JobAddress, model: &str) -> Presence {
    let spec = vec![("model".to_owned(), model.to_owned())];
    Presence::join(job_address, &Settings::default(), options(1, 8), spec).unwrap()
}

/// Waits until these are the members of the last epoch of each; returns its number.
fn wait_for_epoch(presences: &[&Presence]) -> u32 {
    let mut expected: Vec<Id> = presences.iter().map(|it| it.id()).collect();
    expected.sort_unstable();
    let numbers = presences.iter().map(|presence| wait_for_members(presence, &expected));
    let numbers: Vec<u32> = numbers.collect();
    *numbers.iter().max().unwrap()
}

fn wait_for_members(presence: &Presence, expected: &[Id]) -> u32 {
    let (deadline, mut seen) = (Instant::now() + LONG, 0);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let epoch = presence.wait(seen, left).unwrap_or_else(|| {
            panic!("{expected:?} after {seen}: {presence:?} has {:?}", presence.epoch())
        });
        let mut members = epoch.members.clone();
        members.sort_unstable();
        if members == expected {
            return epoch.number;
        }
        seen = epoch.number;
    }
}

fn views(address: &str, from: Id) -> ViewsConnection {
    ViewsConnection::connect(address, "secret", from, LONG).unwrap()
}

/// The next state that a connection receives.
fn state(views: &mut ViewsConnection) -> String {
    let state = views.receive(LONG).unwrap().expect("a state in time");
    String::from_utf8(state.expect("no refusal")).unwrap()
}

/// The first state that a connection receives after `known`, which comes again after a silence.
fn change(views: &mut ViewsConnection, known: &str) -> String {
    std::iter::repeat_with(|| state(views)).find(|state| state != known).unwrap()
}

fn status(address: &str) -> serde_json::Value {
    let mut operator = Operator::connect(address, "secret", LONG).unwrap();
    serde_json::from_str(&operator.status().unwrap()).unwrap()
}

#[test]
fn servers_and_workers_have_epochs_of_their_own() {
    let (coordinator, events) = bind(options(2, 4));
    let address = coordinator.address();
    let servers = [server(&address), server(&address)];
    let workers = [worker(&address), worker(&address)];
    wait_for_epoch(&[&servers[0], &servers[1]]);
    wait_for_epoch(&[&workers[0], &workers[1]]);
    let (found, roles) = (status(&address), [&servers, &workers]);
    for (role_state, role) in [&found["servers"], &found].into_iter().zip(roles) {
        let mut members: Vec<_> = role_state["members"].as_array().unwrap().iter().collect();
        members.sort_by_key(|member| member["id"].to_string());
        let mut ids: Vec<String> = role.iter().map(|it| it.id().to_string()).collect();
        ids.sort_unstable();
        assert!(members.iter().map(|member| &member["id"]).eq(&ids), "{found}");
        assert!(role_state["newcomers"].as_array().unwrap().is_empty(), "{found}");
    }
    assert_eq!(found["servers"]["waiting"], serde_json::Value::Null);
    let events = events.lock().unwrap();
    let said = |text: &str| events.iter().any(|event| event.text.starts_with(text));
    assert!(said("waiting for servers: 0 of at least 2 servers are there"), "{events:?}");
    assert!(said("epoch 1 of servers: 2 servers; joined: "), "{events:?}");
    let started = events.iter().filter(|event| event.json["event"] == "started");
    let is_worker = |id: &serde_json::Value| workers.iter().any(|it| *id == *it.id().to_string());
    for event in started {
        assert!(event.json["members"].as_array().unwrap().iter().all(is_worker), "{event:?}");
    }
}

#[test]
fn a_presence_goes_from_epoch_to_epoch_as_others_come_and_go() {
    let (coordinator, events) = bind(options(1, 4));
    let address = coordinator.address();
    let [first, second, third] = [server(&address), server(&address), server(&address)];
    wait_for_epoch(&[&first, &second, &third]);
    second.leave();
    // At once, or some seconds later from a coordinator that is slow.
    assert_eq!(second.wait(u32::MAX, LONG), None);
    assert!(second.is_over());
    wait_for_epoch(&[&first, &third]);
    drop(third);
    wait_for_epoch(&[&first]);
    let fourth = server(&address);
    wait_for_epoch(&[&first, &fourth]);
    first.leave();
    wait_for_epoch(&[&fourth]);
    fourth.leave();
    assert_eq!(fourth.wait(u32::MAX, LONG), None);
    assert!(fourth.is_over());
    let gone = format!("{} (left)", second.id());
    assert!(events.lock().unwrap().iter().any(|event| event.text.contains(&gone)));
}

#[test]
fn members_that_miss_each_other_are_parted_and_the_others_go_on() {
    let (coordinator, events) = bind(options(1, 4));
    let address = coordinator.address();
    let [first, second] = [server(&address), server(&address)];
    let number = wait_for_epoch(&[&first, &second]);
    first.lost(second.id());
    let next = first.wait(number, LONG).or_else(|| second.wait(number, Duration::ZERO));
    // Whoever had to go may be back by the time that it is seen.
    assert!(next.unwrap().number > number);
    let events = events.lock().unwrap();
    assert!(events.iter().any(|event| event.text.contains("1 server; gone: ")), "{events:?}");
}

#[test]
fn every_change_of_members_is_told_and_a_change_wakes_whoever_asked_for_it() {
    let (coordinator, _events) = bind(options(1, 4));
    let first = server(&coordinator.address());
    let (sender, receiver) = std::sync::mpsc::channel();
    wait_for_epoch(&[&first]);
    first.on_change(move || sender.send(()).unwrap_or_default());
    // For the epoch that has started already.
    receiver.recv_timeout(LONG).unwrap();
    let _second = server(&coordinator.address());
    receiver.recv_timeout(LONG).unwrap();
    coordinator.stop();
    receiver.recv_timeout(LONG).unwrap();
}

#[test]
fn the_end_of_a_job_ends_every_presence() {
    let (coordinator, _events) = bind(options(1, 4));
    let address = coordinator.address();
    let presences = [server(&address), worker(&address)];
    for presence in &presences {
        wait_for_epoch(&[presence]);
    }
    coordinator.stop();
    for presence in &presences {
        let seen = presence.epoch().map_or(0, |epoch| epoch.number);
        assert_eq!(presence.wait(seen, LONG), None);
        assert!(presence.is_over());
    }
}

#[test]
fn the_last_step_of_the_workers_ends_the_servers() {
    let (coordinator, _events) = bind(options(1, 4));
    let address = coordinator.address();
    let presence = server(&address);
    let number = wait_for_epoch(&[&presence]);
    let job_address = JobAddress::new(&address, "secret").unwrap();
    let settings = Settings::default();
    let mut membership =
        Membership::join(&job_address, &settings, options(1, 1), Vec::new()).unwrap();
    assert!(matches!(membership.next().unwrap(), Next::Run(_)));
    membership.complete().unwrap();
    assert_eq!(presence.wait(number, LONG), None);
    assert!(presence.is_over());
}

#[test]
fn facts_are_those_of_a_role() {
    let (coordinator, events) = bind(options(1, 4));
    let address = coordinator.address();
    let (_server, _worker) = (server(&address), worker(&address));
    let refused = |job_address: JobAddress| {
        let spec = vec![("model".to_owned(), "other".to_owned())];
        let joined = Presence::join(&job_address, &Settings::default(), options(1, 8), spec);
        joined.unwrap_err().to_string()
    };
    let said = refused(JobAddress::server(&address, "secret").unwrap());
    assert_eq!(said, "servers disagree on model: this server has other, the job has tables");
    let said = refused(JobAddress::new(&address, "secret").unwrap());
    assert_eq!(said, "ranks disagree on model: this rank has other, the job has gpt");
    assert!(events.lock().unwrap().iter().any(|event| event.text.starts_with("refused server ")));
}

#[test]
fn a_job_without_servers_has_neither_them_nor_views() {
    let coordinator =
        Coordinator::bind("127.0.0.1:0", "secret", options(1, 2), None, |_| {}).unwrap();
    let address = coordinator.address();
    let said = "the job has no servers: its coordinator was started without";
    let job_address = JobAddress::server(&address, "secret").unwrap();
    let joined = Presence::join(&job_address, &Settings::default(), options(1, 8), Vec::new());
    assert_eq!(joined.unwrap_err().to_string(), said);
    let mut views = views(&address, Id(0));
    views.send(b"").unwrap();
    assert_eq!(views.receive(LONG).unwrap(), Some(Err(said.to_owned())));
    assert_eq!(status(&address)["servers"], serde_json::Value::Null);
}

#[test]
fn a_coordinator_that_may_forget_what_servers_keep_is_refused() {
    let unsaved = Options { mode: CoordinatorMode::Unsaved, ..options(1, 2) };
    let jobs = [Job { workers: unsaved, ..job(options(1, 2)) }, job(unsaved)];
    for job in jobs {
        let bound = Coordinator::bind("127.0.0.1:0", "secret", job, None, |_| {});
        let error = bound.unwrap_err().to_string();
        assert!(
            error.ends_with("that saves its state, expected CoordinatorMode::Saved"),
            "{error}"
        );
    }
}

#[test]
fn a_subscriber_gets_every_change_in_order() {
    let (coordinator, _events) = bind(options(1, 4));
    let address = coordinator.address();
    let mut subscriber = views(&address, Id(0));
    subscriber.send(b"").unwrap();
    assert_eq!(state(&mut subscriber), "");
    let mut asker = views(&address, Id(7));
    for number in 0..50 {
        asker.send(number.to_string().as_bytes()).unwrap();
    }
    let line = |number| format!("{}: {number}", Id(7));
    let mut expected = Vec::new();
    for number in 0..50 {
        expected.push(line(number));
        assert_eq!(state(&mut subscriber), expected.join("\n"));
        assert_eq!(state(&mut asker), expected.join("\n"));
    }
    let server = server(&address);
    let known = expected.join("\n");
    expected.push(format!("server 1 {}", server.id()));
    assert_eq!(change(&mut subscriber, &known), expected.join("\n"));
    let worker = worker(&address);
    let known = expected.join("\n");
    expected.push(format!("worker 1 {}", worker.id()));
    assert_eq!(change(&mut subscriber, &known), expected.join("\n"));
}

#[test]
fn a_refusal_is_told_to_the_asker_alone() {
    let (coordinator, _events) = bind(options(1, 4));
    let address = coordinator.address();
    let [mut asker, mut other] = [views(&address, Id(7)), views(&address, Id(0))];
    other.send(b"").unwrap();
    assert_eq!(state(&mut other), "");
    asker.send(b"no way").unwrap();
    let refused = asker.receive(LONG).unwrap();
    assert_eq!(refused, Some(Err("no way: it is refused".to_owned())));
    asker.send(b"yes").unwrap();
    let said = format!("{}: yes", Id(7));
    assert_eq!((state(&mut asker), state(&mut other)), (said.clone(), said));
    let waker = asker.waker();
    waker.wake();
    assert_eq!(asker.receive(LONG).unwrap(), None);
}

#[test]
fn a_restarted_coordinator_goes_on_with_its_servers_and_views() {
    let folder = TempDir::with_prefix("thinwire-job-").unwrap();
    let path = folder.path().join("state");
    let bind = |address: &str, path: &Path, events: &Events| {
        let told = Arc::clone(events);
        let tell = move |event: &Event| told.lock().unwrap().push(event.clone());
        Coordinator::bind(address, "secret", job(options(1, 4)), Some(path), tell)
    };
    let events = Events::default();
    let first = bind("127.0.0.1:0", &path, &events).unwrap();
    let address = first.address();
    let servers = [server(&address), server(&address)];
    let worker = worker(&address);
    let number = wait_for_epoch(&[&servers[0], &servers[1]]);
    wait_for_epoch(&[&worker]);
    let mut asker = views(&address, Id(7));
    asker.send(b"keep this").unwrap();
    let kept = state(&mut asker);
    drop(first);
    assert!(asker.receive(LONG).is_err());
    let events = Events::default();
    let _second = bind(&address, &path, &events).unwrap();
    let mut asker = views(&address, Id(7));
    asker.send(b"").unwrap();
    assert_eq!(state(&mut asker), kept);
    // Those who were there come back to the epoch that they are in, and live on with it.
    let third = server(&address);
    let next = wait_for_epoch(&[&servers[0], &servers[1], &third]);
    assert_eq!(next, number + 1);
    let members: Vec<Id> = third.epoch().unwrap().members;
    let line = members.iter().map(|id| format!(" {id}")).collect::<String>();
    assert_eq!(state(&mut asker), format!("{kept}\nserver {next}{line}"));
    let resumed = format!("the coordinator continues with epoch {number} of servers from ");
    let events = events.lock().unwrap();
    assert!(events.iter().any(|event| event.text.starts_with(&resumed)), "{events:?}");
}

#[test]
#[ignore = "a process that other tests start"]
fn present() {
    let Some(job_address) = job_address(&Overrides::default(), &thinwire_job::process).unwrap()
    else {
        return;
    };
    let _presence = join(&job_address, "tables");
    // The test has ended, or the process is killed before.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn a_killed_process_is_out_of_the_next_epoch() {
    let (coordinator, _events) = bind(options(1, 4));
    let address = coordinator.address();
    let [first, second] = [server(&address), server(&address)];
    let mut third = Process::start(JobAddress::server(&address, "secret").unwrap());
    assert_eq!(Role::of(third.job_address.id), Role::Server);
    let mut members = vec![first.id(), second.id(), third.job_address.id];
    members.sort_unstable();
    wait_for_members(&first, &members);
    let killed = Instant::now();
    third.kill();
    wait_for_epoch(&[&first, &second]);
    eprintln!("the next epoch began {:?} after the end of a process", killed.elapsed());
}

#[test]
fn a_stopped_process_is_left_out_and_comes_back_when_it_goes_on() {
    let brisk = Options { silence: Duration::from_secs(4), ..options(1, 4) };
    let (coordinator, _events) = bind(brisk);
    let first = server(&coordinator.address());
    let second = Process::start(JobAddress::server(coordinator.address(), "secret").unwrap());
    let mut members = vec![first.id(), second.job_address.id];
    members.sort_unstable();
    wait_for_members(&first, &members);
    let stopped = Instant::now();
    second.stop();
    wait_for_epoch(&[&first]);
    eprintln!("the next epoch began {:?} after the stop of a process", stopped.elapsed());
    second.go_on();
    wait_for_members(&first, &members);
}
