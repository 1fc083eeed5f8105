//! What goes wrong ends in time, with one line that says what, and usually what to do.

mod support;

use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use support::{
    Ended, Folder, Talker, child_with, cluster, eventually, finish, finish_all, free_port, kill,
    lives, rank_of, signal, train_arguments,
};

/// A job that would train for hours.
const ENDLESS: [&str; 4] = ["--steps", "100000000", "--checkpoint-every", "20"];

fn wait_for_a_checkpoint(folder: &Folder) {
    eventually(|| {
        folder.path().join("thinwire-checkpoints/step-000020/manifest.json").exists().then_some(())
    });
}

#[test]
fn a_killed_rank_ends_the_job_and_the_checkpoint_loads() {
    let folder = Folder::new("killed");
    let launcher = folder.command(&train_arguments(&ENDLESS)).spawn().unwrap();
    wait_for_a_checkpoint(&folder);
    let (victim, survivor) = (rank_of(launcher.id(), 1), rank_of(launcher.id(), 0));
    kill(victim);
    let ended = finish(launcher);
    let error = ended.error();
    for part in ["rank 1 was killed by signal 9", "lost rank 1", "step ", " ("] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let way = "look at rank 1's own output; continue with: thinwire train --data text.txt ";
    assert!(ended.hint().contains(way), "{}", ended.hint());
    assert!(!lives(survivor));
    let resumed = ["--resume", "thinwire-checkpoints", "--steps", "1"];
    let error = folder.train(&resumed);
    // It loads: so far, that it says there is nothing left to do.
    assert!(error.error().contains("steps already"), "{}", error.error());
    folder.run(&["sample", "--length", "3"]).done();
}

/// Kills rank 1 of a training after its first checkpoint. It trains again from the beginning if it was done before
/// the signal came.
fn killed_in_time(folder: &Folder, flags: &[&str]) -> Ended {
    loop {
        let launcher = folder.command(&train_arguments(flags)).spawn().unwrap();
        wait_for_a_checkpoint(folder);
        if let Some(rank) = child_with(launcher.id(), "RANK=1") {
            try_signal("KILL", rank);
        }
        let (ended, kept) = (finish(launcher), folder.path().join("thinwire-checkpoints"));
        if !kept.join("step-000300").exists() {
            return ended;
        }
        std::fs::remove_dir_all(kept).unwrap();
    }
}

#[test]
fn the_hint_of_a_killed_run_continues_it_bit_for_bit() {
    let folder = Folder::new("hint");
    let flags = ["--codec", "int8", "--seed", "5", "--steps", "300", "--checkpoint-every", "20"];
    folder.train(&[&flags[..], &["--checkpoint-dir", "whole"]].concat()).done();
    let ended = killed_in_time(&folder, &flags);
    let (_, command) = ended.hint().split_once("continue with: thinwire ").unwrap();
    folder.run(&command.split(' ').collect::<Vec<_>>()).done();
    for file in ["model", "optimizer", "exchange-0", "exchange-1"] {
        let read = |place: &str| {
            let path = format!("{place}/step-000300/{file}.safetensors");
            std::fs::read(folder.path().join(path)).unwrap()
        };
        assert!(read("whole") == read("thinwire-checkpoints"), "{file}");
    }
}

/// `kill` of a process that may have ended.
fn try_signal(name: &str, process: u32) {
    let arguments = [format!("-{name}"), process.to_string()];
    let _ = std::process::Command::new("kill").args(arguments).output().unwrap();
}

/// A stopped process keeps its connections and says nothing.
#[test]
fn a_rank_that_is_stopped_while_it_starts_is_not_waited_for() {
    let folders = ["stopped-0", "stopped-1"].map(Folder::new);
    let launch = |rank: usize| {
        let flags = [&train_arguments(&ENDLESS)[..], &["--timeout", "10"]].concat();
        let launcher = folders[rank].command(&flags).spawn().unwrap();
        let stopped = rank_of(launcher.id(), rank as u32);
        signal(stopped, "STOP");
        (launcher, stopped)
    };
    let (launchers, stopped): (Vec<Child>, Vec<u32>) = [0, 1].map(launch).into_iter().unzip();
    for (rank, ended) in finish_all(launchers).into_iter().enumerate() {
        assert!(ended.error().contains(&format!("rank {rank}")), "{}", ended.stderr);
        assert!(!lives(stopped[rank]));
    }
}

