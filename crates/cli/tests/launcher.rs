//! Elastic jobs of any program: members die, leave and are replaced, and the job continues.

mod support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thinwire_job::elastic::{CoordinatorMode, Membership, Next, Options, job_address};
use thinwire_job::{Overrides, Settings, process};

use support::{Ended, Folder, child_with, eventually, kill, lives, signal, train_arguments};

/// A job that runs, with its standard error in a file.
struct Job {
    folder: Folder,
    launcher: Child,
    log: PathBuf,
}

const TOKEN: &str = "a token of the tests";

fn operate(folder: &Folder, address: &str, arguments: &[&str]) -> Ended {
    let mut command = folder.command(arguments);
    command.env("THINWIRE_TOKEN", TOKEN).env("THINWIRE_COORDINATOR", address);
    support::finish(command.spawn().unwrap())
}

/// Members live until the test says so.
const UNTIL_TOLD: &str = "while [ ! -e go ]; do sleep 0.02; done";

impl Job {
    /// Starts `thinwire run` with `flags` and a script.
    fn start(name: &str, flags: &[&str], script: &str) -> Job {
        Job::of(name, &[&["run"], flags, &["--", "sh", "-c", script]].concat())
    }

    /// Starts `thinwire run` with `flags` and members that join the job and count steps.
    fn of_members(name: &str, flags: &[&str]) -> Job {
        let me = std::env::current_exe().unwrap();
        let member = [me.to_str().unwrap(), "--ignored", "--exact", "member", "--nocapture"];
        Job::of(name, &[&["run"], flags, &["--"], &member[..]].concat())
    }

    fn of(name: &str, arguments: &[&str]) -> Job {
        let folder = Folder::new(name);
        let log = folder.path().join("log");
        let mut command = folder.command(arguments);
        command.stderr(File::create(&log).unwrap()).env("THINWIRE_TOKEN", TOKEN);
        let launcher = command.spawn().unwrap();
        Job { folder, launcher, log }
    }

    /// The process of the member that lives in a slot, once it has become the program.
    fn member(&self, slot: u32) -> u32 {
        eventually(|| {
            let process = child_with(self.launcher.id(), &format!("LOCAL_RANK={slot}"))?;
            let program = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
            let is_launcher = program.windows(6).any(|window| window == b"__rank");
            (!is_launcher && !program.is_empty()).then_some(process)
        })
    }

    /// Waits until the launcher has said something; the rest of that line.
    fn says(&self, text: &str) -> String {
        eventually(|| {
            let log = std::fs::read_to_string(&self.log).ok()?;
            let (_, rest) = log.split_once(text)?;
            rest.split_once('\n').map(|(line, _)| line.to_owned())
        })
    }

    /// Runs another command about this job to its end.
    fn operate(&self, arguments: &[&str]) -> Ended {
        let address = self.says("THINWIRE_COORDINATOR=");
        operate(&self.folder, address.split(' ').next().unwrap(), arguments)
    }

    fn tell(&self) {
        File::create(self.folder.path().join("go")).unwrap();
    }

    fn finish(self) -> Ended {
        let ended = support::finish(self.launcher);
        Ended { stderr: std::fs::read_to_string(&self.log).unwrap(), ..ended }
    }
}

#[test]
fn members_get_their_place_on_the_machine_and_no_rank() {
    let folder = Folder::new("members");
    let script = "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE, ${RANK:-no rank}, ${WORLD_SIZE:-no world}, \
                  ${THINWIRE_MEMBER:+a member} ${THINWIRE_COORDINATOR:+with a coordinator} \
                  ${THINWIRE_TOKEN:+and a token}";
    let ended = folder.run(&["run", "--ranks", "2:3", "--", "sh", "-c", script]);
    let rest = "no rank, no world, a member with a coordinator and a token";
    let stderr = ended.stderr.clone();
    for member in [1, 2] {
        let line = format!("[member {member}] {member} of 3, {rest}\n");
        assert!(stderr.contains(&line), "{stderr}");
    }
    assert_eq!(ended.done(), format!("0 of 3, {rest}\n"));
}

#[test]
fn the_others_go_on_when_a_member_is_killed() {
    let job = Job::start("killed", &["--ranks", "1:2"], UNTIL_TOLD);
    kill(job.member(1));
    assert_eq!(job.says("member 1 was killed by signal 9 (SIGKILL); 1 continues"), "");
    job.tell();
    job.finish().done();
}

