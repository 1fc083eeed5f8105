//! What the tests of the command share: a fresh folder, the real program, and patience that ends.
#![allow(dead_code)]

pub mod etcd;

use std::io::{self, BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Returns the cluster file of so many slow cores, with links so fast that cuts are worth it.
pub fn cluster(size: usize) -> String {
    format!(
        r#"
    [[device]]
    name = "core"
    tflops = 0.001
    memory_gib = 1
    memory_gbyte_per_s = 1

    [[level]]
    name = "host"
    size = {size}
    latency_us = 1
    gbit = 100
"#
    )
}

/// Longest time that anything here may take, on a machine that is busy with something else: it ends what hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Silence after which a coordinator of a test counts a process as lost: longer than usual, since one that starves
/// is silent although it lives.
pub const SILENCE: Duration = Duration::from_secs(6);

/// The flags of a model that trains in milliseconds.
pub const SMALL: [&str; 10] =
    ["--width", "16", "--layers", "1", "--heads", "2", "--context", "16", "--batch", "4"];

/// Variables by which a launcher might have started the tests themselves.
const FOREIGN: [&str; 14] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
    "THINWIRE_TOKEN",
    "THINWIRE_COORDINATOR",
    "THINWIRE_STORE",
    "THINWIRE_MEMBER",
    "THINWIRE_PORT",
];

/// A fresh folder that goes when it is dropped.
pub struct Folder(TempDir);

impl Folder {
    /// The folder of the test called `name`.
    pub fn new(name: &str) -> Folder {
        let folder = TempDir::with_prefix(format!("thinwire-cli-{name}-")).unwrap();
        std::fs::write(folder.path().join("text.txt"), text()).unwrap();
        Folder(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The program in this folder, without a launcher's variables. It is killed when the thread that starts
    /// it ends, so that a test that fails leaves nothing running. A coordinator that it launches takes
    /// ten seconds of silence for a loss, as links do, unless a timeout is given, which may be shorter.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_thinwire")]);
        command.args(arguments).current_dir(&self.0).env("TMPDIR", self.path());
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // A last checkpoint that fails is tried again for a moment only.
        command.env("THINWIRE_RESCUE_AFTER_S", "0.2").env_remove("THINWIRE_RESCUE_DIR");
        FOREIGN.iter().for_each(|name| {
            command.env_remove(name);
        });
        if !arguments.contains(&"--timeout") {
            command.env("THINWIRE_HEARTBEAT_TIMEOUT_S", "10");
        }
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        finish(self.command(arguments).spawn().unwrap())
    }

    /// `thinwire train` of a small model on the folder's text, without a report.
    pub fn train(&self, arguments: &[&str]) -> Ended {
        self.run(&train_arguments(arguments))
    }
}

/// The arguments of a small training.
pub fn train_arguments<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["train", "--data", "text.txt", "--report", "none", "--link", "none"];
    [&fixed[..], &SMALL[..], arguments].concat()
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Standard output, of a program that did what it was asked.
    pub fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// The one line that begins with `error:`, of a program that ended with an error.
    pub fn error(&self) -> &str {
        assert_eq!(self.code, Some(2), "{}{}", self.stdout, self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        let mut lines = self.stderr.lines().filter(|line| line.starts_with("error: "));
        let error = lines.next().unwrap_or_else(|| panic!("no error in {}", self.stderr));
        assert_eq!(lines.next(), None, "{}", self.stderr);
        error
    }

    /// The line that begins with `hint:`.
    pub fn hint(&self) -> &str {
        let hint = self.stderr.lines().find(|line| line.starts_with("hint: "));
        hint.unwrap_or_else(|| panic!("no hint in {}", self.stderr))
    }

    /// The JSON objects on standard output.
    pub fn json(self) -> Vec<serde_json::Value> {
        let text = self.done();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Waits until a program ends, but not for ever.
pub fn finish(mut child: Child) -> Ended {
    let watched = watch(child.id());
    let output = child.stdout.is_some() || child.stderr.is_some();
    let Output { status, stdout, stderr } = match output {
        true => child.wait_with_output().unwrap(),
        false => Output { status: child.wait().unwrap(), stdout: Vec::new(), stderr: Vec::new() },
    };
    drop(watched);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// Kills a program that hangs, unless what this returns is dropped before.
fn watch(process: u32) -> Sender<()> {
    let (done, waiting) = channel();
    thread::spawn(move || {
        if waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            kill(process);
        }
    });
    done
}

/// Program whose standard error is read line by line while it runs. It is killed if it hangs.
pub struct Talker {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    /// Reads standard output meanwhile: a program whose pipe is full waits.
    stdout: JoinHandle<String>,
    _watched: Sender<()>,
}

impl Talker {
    /// Reads what a program says.
    pub fn of(mut child: Child) -> Talker {
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let stdout = child.stdout.take().unwrap();
        let stdout = thread::spawn(move || io::read_to_string(stdout).unwrap());
        let watched = watch(child.id());
        Talker { child, lines, stdout, _watched: watched }
    }

    /// Id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line with this text.
    pub fn said(&mut self, text: &str) -> String {
        let mut before = Vec::new();
        for line in self.lines.by_ref().map(Result::unwrap) {
            if line.contains(text) {
                return line;
            }
            before.push(line);
        }
        panic!("no line with '{text}': {before:?}")
    }

    /// Waits for the end of the program. What it has said before is left out.
    pub fn end(self) -> Ended {
        let stderr = self.lines.map(Result::unwrap).map(|line| line + "\n").collect();
        let stdout = self.stdout.join().unwrap();
        Ended { stderr, stdout, ..finish(self.child) }
    }
}

/// Waits until all programs end. They are read at once: one whose pipe is full waits, and the others for it.
pub fn finish_all(children: impl IntoIterator<Item = Child>) -> Vec<Ended> {
    let reader = |child| thread::spawn(move || finish(child));
    let readers: Vec<_> = children.into_iter().map(reader).collect();
    readers.into_iter().map(|reader| reader.join().unwrap()).collect()
}

/// A port that is free, and that the system gives to nobody who asks for any: it takes those from 32768 on.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = std::process::id() as u16;
    let port = || 10_000 + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
    std::iter::repeat_with(port)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap()
}

/// `kill -9`.
pub fn kill(process: u32) {
    signal(process, "KILL");
}

/// Sends a process a signal.
pub fn signal(process: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &process.to_string()]).status().unwrap();
    assert!(status.success());
}