/// Stops rank 1 of a training.
fn with_a_stopped_rank(name: &str, heartbeat_timeout: &str) -> (Folder, Child, u32) {
    let folder = Folder::new(name);
    let flags = [&ENDLESS[..], &["--heartbeat-timeout", heartbeat_timeout]].concat();
    let launcher = folder.command(&train_arguments(&flags)).spawn().unwrap();
    wait_for_a_checkpoint(&folder);
    let stopped = rank_of(launcher.id(), 1);
    signal(stopped, "STOP");
    (folder, launcher, stopped)
}

#[test]
fn a_rank_that_is_silent_for_longer_than_said_is_lost() {
    // Less than the ten seconds after which it would be lost anyway, more than a busy machine takes.
    let (_folder, launcher, _) = with_a_stopped_rank("silent", "5");
    let ended = finish(launcher);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.error().contains("lost rank 1: silent for "), "{}", ended.stderr);
}

#[test]
fn a_rank_that_is_silent_for_less_than_said_goes_on() {
    let (folder, launcher, paused) = with_a_stopped_rank("patient", "60");
    // The one wait that a clock must end.
    std::thread::sleep(Duration::from_millis(2500));
    signal(paused, "CONT");
    let newest = || {
        let folders = std::fs::read_dir(folder.path().join("thinwire-checkpoints")).unwrap();
        folders.map(|entry| entry.unwrap().file_name()).max()
    };
    let before = newest();
    eventually(|| (newest() > before).then_some(()));
    signal(launcher.id(), "INT");
    let ended = finish(launcher);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
}

#[test]
fn a_killed_launcher_leaves_nobody_behind() {
    let folder = Folder::new("orphans");
    let launcher = folder.command(&train_arguments(&ENDLESS)).spawn().unwrap();
    let ranks = [0, 1].map(|rank| rank_of(launcher.id(), rank));
    wait_for_a_checkpoint(&folder);
    kill(launcher.id());
    finish(launcher);
    eventually(|| ranks.iter().all(|rank| !lives(*rank)).then_some(()));
}

#[test]
fn an_interrupt_ends_in_good_order() {
    let folder = Folder::new("interrupt");
    let launcher = folder.command(&train_arguments(&ENDLESS)).spawn().unwrap();
    wait_for_a_checkpoint(&folder);
    let id = launcher.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let ended = finish(launcher);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    let said = ended.stderr.lines().find(|line| line.starts_with("stopped by SIGINT after step "));
    let (_, path) = said.expect("it says where it stopped").rsplit_once(' ').unwrap();
    assert!(folder.path().join(path).join("manifest.json").exists());
}

/// Rank 1 never comes; nobody has to ask twice.
#[test]
fn the_first_signal_ends_a_rendezvous() {
    let folder = Folder::new("rendezvous");
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let coordinator = format!("127.0.0.1:{}", free_port());
        let place = ["--rank", "0", "--world", "2", "--coordinator", &coordinator];
        let waiting = folder.command(&train_arguments(&place)).spawn().unwrap();
        eventually(|| TcpStream::connect(&coordinator).ok());
        signal(waiting.id(), name);
        let ended = finish(waiting);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(ended.stderr.contains("warning: without a token"), "{}", ended.stderr);
    }
}

#[test]
fn beyond_one_machine_an_empty_or_short_token_is_refused() {
    let folder = Folder::new("tokens");
    let place = ["--rank", "0", "--world", "2", "--coordinator", "192.0.2.1:9"];
    for (token, said) in [("", "no token"), ("fifteen letters", "token of 15 bytes")] {
        let mut command = folder.command(&train_arguments(&place));
        let ended = finish(command.env("THINWIRE_TOKEN", token).spawn().unwrap());
        let expected = format!("error: {said} for a job that meets at 192.0.2.1:9");
        assert!(ended.error().starts_with(&expected), "{}", ended.error());
        assert!(ended.hint().contains("THINWIRE_TOKEN=$("), "{}", ended.hint());
    }
}