#[test]
fn members_that_die_are_replaced_as_often_as_allowed() {
    let job = Job::start("replaced", &["--ranks", "2:2", "--restarts", "1"], UNTIL_TOLD);
    let (lives_on, dies) = (job.member(0), job.member(1));
    kill(dies);
    job.says("1 continues, and one takes its place (restarts left: 0)");
    let replacement = eventually(|| Some(job.member(1)).filter(|process| *process != dies));
    assert!(lives(lives_on));
    kill(replacement);
    let ended = job.finish();
    let error =
        "error: 1 rank is left, expected at least 2: member 1 was killed by signal 9 (SIGKILL)";
    assert_eq!(ended.error(), error);
    assert!(ended.hint().contains("--restarts"));
    assert!(!lives(lives_on));
}

#[test]
fn a_member_that_is_told_to_go_leaves_alone() {
    let job = Job::start("leaves", &["--ranks", "1:2", "--restarts", "9"], UNTIL_TOLD);
    signal(job.member(1), "TERM");
    assert_eq!(job.says("member 1 has left; 1 continues"), "");
    job.tell();
    job.finish().done();
}

#[test]
fn a_job_whose_members_all_die_says_who_was_first() {
    let job = Job::start("dies", &["--ranks", "1:2"], "[ $LOCAL_RANK = 0 ] && exit 3; sleep 60");
    job.says("member 0 exited with code 3; 1 continues");
    kill(job.member(1));
    assert_eq!(job.finish().error(), "error: member 0 exited with code 3");
}

#[test]
fn a_signal_to_the_launcher_ends_all_and_a_second_one_kills() {
    let job = Job::start("terminated", &["--ranks", "1:2"], UNTIL_TOLD);
    let members = [job.member(0), job.member(1)];
    signal(job.launcher.id(), "TERM");
    assert_eq!(job.finish().code, Some(143));
    assert!(!members.into_iter().any(lives));

    let job =
        Job::start("stubborn", &["--ranks", "1:2"], "trap '' TERM; echo up; sleep 60; sleep 60");
    let members = [job.member(0), job.member(1)];
    job.says("[member 1] up");
    signal(job.launcher.id(), "TERM");
    signal(job.launcher.id(), "TERM");
    assert_eq!(job.finish().code, Some(143));
    assert!(!members.into_iter().any(lives));
}

#[test]
#[ignore = "a member that other tests start"]
fn member() {
    let job_address =
        job_address(&Overrides::default(), &process).unwrap().expect("started by a launcher");
    let options = Options::new(CoordinatorMode::Saved, 1, 3);
    let mut membership =
        Membership::join(&job_address, &Settings::default(), options, Vec::new()).unwrap();
    let mut done = 0;
    while let Next::Run(run) = membership.next().unwrap() {
        let over = Arc::new(AtomicBool::new(false));
        let abort = Arc::clone(&over);
        membership.on_abort(move || abort.store(true, Ordering::SeqCst));
        done = run.epoch.done.max(done);
        membership.synced(done);
        while !over.load(Ordering::SeqCst) && membership.finishing().is_none() {
            std::thread::sleep(Duration::from_millis(5));
            done += 1;
            membership.applied(done);
            if Path::new("go").exists() {
                return membership.complete().unwrap();
            }
        }
        membership.halted();
    }
}

#[test]
fn a_replacement_joins_the_others_who_have_gone_on() {
    let job = Job::of_members("joins", &["--ranks", "1:3", "--restarts", "1"]);
    // The first who are there may begin alone.
    assert!(job.says(": 3 ranks; ").starts_with("joined: member "));
    kill(job.member(1));
    job.says("member 1 was killed by signal 9 (SIGKILL); 2 continue, and one takes its place");
    job.says("gone: member 1 (ended)");
    job.says("joined: member 3");
    let status = job.operate(&["top", "--json"]).json();
    assert_eq!(status[0]["members"].as_array().unwrap().len(), 3);
    let ended = job.operate(&["top", "--token", "another token of the tests"]);
    assert!(ended.hint().contains("is not the job's: set THINWIRE_TOKEN"), "{}", ended.stderr);
    job.tell();
    let ended = job.finish();
    assert!(ended.stderr.contains("all steps are done"), "{}", ended.stderr);
    ended.done();
}

