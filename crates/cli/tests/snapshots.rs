//! Snapshots of real servers that are killed, and trainings that restore them or begin with a checkpoint.

mod support;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use support::{Folder, SILENCE, finish, kill, losses};
use thinwire_job::Settings;
use thinwire_job::elastic::{
    Coordinator, CoordinatorMode, Job, JobAddress, Options, Presence, Servers,
};
use thinwire_server::{
    Client, Configuration, Definition, Gradient, Kind, Origin, Reader, Snapshot, TableDefinition,
};
use thinwire_update::{Optimizer, Rows};

const LONG: Duration = Duration::from_secs(300);
const ROWS: u64 = 200;
const RULES: [&str; 2] = ["sgd:lr=1", "adagrad:lr=0.5"];

/// Coordinator in this process, and servers in processes of their own.
struct Started {
    coordinator: Coordinator,
    servers: Vec<Child>,
}

impl Started {
    fn new(folder: &Folder, servers: usize, flags: &[&str]) -> Started {
        Started::with(servers, || folder.command(&[&["server"], flags].concat()))
    }

    fn with(servers: usize, command: impl Fn() -> Command) -> Started {
        let options = || Options { silence: SILENCE, ..Options::new(CoordinatorMode::Saved, 1, 8) };
        let views = Some(Servers::new(options(), Configuration::default));
        let job = Job { workers: options(), servers: views };
        let coordinator = Coordinator::bind("127.0.0.1:0", "", job, None, |_event| {}).unwrap();
        let server = |_| {
            let job_address = JobAddress::server(coordinator.address(), "").unwrap();
            command().envs(job_address.variables()).spawn().unwrap()
        };
        let servers = (0..servers).map(server).collect();
        Started { coordinator, servers }
    }

    fn address(&self) -> String {
        self.coordinator.address()
    }

    /// Reads the lines of all servers from now on.
    fn listen(&mut self) -> Receiver<String> {
        let (sender, lines) = channel();
        for error in self.servers.iter_mut().map(|server| server.stderr.take().unwrap()) {
            let sender = sender.clone();
            let said = BufReader::new(error).lines().map_while(Result::ok);
            std::thread::spawn(move || said.for_each(|line| drop(sender.send(line))));
        }
        lines
    }

    fn kill(self) {
        for server in self.servers {
            kill(server.id());
            finish(server);
        }
    }
}

/// Returns a definition with a table per rule, each with one value per row.
fn definition(servers: u32, restore: Option<String>) -> Definition {
    let table = |rule: &&str| TableDefinition {
        name: rule.split(':').next().unwrap().to_owned(),
        rows: ROWS,
        width: 1,
        optimizer: (*rule).to_owned(),
        initial: "zeros".to_owned(),
        seed: 0,
        stream: 0,
        values: "f32".to_owned(),
    };
    let (tables, consistency) = (RULES.iter().map(table).collect(), "async".to_owned());
    Definition { tables, consistency, shards: 4 * servers, backups: 1, servers, restore }
}

/// Joins the job as a worker and pushes ones to all rows of all tables, until `stops`.
fn train(address: &str, definition: &Definition, stops: impl Fn(u64) -> bool) {
    let job_address = JobAddress::new(address, "").unwrap();
    let options = Options::new(CoordinatorMode::Saved, 1, 8);
    let presence = Presence::join(&job_address, &Settings::default(), options, Vec::new()).unwrap();
    let mut client = Client::open(&job_address, definition, LONG).unwrap();
    let (rows, values) = ((0..ROWS).collect::<Vec<_>>(), vec![1.0; ROWS as usize]);
    while !stops(client.pushes()) {
        let gradient = |table| Gradient { table, rows: &rows, values: &values };
        client.push(&[gradient(0), gradient(1)]).unwrap();
    }
    presence.leave();
}