#[test]
fn mistakes_are_named_with_a_hint() {
    let folder = Folder::new("mistakes");
    std::fs::write(folder.path().join("empty"), "").unwrap();
    std::fs::write(folder.path().join("short"), "ten bytes.").unwrap();
    std::fs::create_dir(folder.path().join("nothing")).unwrap();
    let table: [(&[&str], &str); 27] = [
        (&["--data", "absent.txt"], "cannot read absent.txt: No such file or directory"),
        (&["--data", "empty"], "no text in empty"),
        (&["--data", "nothing"], "no text in nothing"),
        (&["--data", "short"], "training text of 9 bytes, expected at least 32"),
        (&["--data", "/dev/zero"], "/dev/zero is no regular file"),
        (&["--lr", "-1"], "--lr -1, expected 0 or more"),
        (&["--width", "18446744073709551614"], "model with too many to count parameters"),
        (&["--layers", "100000000"], "model with 100000000 layers, expected at most 1024"),
        (&["--batch", "100000000"], "expected at most 16777216 bytes together"),
        (&["--report", "."], "cannot write the report: . is a folder"),
        (&["--report", "absent/report.html"], "absent is no folder"),
        (&["--trace", "absent/t"], "cannot write the trace absent/t: absent is no folder"),
        (&["--checkpoint-dir", "text.txt"], "cannot write checkpoints to text.txt"),
        (&["--checkpoint-dir", "/proc/here"], "cannot write checkpoints to /proc/here"),
        (&["--codec", "int9"], "unknown codec 'int9', expected one of none, f16"),
        (&["--codec", "topk:2"], "topk"),
        (
            &["--codec", "int8", "--error-budget", "0.3"],
            "--error-budget 0.3 has no effect with codec int8",
        ),
        (
            &["--codec", "none", "--codec-warmup-steps", "3"],
            "--codec-warmup-steps 3 has no effect with codec none, which sends raw gradients in \
             every step",
        ),
        (&["--algorithm", "star"], "unknown algorithm 'star'"),
        (&["--link", "fast"], "'fast' is no bandwidth"),
        (&["--batch", "1"], "batch of 1 rows for 2 ranks, expected 2 or more"),
        (&["--ranks", "1:5"], "batch of 4 rows for 5 ranks, expected 5 or more"),
        (&["--heads", "5"], "width 16"),
        (&["--resume", "absent"], "no checkpoint at absent"),
        (&["--stepz", "3"], "unexpected argument '--stepz' found"),
        (&["--rank", "0", "--world", "2"], "--rank 0 needs --coordinator"),
        (&["--rank", "0", "--world", "2", "--coordinator", "192.0.2.1:9"], "no token for a job"),
    ];
    for (flags, expected) in table {
        let mut arguments = train_arguments(&[]);
        // A flag may be given once only.
        if let Some(at) = arguments.iter().position(|argument| *argument == flags[0]) {
            arguments.drain(at..at + 2);
        }
        let ended = folder.run(&[&arguments[..], flags].concat());
        assert!(ended.error().contains(expected), "{flags:?}: {}", ended.error());
        assert!(ended.hint().len() > 10);
    }
    assert!(
        folder
            .run(&["run", "--", "no-such-program"])
            .error()
            .contains("cannot run 'no-such-program'")
    );
    assert!(folder.run(&["sample", "absent"]).error().contains("no checkpoint at absent"));
    let program = ["run", "--ranks", "1:5", "--", env!("CARGO_BIN_EXE_thinwire")];
    let ended = folder.run(&[&program[..], &train_arguments(&[])].concat());
    assert!(ended.error().contains("batch of 4 rows for 5 ranks"), "{}", ended.error());
}

