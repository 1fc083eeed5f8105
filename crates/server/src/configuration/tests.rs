//! Laws of configurations over random histories.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::frontier::Frontier;

const SHARDS: u32 = 60;

fn definition(backups: u32, servers: u32) -> Definition {
    let table = TableDefinition {
        name: "t".to_owned(),
        rows: 600,
        width: 2,
        optimizer: "sgd:lr=1".to_owned(),
        initial: "zeros".to_owned(),
        seed: 1,
        stream: 0,
        values: "f32".to_owned(),
    };
    let consistency = "async".to_owned();
    Definition { tables: vec![table], consistency, shards: SHARDS, backups, servers, restore: None }
}

fn server(number: u64) -> Id {
    Id(Id::SERVER_BIT | number)
}

fn ask(job: &mut Configuration, from: Id, request: &ViewRequest) -> Result<(), String> {
    job.request(from, &request.to_bytes())
}

fn announce(job: &mut Configuration, id: Id) {
    ask(job, id, &ViewRequest::Address(format!("host-{id}:1"))).unwrap();
}

fn start(job: &mut Configuration, epoch: u32, numbers: impl IntoIterator<Item = u64>) {
    let members: Vec<Id> = numbers.into_iter().map(server).collect();
    job.started(Role::Server, epoch, &members);
}

/// Reports one of the learners as ready, selected by `choice`. Returns false if there is none.
fn report(job: &mut Configuration, choice: usize) -> bool {
    let views = (0..).zip(&job.job_state().views);
    let views = views.filter(|(shard, _)| !job.job_state().is_unavailable(*shard));
    let all: Vec<(u32, Id, u64, Id)> = views
        .flat_map(|(shard, view)| {
            let primary = view.primary().expect("a view has a primary");
            view.learners.iter().map(move |id| (shard, primary, view.number, *id))
        })
        .collect();
    let Some((shard, primary, view, learner)) = all.get(choice % all.len().max(1)).copied() else {
        return false;
    };
    ask(job, primary, &ViewRequest::Ready { shard, view, learner }).unwrap();
    true
}

/// Reports all copies of a server in the last views.
fn keep(job: &mut Configuration, id: Id) {
    let state = job.job_state();
    let has = |shard: &u32| state.views[*shard as usize].replicas.contains(&id);
    let kept = state.unavailable().filter(has);
    let views = kept.map(|shard| (shard, state.views[shard as usize].number)).collect();
    ask(job, id, &ViewRequest::Kept { views }).unwrap();
}

fn founded(backups: u32, servers: u64) -> Configuration {
    let mut job = Configuration::new();
    ask(&mut job, Id(0), &ViewRequest::Define(definition(backups, servers as u32))).unwrap();
    (0..servers).for_each(|number| announce(&mut job, server(number)));
    start(&mut job, 1, 0..servers);
    assert!(job.job_state().is_founded());
    job
}

/// Checks the law of views for one step.
fn check_views(before: &JobState, step: &Step, after: &JobState) -> Result<(), TestCaseError> {
    for (shard, (old, new)) in before.views.iter().zip(&after.views).enumerate() {
        if old == new {
            continue;
        }
        prop_assert!(new.number > old.number, "shard {shard}: {old:?} {new:?}");
        let is_kept = matches!(step, Step::Kept(_)) && !after.is_unavailable(shard as u32);
        prop_assert!(is_kept || !before.is_unavailable(shard as u32));
        let strangers: Vec<&Id> =
            new.replicas.iter().filter(|id| !old.replicas.contains(id)).collect();
        prop_assert!(strangers.iter().all(|id| old.learners.contains(id)));
        let reported = usize::from(matches!(step, Step::Ready(_)));
        prop_assert!(strangers.len() <= reported, "a report is of one learner");
    }
    Ok(())
}