/// Returns the values of a row of each table after this many pushes.
fn expected(pushes: u64) -> [f32; 2] {
    RULES.map(|rule| {
        let rule = Optimizer::parse(rule).unwrap();
        let (mut values, mut state) = ([0.0], vec![0.0; rule.rule.slots()]);
        let mut updates = [0];
        let mut rows =
            Rows { width: 1, values: &mut values, state: &mut state, updates: &mut updates };
        (0..pushes).for_each(|_| rule.update_rows(&mut rows, &[0], &[1.0]));
        values[0]
    })
}

/// Checks that every row of every table has had this many pushes.
fn check(address: &str, pushes: u64) {
    let mut reader = Reader::open(address, "", LONG).unwrap();
    for (table, expected) in (0..).zip(expected(pushes)) {
        let values = reader.pull_all(table).unwrap();
        assert!(values.iter().all(|value| *value == expected), "{pushes} pushes: {values:?}");
    }
}

#[test]
fn a_job_whose_servers_are_all_killed_goes_on_with_more_of_them() {
    let folder = Folder::new("snapshots-restored");
    let job = Started::new(&folder, 2, &["--snapshot-dir", "snapshots"]);
    let address = job.address();
    let (pushed, is_saved) = ([0, 0].map(AtomicU64::new), AtomicBool::new(false));
    let worker = |own: &AtomicU64| {
        train(&address, &definition(2, None), |pushes| {
            own.store(pushes, Ordering::Relaxed);
            is_saved.load(Ordering::Relaxed)
        });
    };
    std::thread::scope(|scope| {
        let workers = pushed.each_ref().map(|own| scope.spawn(|| worker(own)));
        let is_ready = |own: &AtomicU64| own.load(Ordering::Relaxed) > 50;
        support::eventually(|| pushed.iter().all(is_ready).then_some(()));
        let asked = folder.run(&["snapshot", "--coordinator", &address]);
        is_saved.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(asked.done(), "snapshot-000001\n");
    });
    job.kill();

    let path: PathBuf = folder.path().join("snapshots");
    let snapshot = Snapshot::open(&path.as_path().into()).unwrap();
    let pushes: Vec<u64> = snapshot.frontier().pushes.values().copied().collect();
    assert!(pushes.len() == 2 && pushes.iter().all(|it| *it > 50), "{pushes:?}");
    let total = pushes.iter().sum();
    let flags = ["--restore", "snapshots", "--snapshot-dir", "snapshots"];
    let job = Started::new(&folder, 3, &flags);
    let again = definition(3, Some(snapshot.name()));
    train(&job.address(), &again, |pushes| {
        if pushes == 0 {
            check(&job.address(), total);
        }
        pushes == 10
    });
    check(&job.address(), total + 10);
    let asked = folder.run(&["snapshot", "--coordinator", &job.address()]);
    assert_eq!(asked.done(), "snapshot-000002\n");
    job.kill();
}

/// Trains, and requests a snapshot that must fail for this reason. Returns the servers' output.
fn assert_fails(folder: &Folder, job: &Started, reason: &str) -> String {
    let (address, said) = (job.address(), format!("snapshot 1 failed: {reason}"));
    train(&address, &definition(2, None), |pushes| {
        if pushes == 5 {
            let asked = folder.run(&["snapshot", "--coordinator", &address]);
            let error = asked.error().to_owned();
            assert!(error.starts_with(&format!("error: {said}")), "{error}");
        }
        pushes == 20
    });
    check(&address, 20);
    said
}

#[test]
fn a_snapshot_that_cannot_be_written_costs_no_training() {
    let folder = Folder::new("snapshots-unwritten");
    let mut job = Started::new(&folder, 2, &["--snapshot-dir", "file"]);
    let lines = job.listen();
    for _ in 0..2 {
        while !lines.recv_timeout(LONG).expect("a server begins").contains("serving the job") {}
    }
    std::fs::remove_dir(folder.path().join("file")).unwrap();
    std::fs::write(folder.path().join("file"), "no folder").unwrap();
    let said = assert_fails(&folder, &job, "cannot create file/");
    while !lines.recv_timeout(LONG).expect("a server says why").contains(&said) {}
    job.kill();
    let job = Started::new(&folder, 2, &[]);
    assert_fails(&folder, &job, "server ");
    job.kill();
}