#[test]
fn other_buckets_than_the_checkpoint_has_are_named() {
    let folder = Folder::new("buckets");
    folder.train(&["--steps", "1", "--codec", "int8", "--bucket-bytes", "1024"]).done();
    let other = ["--codec", "int8", "--bucket-bytes", "65536", "--resume", "thinwire-checkpoints"];
    let ended = folder.train(&[&["--steps", "2"][..], &other].concat());
    assert!(ended.error().contains("these --bucket-bytes make"), "{}", ended.error());
    assert!(ended.hint().contains("--bucket-bytes"));
    // Another codec makes other buckets of its own accord, and takes up what is owed.
    for codec in ["none", "auto", "topk:0.1"] {
        let arguments = ["--steps", "2", "--codec", codec, "--resume", "thinwire-checkpoints"];
        folder.train(&[&arguments[..], &["--checkpoint-dir", "none"]].concat()).done();
    }
}

#[test]
fn skipped_steps_are_warned_of_and_devices_stay() {
    let folder = Folder::new("skipped");
    let mut arguments = train_arguments(&["--lr", "1e30", "--clip", "0", "--steps", "9"]);
    let report = arguments.iter().position(|argument| *argument == "none").unwrap();
    arguments[report] = "link";
    std::os::unix::fs::symlink("/dev/null", folder.path().join("link")).unwrap();
    let ended = folder.run(&arguments);
    assert!(ended.stderr.contains("of 9 steps were skipped because gradients"), "{}", ended.stderr);
    assert_eq!(ended.code, Some(0));
    assert!(folder.path().join("link").is_symlink());
}

#[test]
fn a_rank_that_hangs_after_an_interrupt_is_killed() {
    let folder = Folder::new("hangs");
    let launcher = folder.command(&train_arguments(&ENDLESS)).spawn().unwrap();
    wait_for_a_checkpoint(&folder);
    let hanging = rank_of(launcher.id(), 1);
    signal(hanging, "STOP");
    signal(launcher.id(), "INT");
    let ended = finish(launcher);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(!lives(hanging));
    let warnings = ended.stderr.lines().filter(|line| line.starts_with("warning: "));
    let warnings: Vec<&str> = warnings.collect();
    let [warning] = warnings[..] else { panic!("{}", ended.stderr) };
    assert!(warning.contains("rank 1, which did not end within 14 s"), "{warning}");
    assert!(warning.ends_with("a last checkpoint may be missing"), "{warning}");
}

/// A rank of two that is started by hand.
fn start_by_hand(folder: &Folder, coordinator: &str, rank: &str, flags: &[&str]) -> Child {
    let place = ["--rank", rank, "--world", "2", "--coordinator", coordinator];
    folder.command(&train_arguments(&[&place, flags].concat())).spawn().unwrap()
}

/// Both ranks of a job that were started by hand, each with its own flags.
fn by_hand(folder: &Folder, flags: [&[&str]; 2]) -> Vec<Ended> {
    let coordinator = format!("127.0.0.1:{}", free_port());
    let start = |(rank, flags)| start_by_hand(folder, &coordinator, rank, flags);
    finish_all(["0", "1"].into_iter().zip(flags).map(start).collect::<Vec<_>>())
}

#[test]
fn ranks_that_disagree_say_both_values() {
    let folder = Folder::new("disagree");
    std::fs::write(folder.path().join("other.txt"), "other text ".repeat(1000)).unwrap();
    let table = [
        ("--codec", "codec", ["none", "int8"]),
        ("--seed", "seed", ["1", "2"]),
        ("--lr", "learning rate", ["0.1", "0.2"]),
        ("--checkpoint-every", "--checkpoint-every", ["5", "6"]),
    ];
    for (flag, about, values) in table {
        let [mine, theirs] = values.map(|value| [flag, value]);
        let ended = by_hand(&folder, [&mine, &theirs]);
        for (ended, mine, theirs) in
            [(&ended[0], values[0], values[1]), (&ended[1], values[1], values[0])]
        {
            let error = ended.error();
            let expected = format!("ranks disagree on {about}: this rank has {mine}, rank ");
            assert!(error.contains(&expected) && error.ends_with(theirs), "{error}");
            assert!(ended.hint().contains("same options"));
        }
    }
}