/// Checks a state in which all learners have reported.
fn check_rest(state: &JobState, backups: usize) -> Result<(), TestCaseError> {
    let servers = state.servers.len();
    let copies = (backups + 1).min(servers);
    let mut counts = vec![0; servers];
    for (shard, view) in (0..).zip(&state.views).filter(|(shard, _)| !state.is_unavailable(*shard))
    {
        prop_assert!(view.learners.is_empty());
        prop_assert_eq!(view.replicas.len(), copies, "shard {}", shard);
        for id in &view.replicas {
            let at = state.servers.iter().position(|server| server == id);
            prop_assert!(at.is_some(), "{id} is in no epoch");
            counts[at.unwrap()] += 1;
        }
    }
    let exact = f64::from(SHARDS) * copies as f64 / servers as f64;
    let is_even = |count: &i32| (f64::from(*count) - exact).abs() <= (0.1 * exact).max(1.0);
    prop_assert!(
        state.unavailable().next().is_some() || counts.iter().all(is_even),
        "{counts:?} of {exact}"
    );
    Ok(())
}

#[derive(Clone, Debug)]
enum Step {
    Servers(BTreeSet<u64>),
    Address(u64),
    Ready(usize),
    /// A server reports its copies of shards that no server of the epoch has.
    Kept(u64),
    /// The servers that are not in the epoch are dead.
    Dead,
    Workers(Vec<u64>),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => prop::collection::btree_set(0_u64..7, 1..7).prop_map(Step::Servers),
        1 => (0_u64..7).prop_map(Step::Address),
        8 => any::<usize>().prop_map(Step::Ready),
        2 => (0_u64..7).prop_map(Step::Kept),
        1 => Just(Step::Dead),
        1 => prop::collection::vec(1_u64..9, 0..4).prop_map(Step::Workers),
        1 => Just(Step::Restart),
    ]
}