/// Looks until `found` gives something.
pub fn eventually<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "it never came");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The process that is this rank of the job that `launcher` has started.
pub fn rank_of(launcher: u32, rank: u32) -> u32 {
    eventually(|| child_with(launcher, &format!("RANK={rank}")))
}

/// A process that `launcher` has started with this variable.
pub fn child_with(launcher: u32, variable: &str) -> Option<u32> {
    let children = format!("/proc/{launcher}/task/{launcher}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    children.split_whitespace().filter_map(|id| id.parse().ok()).find(|id: &u32| {
        let variables = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|found| found == variable.as_bytes())
    })
}

/// Whether a process runs.
pub fn lives(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// Some 12 kB of text.
fn text() -> String {
    (0..400).map(|i| format!("{i} bottles of beer, {} on the wall.\n", i * i % 97)).collect()
}

/// The training losses that rank 0 has printed.
pub fn losses(ended: Ended) -> Vec<f64> {
    let json = ended.json();
    let all = json[0]["losses"].as_array().unwrap();
    all.iter().map(|point| point["value"].as_f64().unwrap()).collect()
}

/// Losses are those of one rank with the same rows in every step: a row that is lost or learnt twice makes
/// all steps after it others.
pub fn assert_same_rows(folder: &Folder, flags: &[&str], found: &[f64]) {
    assert_same_rows_from(folder, flags, (0, found));
}

/// As [`assert_same_rows`], for losses that begin after some steps.
pub fn assert_same_rows_from(folder: &Folder, flags: &[&str], (missed, found): (usize, &[f64])) {
    let flags = [flags, &["--ranks", "1", "--json"]].concat();
    let alone = losses(folder.train(&flags)).split_off(missed);
    assert_eq!(alone.len(), found.len());
    let differ = |(one, other): (&f64, &f64)| (one - other).abs();
    let mean = alone.iter().zip(found).map(differ).sum::<f64>() / alone.len() as f64;
    let shifted = alone[1..].iter().zip(found).map(differ).sum::<f64>() / alone.len() as f64;
    assert!(mean < shifted / 10.0, "losses differ by {mean}, with other rows by {shifted}");
}