/// The others hear of it instead of waiting for as long as they are told to.
#[test]
fn a_rank_that_cannot_begin_is_not_waited_for() {
    let folder = Folder::new("absent");
    for absent in 0..2 {
        let mut flags: [&[&str]; 2] = [&[]; 2];
        flags[absent] = &["--resume", "nothing"];
        // It stays for some seconds to tell the other, which is to come first.
        let coordinator = format!("127.0.0.1:{}", free_port());
        let order = [1 - absent, absent];
        let start =
            |rank: usize| start_by_hand(&folder, &coordinator, ["0", "1"][rank], flags[rank]);
        let [told, failed] = &finish_all(order.map(start))[..] else { panic!("two ranks") };
        let own = failed.error().strip_prefix("error: ").unwrap();
        assert!(own.starts_with("no checkpoint at nothing"), "{own}");
        let expected = format!("error: rank {absent} does not come: {own}");
        assert_eq!(told.error(), expected, "{}", told.stderr);
        assert!(told.hint().ends_with("start all ranks again"), "{}", told.stderr);
    }
}

#[test]
fn other_tokens_worlds_and_ports_are_refused() {
    let folder = Folder::new("refused");
    let address = format!("127.0.0.1:{}", free_port());
    let first = start_by_hand(&folder, &address, "0", &["--token", "right"]);
    let second = finish(start_by_hand(&folder, &address, "1", &["--token", "wrong"]));
    assert!(second.error().contains("token"), "{}", second.error());
    assert!(second.hint().contains("same token"));
    kill(first.id());
    finish(first);

    let address = format!("127.0.0.1:{}", free_port());
    let absent = ["--rank", "1", "--world", "2", "--timeout", "1", "--coordinator", &address];
    let ended = folder.train(&absent);
    assert!(
        ended.error().contains("cannot reach the coordinator at 127.0.0.1:"),
        "{}",
        ended.error()
    );
    assert!(ended.hint().contains("rank 0 runs"));

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = folder.train(&["--rank", "0", "--world", "2", "--coordinator", &address]);
    assert!(ended.error().contains("address already in use"), "{}", ended.error());
    assert!(ended.hint().contains("another port"));

    let alone = ["--rank", "0", "--world", "2", "--timeout", "1", "--coordinator", "127.0.0.1:0"];
    let ended = folder.train(&alone);
    assert!(
        ended.error().contains("rank 1") || ended.error().contains("coordinator"),
        "{}",
        ended.error()
    );
}

/// Whatever was typed as far as it is a command is where to look.
#[test]
fn help_is_of_the_command_that_was_typed() {
    let folder = Folder::new("help");
    for (typed, command) in [
        (&["plan", "price", "--stages", "x"][..], "thinwire plan price"),
        (&["train", "--steps", "x"], "thinwire train"),
        (&["nothing"], "thinwire"),
    ] {
        assert_eq!(folder.run(typed).hint(), format!("hint: see {command} --help"));
    }
    let same = |words: &[&str]| folder.run(words).done();
    assert_eq!(same(&["help", "train"]), same(&["train", "--help"]));
    let help = same(&["compare", "--help"]);
    assert!(help.contains("--ranks <N>") && !help.contains("MIN:MAX"), "no elastic job: {help}");
}

#[test]
fn folders_may_have_any_name() {
    let folder = Folder::new("names");
    let name = std::ffi::OsStr::from_bytes(b"c\xff");
    let mut command = folder.command(&train_arguments(&["--steps", "1", "--checkpoint-dir"]));
    finish(command.arg(name).spawn().unwrap()).done();
    assert!(folder.path().join(name).join("step-000001").is_dir());
    // But a file of flags is text, and a word of bytes may name one.
    let flags = ["--save-config", "saved.toml", "--checkpoint-dir"];
    let ended = finish(folder.command(&train_arguments(&flags)).arg(name).spawn().unwrap());
    let said = "error: --checkpoint-dir is c\u{fffd}, expected UTF-8 for --save-config";
    assert_eq!(ended.error(), said);
    assert!(!folder.path().join("saved.toml").exists());
    let config = std::ffi::OsStr::from_bytes(b"--config=c\xff.toml");
    let ended = finish(folder.command(&["train"]).arg(config).spawn().unwrap());
    assert!(ended.error().starts_with("error: cannot read c\u{fffd}.toml"), "{}", ended.error());
}