fn perform(job: &mut Configuration, epoch: u32, step: &Step) {
    match step {
        Step::Servers(numbers) => start(job, epoch, numbers.iter().copied()),
        Step::Address(number) => announce(job, server(*number)),
        Step::Ready(choice) => drop(report(job, *choice)),
        Step::Kept(number) => keep(job, server(*number)),
        Step::Dead => {
            let servers = job.job_state().servers.clone();
            job.look(&|id| !servers.contains(&id));
        }
        Step::Workers(ids) => {
            let ids: Vec<Id> = ids.iter().copied().map(Id).collect();
            job.started(Role::Worker, epoch, &ids);
        }
        Step::Restart => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn views_follow_each_other_and_rest(
        steps in prop::collection::vec(step(), 1..60), backups in 0_u32..3
    ) {
        let mut job = founded(backups, 3);
        let mut other = job.clone();
        for (epoch, step) in (2..).zip(&steps) {
            let before = job.job_state().clone();
            perform(&mut job, epoch, step);
            check_views(&before, step, job.job_state())?;
            prop_assert!(job.version() >= before.version);
            prop_assert_eq!(job.version() == before.version, *job.job_state() == before);
            // This one is restored from its saved state before every step.
            let saved = other.state();
            other = Configuration::new();
            other.restore(&saved).unwrap();
            perform(&mut other, epoch, step);
            prop_assert_eq!(&job, &other);
        }
        for number in 0..7 {
            announce(&mut job, server(number));
        }
        while report(&mut job, 0) {}
        check_rest(job.job_state(), backups as usize)?;
    }
}

#[test]
fn a_third_server_takes_a_third_and_nothing_else_moves() {
    let mut job = founded(0, 2);
    start(&mut job, 2, 0..3);
    assert!(job.job_state().views.iter().all(|view| view.learners.is_empty()), "nobody reaches it");
    announce(&mut job, server(2));
    let learners = |job: &Configuration| -> Vec<Id> {
        job.job_state().views.iter().flat_map(|view| view.learners.clone()).collect()
    };
    assert_eq!(learners(&job), vec![server(2); SHARDS as usize / 3]);
    while report(&mut job, 0) {}
    let primaries = job.job_state().views.iter().filter_map(View::primary);
    assert_eq!(primaries.filter(|id| *id == server(2)).count(), SHARDS as usize / 3);
}

#[test]
fn a_shard_is_silent_until_its_last_replica_reports_it_or_is_dead() {
    let mut job = founded(0, 2);
    let views = job.job_state().views.clone();
    start(&mut job, 2, [0]);
    let silent = job.job_state().silent.clone();
    assert_eq!((silent.len(), &job.job_state().lost), (SHARDS as usize / 2, &Vec::new()));
    keep(&mut job, server(1));
    assert_eq!(job.job_state().silent, silent, "it is in no epoch");
    start(&mut job, 3, 0..2);
    assert_eq!(job.job_state().silent, silent, "it may have lost its copies");
    for (from, number) in [(0, 0), (1, 1)] {
        let kept = silent.iter().map(|shard| (*shard, views[*shard as usize].number + number));
        ask(&mut job, server(from), &ViewRequest::Kept { views: kept.collect() }).unwrap();
        assert_eq!(job.job_state().silent, silent, "another server, or another view");
    }
    let mut other = job.clone();
    let has_all = |job: &Configuration| {
        let has = |shard: &u32| job.job_state().views[*shard as usize].replicas == [server(1)];
        job.job_state().unavailable().next().is_none() && silent.iter().all(has)
    };
    keep(&mut job, server(1));
    assert!(has_all(&job));

    other.look(&|id| id == server(1));
    assert_eq!((&other.job_state().lost, &other.job_state().silent), (&silent, &Vec::new()));
    let version = other.version();
    other.look(&|id| id == server(1));
    assert_eq!(other.version(), version, "it looks again");
    keep(&mut other, server(1));
    assert!(has_all(&other));
}

#[test]
fn all_shards_are_lost_with_the_last_server() {
    let mut job = founded(1, 2);
    ask(&mut job, Id(7), &ViewRequest::Snapshot { number: 1 }).unwrap();
    job.look(&|id| id == server(1));
    assert!(job.job_state().lost.is_empty(), "an epoch without it follows");
    job.look(&|_| true);
    let state = job.job_state().clone();
    assert_eq!(state.lost, (0..SHARDS).collect::<Vec<_>>());
    let failed = SnapshotStage::Failed("shard 0 is lost".to_owned());
    assert_eq!(state.snapshot.map(|snapshot| snapshot.stage), Some(failed));
    job.look(&|_| true);
    assert_eq!(job.version(), state.version, "it is told again");
    start(&mut job, 2, [2]);
    assert_eq!(job.job_state().lost, state.lost);
    let mut begun = Configuration::new();
    begun.look(&|_| true);
    assert_eq!(begun, Configuration::new(), "there are no shards yet");
}

#[test]
fn views_are_founded_when_enough_servers_have_addresses() {
    let mut job = Configuration::new();
    start(&mut job, 1, [0]);
    announce(&mut job, server(0));
    ask(&mut job, Id(9), &ViewRequest::Define(definition(1, 2))).unwrap();
    assert!(!job.job_state().is_founded(), "one server");
    start(&mut job, 2, 0..3);
    announce(&mut job, server(1));
    assert!(!job.job_state().is_founded(), "server 2 has no address");
    let version = job.version();
    announce(&mut job, server(2));
    assert!(job.job_state().is_founded() && job.version() > version);
    assert_eq!(job.job_state().views[0].replicas.len(), 2);
}

#[test]
fn a_worker_that_begins_with_other_files_than_a_server_is_refused() {
    let origin = |job: &mut Configuration, number| {
        ask(job, server(number), &ViewRequest::Origin("old (1)".to_owned())).unwrap();
    };
    let define = |job: &mut Configuration, restore: Option<&str>| {
        let restore = restore.map(str::to_owned);
        ask(job, Id(9), &ViewRequest::Define(Definition { restore, ..definition(1, 2) }))
    };
    let refusal =
        "this worker continues from nothing, but server 8000000000000000 from old (1) (--restore)";
    let mut job = Configuration::new();
    start(&mut job, 1, 0..2);
    define(&mut job, None).unwrap();
    origin(&mut job, 0);
    assert_eq!(job.job_state().definition, None, "it defines the job again");
    assert_eq!(define(&mut job, None).unwrap_err(), refusal);
    define(&mut job, Some("old (1)")).unwrap();
    (0..2).for_each(|number| announce(&mut job, server(number)));
    assert!(job.job_state().is_founded() && job.job_state().origins.is_empty());
    let version = job.version();
    origin(&mut job, 1);
    assert_eq!(job.version(), version, "who joins later needs no files");

    // A server that has left does not count.
    let mut job = Configuration::new();
    origin(&mut job, 0);
    define(&mut job, None).unwrap();
    start(&mut job, 1, [1]);
    assert!(job.job_state().definition.is_some());
    start(&mut job, 2, 0..2);
    assert_eq!(define(&mut job, None).unwrap_err(), refusal);
}

#[test]
fn tables_too_large_for_a_server_are_refused() {
    let memory = |job: &mut Configuration, number, bytes| {
        ask(job, server(number), &ViewRequest::Memory { bytes }).unwrap();
    };
    let define = |job: &mut Configuration| {
        ask(job, Id(9), &ViewRequest::Define(definition(1, 2))).map_err(|text| text.to_string())
    };
    let least = definition(1, 2).layout().unwrap().least_bytes(1, 2);
    let mut job = Configuration::new();
    start(&mut job, 1, 0..2);
    define(&mut job).unwrap();
    memory(&mut job, 0, least);
    memory(&mut job, 1, least - 1);
    assert_eq!(job.job_state().definition, None, "it defines the job again");
    let free = least - 1;
    let said = format!(
        "the tables need at least {least} bytes of memory on each of 2 servers, \
         server 8000000000000001 has {free}; hint: "
    );
    let error = define(&mut job).unwrap_err();
    assert!(error.starts_with(&said), "{error}");
    memory(&mut job, 1, least);
    define(&mut job).unwrap();
    (0..2).for_each(|number| announce(&mut job, server(number)));
    assert!(job.job_state().is_founded() && job.job_state().memories.is_empty());
    assert!(ask(&mut job, Id(9), &ViewRequest::Memory { bytes: 1 }).is_err(), "it is no server");
}

#[test]
fn why_a_server_leaves_is_known_to_all() {
    let mut job = founded(1, 2);
    let failed = ViewRequest::Failed { reason: "disk full".to_owned() };
    ask(&mut job, server(0), &failed).unwrap();
    assert_eq!(job.job_state().failures[&server(0)], "disk full");
    assert_eq!(JobState::parse(&job.state()).unwrap(), *job.job_state());
}

fn snapshot(job: &Configuration) -> SnapshotState {
    job.job_state().snapshot.clone().expect("a snapshot")
}

/// Returns a job with two primaries and one worker whose snapshot has begun.
fn asked() -> Configuration {
    let mut job = founded(1, 2);
    job.started(Role::Worker, 1, &[Id(9)]);
    ask(&mut job, Id(5), &ViewRequest::Snapshot { number: 1 }).unwrap();
    job
}

fn logged(number: u64) -> ViewRequest {
    let pushes = Frontier { pushes: [(Id(9), number)].into() };
    ViewRequest::Logged { snapshot: 1, pushes }
}

#[test]
fn a_snapshot_goes_from_stage_to_stage_when_all_primaries_have_reported() {
    let mut job = asked();
    ask(&mut job, Id(5), &ViewRequest::Snapshot { number: 1 }).unwrap();
    assert_eq!(
        snapshot(&job),
        SnapshotState { number: 1, asker: Id(5), stage: SnapshotStage::Asked }
    );
    for _ in 0..2 {
        ask(&mut job, server(0), &logged(4)).unwrap();
    }
    assert_eq!(snapshot(&job).stage, SnapshotStage::Asked);
    ask(&mut job, server(1), &logged(3)).unwrap();
    let frontier = Frontier { pushes: [(Id(9), 4)].into() };
    assert_eq!(snapshot(&job).stage, SnapshotStage::Agreed(frontier.clone()));
    // A restarted coordinator gets all reports again.
    let saved = job.state();
    ask(&mut job, server(0), &ViewRequest::Written { snapshot: 1 }).unwrap();
    job = Configuration::new();
    job.restore(&saved).unwrap();
    for number in [1, 0] {
        assert_eq!(snapshot(&job).stage, SnapshotStage::Agreed(frontier.clone()));
        ask(&mut job, server(number), &ViewRequest::Written { snapshot: 1 }).unwrap();
    }
    assert_eq!(snapshot(&job).stage, SnapshotStage::Written(frontier));
    let sealed = ViewRequest::Sealed { snapshot: 1, name: "snapshot-000001".to_owned() };
    let first = job.job_state().views[0].primary().expect("a primary");
    ask(&mut job, first, &sealed).unwrap();
    assert_eq!(snapshot(&job).stage, SnapshotStage::Done("snapshot-000001".to_owned()));
    let version = job.version();
    let abandon = ViewRequest::Abandon { snapshot: 1, reason: "late".to_owned() };
    ask(&mut job, server(0), &abandon).unwrap();
    assert_eq!(job.version(), version, "it is over");
    ask(&mut job, Id(6), &ViewRequest::Snapshot { number: 2 }).unwrap();
    assert_eq!(snapshot(&job).number, 2);
}

#[test]
fn a_snapshot_fails_when_servers_or_workers_change_or_one_gives_it_up() {
    let reason = |change: &dyn Fn(&mut Configuration)| {
        let mut job = asked();
        change(&mut job);
        match snapshot(&job).stage {
            SnapshotStage::Failed(reason) => reason,
            other => panic!("{other:?}"),
        }
    };
    let changed = "the servers of shard 0 have changed";
    assert_eq!(reason(&|job| start(job, 2, [0])), changed);
    let workers = |job: &mut Configuration| job.started(Role::Worker, 2, &[Id(9), Id(8)]);
    assert_eq!(reason(&workers), "the workers have changed");
    let abandon = ViewRequest::Abandon { snapshot: 1, reason: "full\nup".to_owned() };
    assert_eq!(reason(&|job| ask(job, server(1), &abandon).unwrap()), "full up");
}

#[test]
fn demands_for_snapshots_are_refused_in_one_line() {
    let refusal = |job: &mut Configuration, from, number| {
        ask(job, from, &ViewRequest::Snapshot { number }).unwrap_err()
    };
    assert_eq!(
        refusal(&mut Configuration::new(), Id(5), 1),
        "a snapshot needs the servers of the job, which have not started yet"
    );
    let mut job = asked();
    assert_eq!(refusal(&mut job, Id(6), 1), "snapshot 1 is under way");
    assert_eq!(refusal(&mut job, Id(5), 2), "snapshot 1 is under way");
    let error = ask(&mut job, server(7), &logged(1)).unwrap_err();
    assert_eq!(error, "server 8000000000000007 is the primary of no shard");
    let none = ViewRequest::Logged { snapshot: 1, pushes: Frontier::default() };
    let error = ask(&mut job, server(0), &none).unwrap_err();
    assert_eq!(error, "a report of 0 workers, expected the job's 1");
    start(&mut job, 2, [0]);
    assert_eq!(refusal(&mut job, Id(6), 3), "snapshot number 3, expected 2");
    let mut job = founded(0, 2);
    start(&mut job, 2, [0]);
    let refused = refusal(&mut job, Id(5), 1);
    assert!(refused.ends_with(", whose servers are silent"), "{refused}");
}

#[test]
fn refusals_name_both_values() {
    let mut job = founded(1, 2);
    let version = job.version();
    let define = ViewRequest::Define(definition(0, 2));
    let refusal = ask(&mut job, Id(1), &define).unwrap_err();
    let hint = "give this process the same settings as the other processes of the job";
    assert_eq!(refusal, format!("definition with 0 replicas, the job has 1; hint: {hint}"));
    let address = ViewRequest::Address("host:1".to_owned());
    let refusal = ask(&mut job, Id(1), &address).unwrap_err();
    assert_eq!(refusal, "process 0000000000000001 is not a server, so it has no address");
    let ready = |shard, view| ViewRequest::Ready { shard, view, learner: server(1) };
    let refusal = ask(&mut job, server(0), &ready(SHARDS, 0)).unwrap_err();
    assert_eq!(refusal, "shard 60, expected one of 60");
    let view = job.job_state().views[0].clone();
    let refusal = ask(&mut job, server(7), &ready(0, view.number)).unwrap_err();
    assert_eq!(refusal, "server 8000000000000007 is not the primary of shard 0");
    assert_eq!(ask(&mut job, server(7), &ready(0, view.number - 1)), Ok(()), "void");
    assert!(job.request(Id(1), b"{}").unwrap_err().starts_with("reading a request about shards"));
    assert_eq!(job.version(), version, "nothing of that is a change");
}