#[test]
fn a_training_survives_the_death_of_a_rank_and_rank_0_prints() {
    // Not done before all have come, nor for long after.
    let flags = ["--ranks", "3:3", "--restarts", "1", "--steps", "1500", "--codec", "none"];
    let quiet = ["--checkpoint-dir", "none", "--sample-bytes", "0", "--json"];
    let job = Job::of("training", &train_arguments(&[&flags[..], &quiet[..]].concat()));
    job.says(": 3 ranks; ");
    kill(job.member(1));
    job.says("member 1 was killed by signal 9 (SIGKILL); 2 continue, and one takes its place");
    let ended = job.finish();
    assert!(ended.stderr.contains("all steps are done"), "{}", ended.stderr);
    let lines = ended.json();
    assert_eq!(lines[0]["losses"].as_array().unwrap().len(), 1500);
}

#[test]
fn a_training_whose_launcher_is_told_to_end_writes_a_checkpoint() {
    let flags = ["--ranks", "1:2", "--steps", "100000", "--codec", "none"];
    let quiet = ["--checkpoint-dir", "kept", "--sample-bytes", "0"];
    let job = Job::of("training-left", &train_arguments(&[&flags[..], &quiet[..]].concat()));
    job.says(": 2 ranks; ");
    eventually(|| {
        let status = job.operate(&["top", "--json"]).json();
        (status[0]["members"][0]["step"].as_u64() > Some(0)).then_some(())
    });
    signal(job.launcher.id(), "TERM");
    let kept = job.folder.path().join("kept");
    let launcher = job.launcher;
    assert_eq!(support::finish(launcher).code, Some(143));
    assert!(kept.read_dir().unwrap().next().is_some(), "a checkpoint");
}

#[test]
fn a_last_checkpoint_that_cannot_be_written_is_an_error_of_an_interrupted_job() {
    for ranks in ["2", "2:2"] {
        let flags = ["--ranks", ranks, "--steps", "100000", "--codec", "none"];
        let quiet = ["--checkpoint-dir", "kept", "--sample-bytes", "0"];
        let name = format!("training-unsaved-{}", ranks.len());
        let job = Job::of(&name, &train_arguments(&[&flags[..], &quiet[..]].concat()));
        job.says(", 2 ranks, link: ");
        let kept = job.folder.path().join("kept");
        std::fs::remove_dir_all(&kept).unwrap();
        std::fs::write(&kept, "").unwrap();
        signal(job.launcher.id(), "INT");
        let ended = job.finish();
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("is another folder than when"), "{}", ended.stderr);
    }
}

#[test]
fn a_job_is_made_smaller_and_larger() {
    let job = Job::of_members("resized", &["--ranks", "1:3"]);
    job.says(": 3 ranks; ");
    kill(job.member(2));
    kill(job.member(1));
    job.says("1 continues");
    assert!(job.operate(&["resize", "4"]).error().contains("4 ranks, expected 1 to 3"));
    // As many as were wanted before, some of which have gone.
    job.operate(&["resize", "3"]).done();
    job.says("the job is to have 3 ranks: 2 more are started");
    eventually(|| {
        let status = job.operate(&["top", "--json"]).json();
        (status[0]["members"].as_array().unwrap().len() == 3).then_some(())
    });
    job.operate(&["resize", "1"]).done();
    job.says(" (resized)");
    eventually(|| job.operate(&["top"]).done().contains(" spare ").then_some(()));
    signal(job.launcher.id(), "TERM");
    assert_eq!(job.finish().code, Some(143));
}

#[test]
fn a_coordinator_alone_keeps_its_state_until_all_steps_are_done() {
    let flags = ["coordinator", "--listen", "127.0.0.1:0", "--ranks", "1:3", "--state", "state"];
    let job = Job::of("coordinator", &flags);
    let address = job.says("coordinating 1 to 3 ranks at ");
    operate(&job.folder, &address, &["resize", "2"]).done();
    let text = operate(&job.folder, &address, &["top"]).done();
    assert!(text.starts_with("no epoch yet: 0 of 2 ranks, 1 to 3 allowed"), "{text}");
    let other = operate(&job.folder, &address, &["top", "--token", "another token, and long"]);
    assert!(other.error().contains("token"), "{}", other.stderr);
    let me = std::env::current_exe().unwrap();
    let program = [me.to_str().unwrap(), "--ignored", "--exact", "member"];
    let join = [&["run", "--coordinator", &address, "--"], &program[..]].concat();
    let mut member = job.folder.command(&join);
    member.env("THINWIRE_TOKEN", TOKEN).env("THINWIRE_MEMBER", "new");
    let mut member = member.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    job.says("epoch 1: 1 rank");
    let text = operate(&job.folder, &address, &["top", "--once"]).done();
    assert!(text.contains(&format!(":{} ", member.id())), "{text}");
    assert!(job.folder.path().join("state").exists());
    job.tell();
    assert!(member.wait().unwrap().success());
    let state = job.folder.path().join("state");
    eventually(|| (!state.exists()).then_some(()));
    job.finish().done();
}