#[test]
fn a_full_output_is_named() {
    let folder = Folder::new("full");
    for json in [&[][..], &["--json"]] {
        let mut command = folder.command(&train_arguments(&[&["--steps", "1"], json].concat()));
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = finish(command.stdout(full).spawn().unwrap());
        let expected = "rank 0: cannot write to standard output: No space left on device";
        assert_eq!(ended.error(), format!("error: {expected}"));
        assert!(ended.hint().starts_with("hint: free some space there"), "{}", ended.hint());
    }
}

/// Another training may have written to the folder that has the name now.
#[test]
fn a_folder_that_is_moved_ends_its_training() {
    let folder = Folder::new("moved");
    folder.train(&["--steps", "1", "--checkpoint-dir", "other"]).done();
    let launcher = folder.command(&train_arguments(&ENDLESS)).spawn().unwrap();
    wait_for_a_checkpoint(&folder);
    let kept = folder.path().join("thinwire-checkpoints");
    std::fs::rename(&kept, folder.path().join("old")).unwrap();
    std::fs::rename(folder.path().join("other"), &kept).unwrap();
    let ended = finish(launcher);
    // It may have been about to write one when the folder was moved.
    assert!(ended.error().contains("saving step "), "{}", ended.stderr);
    let names = std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["step-000001"]);
}

#[test]
fn a_folder_that_was_made_anew_gets_the_next_checkpoints() {
    let folder = Folder::new("anew");
    let mut command = folder.command(&train_arguments(&ENDLESS));
    let launcher = command.env("THINWIRE_RESCUE_AFTER_S", "60").spawn().unwrap();
    wait_for_a_checkpoint(&folder);
    let kept = folder.path().join("thinwire-checkpoints");
    std::fs::rename(&kept, folder.path().join("old")).unwrap();
    std::fs::create_dir(&kept).unwrap();
    eventually(|| {
        let mut found = std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path());
        found.find(|path| path.join("manifest.json").exists())
    });
    signal(launcher.id(), "TERM");
    let ended = finish(launcher);
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    assert!(ended.stderr.contains("thinwire-checkpoints is a new folder"), "{}", ended.stderr);
    folder.run(&["sample", "thinwire-checkpoints", "--length", "3"]).done();
}

#[test]
fn a_folder_that_is_mounted_late_and_away_for_a_while_ends_no_training() {
    let folder = Folder::new("away");
    let [kept, away] = ["thinwire-checkpoints", "away"].map(|name| folder.path().join(name));
    folder.train(&["--steps", "1"]).done();
    std::fs::rename(&kept, &away).unwrap();
    let flags = ["--resume", "thinwire-checkpoints", "--checkpoint-wait", "200"];
    let train = ["train", "--report", "none", "--link", "none"];
    let flags = [&train[..], &flags, &ENDLESS].concat();
    let mut launcher = Talker::of(folder.command(&flags).spawn().unwrap());
    launcher.said("waiting up to 200 s: no checkpoint at thinwire-checkpoints: ");
    std::fs::rename(&away, &kept).unwrap();
    wait_for_a_checkpoint(&folder);
    std::fs::rename(&kept, &away).unwrap();
    let warning = launcher.said("the training continues without this checkpoint");
    assert!(warning.contains("was moved or removed"), "{warning}");
    let steps = |folder: &std::path::Path| std::fs::read_dir(folder).unwrap().count();
    let before = steps(&away);
    std::fs::rename(&away, &kept).unwrap();
    eventually(|| (steps(&kept) > before + 1).then_some(()));
    signal(launcher.id(), "TERM");
    launcher.said("stopped by");
    assert_eq!(launcher.end().code, Some(143));
}

/// Returns the path of the checkpoint that an error names.
fn rescued(folder: &Folder, ended: &Ended) -> PathBuf {
    let (_, path) = ended.error().split_once("; the checkpoint is in ").expect("a path");
    let path = path.strip_suffix(" instead").unwrap();
    assert!(ended.hint().contains(&format!("--resume {path}")), "{}", ended.stderr);
    folder.path().join(path)
}