/// Returns the command of a server that can write no file beyond one block, as on a full disk.
fn server_without_room(folder: &Folder) -> Command {
    let server = folder.command(&["server", "--snapshot-dir", "snapshots"]);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\""]);
    command.arg(server.get_program()).args(server.get_args()).current_dir(folder.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_full_disk_leaves_earlier_snapshots_whole() {
    let folder = Folder::new("snapshots-full");
    let job = Started::new(&folder, 2, &["--snapshot-dir", "snapshots"]);
    let address = job.address();
    train(&address, &definition(2, None), |pushes| pushes == 7);
    assert_eq!(folder.run(&["snapshot", "--coordinator", &address]).done(), "snapshot-000001\n");
    job.kill();
    let job = Started::with(2, || server_without_room(&folder));
    assert_fails(&folder, &job, "cannot write snapshots/.snapshot-");
    let path = folder.path().join("snapshots");
    let names = || std::fs::read_dir(&path).unwrap().map(|it| it.unwrap().file_name());
    // The draft of the failed snapshot is removed.
    support::eventually(|| (names().collect::<Vec<_>>() == ["snapshot-000001"]).then_some(()));
    job.kill();
    let name = Snapshot::open(&path.as_path().into()).unwrap().name();
    let job = Started::new(&folder, 2, &["--restore", "snapshots"]);
    train(&job.address(), &definition(2, Some(name)), |pushes| pushes == 1);
    check(&job.address(), 8);
    job.kill();
}

#[test]
fn servers_and_ranks_go_on_from_one_snapshot() {
    let folder = Folder::new("snapshots-agreed");
    let job = Started::new(&folder, 1, &["--snapshot-dir", "snapshots"]);
    let address = job.address();
    let one = || Definition { backups: 0, ..definition(1, None) };
    train(&address, &one(), |pushes| pushes == 3);
    assert_eq!(folder.run(&["snapshot", "--coordinator", &address]).done(), "snapshot-000001\n");
    job.kill();
    let name = Snapshot::open(&folder.path().join("snapshots").into()).unwrap().name();
    let ended = |flags: &[&str], restore: Option<String>| {
        let mut job = Started::new(&folder, 1, flags);
        let job_address = JobAddress::new(job.address(), "").unwrap();
        let definition = Definition { restore, ..one() };
        let mut server = job.servers.remove(0);
        support::eventually(|| {
            let _ = Client::open(&job_address, &definition, Duration::from_secs(1));
            server.try_wait().unwrap()
        });
        let server = finish(server);
        (server.error().to_owned(), server.stderr)
    };
    let (error, all) = ended(&[], Some(name.clone()));
    let said = format!("error: the job continues from {name}, which this server does not have");
    assert_eq!(error, said);
    assert!(all.contains("hint: give --restore PATH"), "{all}");
    let mut job = Started::new(&folder, 1, &["--restore", "snapshots"]);
    let open = |restore: Option<String>, patience| {
        let job_address = JobAddress::new(job.address(), "").unwrap();
        Client::open(&job_address, &Definition { restore, ..one() }, patience)
    };
    for (restore, found) in [(None, "nothing"), (Some("another".to_owned()), "another")] {
        let refused = support::eventually(|| {
            let error = open(restore.clone(), Duration::from_secs(1)).unwrap_err();
            (error.kind() == Kind::Refused).then(|| error.to_string())
        });
        let said = format!("this worker continues from {found}, but server ");
        assert!(refused.starts_with(&said) && refused.contains(&name), "{refused}");
    }
    open(Some(name.clone()), LONG).unwrap();
    assert!(job.servers[0].try_wait().unwrap().is_none(), "the server continues");
    job.kill();
    let file = folder.path().join("snapshots/snapshot-000001/shard-00001.safetensors");
    std::fs::write(&file, "damaged").unwrap();
    let (error, _) = ended(&["--restore", "snapshots"], Some(name));
    let expected = "shard-00001.safetensors: 7 bytes, expected";
    assert!(error.starts_with("error: corrupt snapshot: ") && error.contains(expected), "{error}");
    let ended = folder.run(&["server", "--coordinator", "127.0.0.1:9", "--restore", "nowhere"]);
    assert!(ended.error().starts_with("error: no snapshot at nowhere: "), "{ended:?}");
    let ended =
        folder.run(&["server", "--coordinator", "127.0.0.1:9", "--snapshot-dir", "text.txt"]);
    assert!(ended.error().starts_with("error: cannot write snapshots to text.txt: "), "{ended:?}");
}

#[test]
fn a_server_without_a_folder_is_refused_where_others_have_one() {
    let folder = Folder::new("snapshots-facts");
    let mut job = Started::new(&folder, 1, &["--snapshot-dir", "snapshots"]);
    let lines = job.listen();
    while !lines.recv_timeout(LONG).expect("a server begins").contains("serving the job") {}
    let job_address = JobAddress::server(job.address(), "").unwrap();
    let other = finish(folder.command(&["server"]).envs(job_address.variables()).spawn().unwrap());
    let said =
        "error: servers disagree on --snapshot-dir: this server has none, the job has a folder";
    assert_eq!(other.error(), said);
    assert!(other.hint().contains("the same flags"), "{other:?}");
    job.kill();
}

/// Flags of a training with servers.
const FLAGS: [&str; 9] = [
    "--mode",
    "server",
    "--checkpoint-dir",
    "none",
    "--sample-bytes",
    "0",
    "--validation-batches",
    "0",
    "--json",
];

#[test]
fn a_training_goes_on_from_a_snapshot_with_more_servers() {
    let folder = Folder::new("snapshots-trained");
    let trained = |flags: &[&str]| folder.train(&[&FLAGS[..], flags].concat());
    let rule = ["--optimizer", "adamw:lr=0.01", "--ranks", "2"];
    let flags =
        ["--servers", "2", "--steps", "40", "--snapshot-dir", "s", "--snapshot-every", "40"];
    let ended = trained(&[&rule[..], &flags].concat());
    assert!(ended.stderr.contains("snapshot-000001 is written"), "{}", ended.stderr);
    let first = losses(ended);
    let flags = ["--servers", "3", "--steps", "5", "--restore", "s"];
    let ended = trained(&[&rule[..], &flags].concat());
    let said = "continuing from s/snapshot-000001, taken after step 40, in 16 shards";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let second = losses(ended);
    assert!(second[0] < 0.95 * first[0], "{first:?} {second:?}");
    let shard = folder.path().join("s/snapshot-000001/shard-00000.safetensors");
    std::fs::write(&shard, "damaged").unwrap();
    let ended = trained(&["--servers", "1", "--restore", "s"]);
    let error = ended.error();
    assert!(error.starts_with("error: corrupt snapshot: s/snapshot-000001/shard-00000"), "{error}");
    let ended = trained(&["--restore", "s", "--optimizer", "adagrad:lr=0.1"]);
    let error = ended.error();
    assert!(error.contains("is of another model: table '") && error.contains("in the snapshot"));
    assert_eq!(
        folder.train(&["--restore", "s"]).error(),
        "error: --restore s needs servers",
        "flags of servers need servers"
    );
    assert_eq!(
        trained(&["--snapshot-every", "3"]).error(),
        "error: --snapshot-every 3 needs a folder for snapshots"
    );
}

/// Writes a safetensors file with one tensor of one value per row: the row's number.
fn write_checkpoint(folder: &Folder, name: &str) -> PathBuf {
    let data: Vec<u8> = (0..ROWS).flat_map(|row| (row as f32).to_le_bytes()).collect();
    let end = data.len();
    let header =
        format!(r#"{{"{name}":{{"dtype":"F32","shape":[{ROWS},1],"data_offsets":[0,{end}]}}}}"#);
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Checks that every row of the first table is its number minus the number of pushes, each of ones by
/// `sgd:lr=1`.
fn check_numbers(address: &str, pushes: u64) {
    let values = Reader::open(address, "", LONG).unwrap().pull_all(0).unwrap();
    let expected: Vec<f32> = (0..ROWS).map(|row| row as f32 - pushes as f32).collect();
    assert_eq!(values, expected, "{pushes} pushes");
}

#[test]
fn a_table_that_began_with_a_checkpoint_outlives_a_server_and_the_file() {
    let folder = Folder::new("snapshots-checkpoint");
    let path = write_checkpoint(&folder, "sgd.weight");
    let mut begun = definition(2, None);
    begun.tables[0].initial = "checkpoint".to_owned();
    let begun = Origin::open(&path.as_path().into()).unwrap().begin(begun).unwrap();
    let flags = ["--restore", "model.safetensors", "--snapshot-dir", "snapshots"];
    let job = Started::new(&folder, 2, &flags);
    let address = job.address();
    train(&address, &begun, |pushes| {
        match pushes {
            0 => {
                check_numbers(&address, 0);
                std::fs::remove_file(&path).unwrap();
            }
            5 => {
                let asked = folder.run(&["snapshot", "--coordinator", &address]);
                assert_eq!(asked.done(), "snapshot-000001\n");
                kill(job.servers[0].id());
            }
            _ => {}
        }
        pushes == 10
    });
    check_numbers(&address, 10);
    job.kill();

    // A snapshot has all rows of the table, whatever its initial values are in the new job.
    let name = Snapshot::open(&folder.path().join("snapshots").into()).unwrap().name();
    let job = Started::new(&folder, 2, &["--restore", "snapshots"]);
    train(&job.address(), &definition(2, Some(name)), |pushes| pushes == 1);
    check_numbers(&job.address(), 6);
    job.kill();
}

/// Returns the numbers of all tensors in a training's only checkpoint.
fn numbers(folder: &Folder, checkpoints: &str, step: u64) -> Vec<f32> {
    let file = format!("{checkpoints}/step-{step:06}/model.safetensors");
    let bytes = std::fs::read(folder.path().join(file)).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (words, _) = rest[u64::from_le_bytes(*length) as usize..].as_chunks::<4>();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[test]
fn a_training_begins_with_a_checkpoint_of_one_without_servers() {
    let folder = Folder::new("snapshots-warm");
    let flags = ["--sample-bytes", "0", "--validation-batches", "0", "--ranks", "1", "--json"];
    let trained = |more: &[&str]| folder.train(&[&flags[..], more].concat());
    losses(trained(&["--steps", "4", "--checkpoint-dir", "first"]));
    let first = numbers(&folder, "first", 4);
    let restore = ["--restore", "first/step-000004/model.safetensors", "--servers", "2"];
    // The learning rates are so small that no value changes.
    let rates = ["--optimizer", "sgd:lr=1e-12", "--steps", "1"];
    let warm = |mode: &[&str], checkpoints| {
        let more = [&restore[..], &rates, mode, &["--checkpoint-dir", checkpoints]].concat();
        let ended = trained(&more);
        assert!(!ended.stderr.contains("begin again"), "{}", ended.stderr);
        assert!(ended.stderr.contains("beginning with the values of model.safetensors ("));
        let some = ended.stderr.contains(" of 21 parameters are on servers (");
        assert_eq!(some, mode.contains(&"hybrid"), "{}", ended.stderr);
        losses(ended);
        let found = numbers(&folder, checkpoints, 1);
        assert_eq!(found.len(), first.len());
        found.iter().zip(&first).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    assert!(warm(&["--mode", "server"], "second") < 1e-6);
    let hybrid = ["--mode", "hybrid", "--server-params", "embedding.*", "--lr", "1e-12"];
    assert!(warm(&hybrid, "third") < 1e-6);
    write_checkpoint(&folder, "of_another_model");
    let ended = trained(&["--mode", "server", "--restore", "model.safetensors"]);
    let error = ended.error();
    assert!(error.starts_with("error: no tensor '"), "{error}");
    assert_eq!(ended.hint(), "hint: its 1 tensors are of_another_model");
}