#[test]
fn a_coordinator_that_everybody_may_join_says_so() {
    let folder = Folder::new("unprotected");
    let log = folder.path().join("log");
    let mut command = folder.command(&["coordinator", "--listen", "127.0.0.1:0"]);
    let mut coordinator = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
    let warning = "warning: without a token every user of this machine can join this job";
    eventually(|| std::fs::read_to_string(&log).unwrap().contains(warning).then_some(()));
    kill(coordinator.id());
    coordinator.wait().unwrap();
}

#[test]
fn nobody_outlives_a_launcher_that_is_killed() {
    let job = Job::start("orphans", &["--ranks", "1:2"], UNTIL_TOLD);
    let members = [job.member(0), job.member(1)];
    kill(job.launcher.id());
    assert_eq!(job.finish().code, None);
    for member in members {
        eventually(|| (!lives(member)).then_some(()));
    }
}

#[test]
fn a_reader_that_has_enough_ends_the_job() {
    let folder = Folder::new("enough");
    let mut child = folder.command(&["run", "--ranks", "1:2", "--", "yes"]).spawn().unwrap();
    drop(child.stdout.take());
    drop(child.stderr.take());
    assert_eq!(support::finish(child).code, Some(0));
}

#[test]
fn what_cannot_be_elastic_is_refused() {
    let folder = Folder::new("refused");
    let refused = |arguments: &[&str], error: &str, hint: &str| {
        let ended = folder.run(arguments);
        assert_eq!(ended.error(), format!("error: {error}"));
        assert!(ended.hint().contains(hint), "{}", ended.stderr);
    };
    let fixed = "needs a fixed number of ranks, found --ranks 2:4";
    let train = |flags: &[&'static str]| {
        [&["train", "--data", "text.txt", "--ranks", "2:4"], flags].concat()
    };
    refused(&train(&["--plan", "plan.json"]), &format!("--plan plan.json {fixed}"), "--ranks 4");
    refused(&train(&["--parallel", "auto"]), &format!("--parallel auto {fixed}"), "--ranks 4");
    refused(
        &["compare", "--data", "text.txt", "--ranks", "2:4"],
        &format!("compare {fixed}"),
        "--ranks 4",
    );
    refused(
        &["run", "--ranks", "2", "--restarts", "1", "--", "true"],
        "--restarts 1 works only in an elastic job, found --ranks 2",
        "--ranks MIN:MAX",
    );
    refused(
        &["coordinator", "--listen", "127.0.0.1:0", "--ranks", "3"],
        "a coordinator needs the fewest and the most ranks, found --ranks 3",
        "--ranks 3:3",
    );
    refused(
        &["resize", "3"],
        "the address of the coordinator is missing",
        "--coordinator HOST:PORT",
    );
    refused(
        &["run", "--ranks", "4:2", "--", "true"],
        "invalid value '4:2' for '--ranks <N>': at least 4 and at most 2 ranks exclude each other, expected MIN:MAX such as 2:4",
        "thinwire run --help",
    );
    refused(
        &["run", "--ranks", "2:", "--", "true"],
        "invalid value '2:' for '--ranks <N>': MAX is missing, expected MIN:MAX such as 2:4",
        "thinwire run --help",
    );
    refused(
        &["resize", "0"],
        "invalid value '0' for '<N>': 0 ranks, expected at least 1; to end the job, send a signal to its launcher",
        "thinwire resize --help",
    );
    refused(
        &["run", "--coordinator", "127.0.0.1:7", "--", "true"],
        "--coordinator 127.0.0.1:7 has no effect: all ranks are started on this machine",
        "THINWIRE_MEMBER=new",
    );
    refused(
        &train(&["--trace", "trace"]),
        "--trace trace cannot be used in an elastic job",
        "leave --trace out",
    );
    let gone = ["coordinator", "--listen", "127.0.0.1:0", "--state", "gone/state"];
    let ended = folder.run(&gone);
    assert!(
        ended.error().contains("saving the coordinator's state in gone/state"),
        "{}",
        ended.stderr
    );
    assert!(ended.hint().contains("must exist"), "{}", ended.stderr);
    let mut inside = folder.command(&["run", "--ranks", "2:4", "--", "true"]);
    inside.envs([("RANK", "0"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "127.0.0.1")]);
    let ended = support::finish(inside.spawn().unwrap());
    assert_eq!(ended.error(), "error: --ranks 2:4, but RANK and WORLD_SIZE gives 4 ranks");
}