/// The folder's place is taken by a file, as where it is full or gone.
#[test]
fn a_last_checkpoint_that_fails_is_saved_elsewhere_by_every_kind_of_training() {
    let folder = Folder::new("rescued");
    std::fs::create_dir(folder.path().join("thinwire-checkpoints")).unwrap();
    std::fs::write(folder.path().join("thinwire-checkpoints/step-000003"), "in the way").unwrap();
    std::fs::write(folder.path().join("no-folder"), "").unwrap();
    let codec = ["--codec", "int8", "--steps", "3"];
    let parts = ["--parallel", "semi", "--pin", "block.*.mlp.up: n=tp", "--steps", "3"];
    let parts = [&parts[..], &["--cluster", "cluster.toml"]].concat();
    std::fs::write(folder.path().join("cluster.toml"), cluster(2)).unwrap();
    for (flags, rescue) in [(&codec[..], "kept/here"), (&parts[..], "no-folder")] {
        folder.train(&[flags, &["--checkpoint-dir", "whole"]].concat()).done();
        let mut command = folder.command(&train_arguments(flags));
        let ended = finish(command.env("THINWIRE_RESCUE_DIR", rescue).spawn().unwrap());
        assert!(ended.error().contains("saving step 3: cannot rename"), "{}", ended.stderr);
        let (path, whole) = (rescued(&folder, &ended), folder.path().join("whole/step-000003"));
        // Others may write to the temporary folder; a folder of the user's comes first.
        assert_eq!(path.starts_with(folder.path().join("kept/here")), rescue == "kept/here");
        let mut names = 0;
        for entry in std::fs::read_dir(&whole).unwrap() {
            let name = entry.unwrap().file_name();
            names += 1;
            let is_equal = std::fs::read(path.join(&name)).unwrap()
                == std::fs::read(whole.join(&name)).unwrap();
            assert!(is_equal || name == "manifest.json", "{name:?}");
        }
        assert!(names >= 4);
        let on = ["train", "--resume", path.to_str().unwrap(), "--checkpoint-dir", "none"];
        let ended = folder
            .run(&[&on[..], &["--steps", "4", "--report", "none", "--link", "none"]].concat());
        assert!(!ended.stderr.contains("dropped"), "{}", ended.stderr);
        ended.done();
    }
}

/// Two ranks with a folder each would notice with the first checkpoint only, after the last step.
#[test]
fn a_folder_that_ranks_do_not_share_is_noticed_before_the_first_step() {
    let folder = Folder::new("unshared");
    let of = |place: &'static str| ["--checkpoint-dir", place, "--steps", "100000000"];
    let ended = by_hand(&folder, [&of("one"), &of("other")]);
    for (ended, place) in ended.iter().zip(["one", "other"]) {
        let expected = format!("rank 1 does not see in {place} what rank 0 writes there");
        assert!(ended.error().ends_with(&expected), "{}", ended.stderr);
        assert!(ended.hint().contains("a folder that all ranks share"), "{}", ended.stderr);
        assert_eq!(std::fs::read_dir(folder.path().join(place)).unwrap().count(), 0);
    }
}

/// The training is done: what it came to is told, whatever becomes of the checkpoint.
#[test]
fn a_last_checkpoint_that_cannot_be_written_costs_no_report() {
    let folder = Folder::new("unsaved");
    std::fs::create_dir(folder.path().join("thinwire-checkpoints")).unwrap();
    std::fs::write(folder.path().join("thinwire-checkpoints/step-000003"), "in the way").unwrap();
    let ended = folder.train(&["--steps", "3"]);
    assert!(ended.error().contains("saving step 3: cannot rename"), "{}", ended.stderr);
    assert!(ended.stdout.contains("training loss"), "{}", ended.stdout);
    let ended = folder.train(&["--steps", "4", "--checkpoint-every", "3"]);
    assert!(ended.error().contains("saving step 3: cannot rename"), "{}", ended.stderr);
    assert!(!ended.stdout.contains("training loss"), "{}", ended.stdout);
}
