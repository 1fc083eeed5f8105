//! `thinwire run` and the other commands that need no training.

mod support;

use std::process::Stdio;

use support::Folder;

#[test]
fn ranks_get_torchruns_environment() {
    let folder = Folder::new("run");
    let script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, \
                  ${MASTER_ADDR:-none} ${MASTER_PORT:+port} ${THINWIRE_TOKEN:+token}";
    let ended = folder.run(&["run", "--ranks", "3", "--", "sh", "-c", script]);
    let mut lines: Vec<&str> = ended.stderr.lines().collect();
    lines.sort_unstable();
    let expected =
        [1, 2].map(|rank| format!("[rank {rank}] {rank} of 3, {rank} of 3, 127.0.0.1 port token"));
    assert_eq!(lines, expected);
    assert_eq!(ended.done(), "0 of 3, 0 of 3, 127.0.0.1 port token\n");
}

#[test]
fn a_place_that_another_launcher_gave_is_taken() {
    let folder = Folder::new("join");
    let mut command = folder.command(&[
        "run",
        "--",
        "sh",
        "-c",
        "echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR",
    ]);
    let mpi = [("RANK", "1"), ("SIZE", "2"), ("LOCAL_RANK", "1"), ("LOCAL_SIZE", "2")];
    command.envs(mpi.map(|(name, value)| (format!("OMPI_COMM_WORLD_{name}"), value)));
    assert_eq!(support::finish(command.spawn().unwrap()).done(), "1 2 1 127.0.0.1\n");
}

/// Runs the command as a shell does whose limits on open files `ulimit` sets.
fn run_limited(folder: &Folder, ulimit: &str, arguments: &[&str]) -> support::Ended {
    let command = folder.command(arguments);
    let script = format!("{ulimit} && exec \"$0\" \"$@\"");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).arg(command.get_program()).args(command.get_args());
    shell.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    support::finish(shell.spawn().unwrap())
}

#[test]
fn a_job_gets_the_open_files_that_it_needs_or_says_how_many_these_are() {
    let folder = Folder::new("limits");
    for ranks in ["16", "2:16"] {
        let arguments = ["run", "--ranks", ranks, "--", "true"];
        let ended = run_limited(&folder, "ulimit -n 40", &arguments);
        let said = "a job of 16 ranks on this machine needs 72 open files beside the ";
        assert!(ended.error().contains(said), "{}", ended.stderr);
        assert!(ended.error().contains(", at most 40 are allowed"), "{}", ended.stderr);
        assert!(ended.hint().contains("ulimit -n"), "{}", ended.stderr);
    }
    let arguments = ["run", "--ranks", "16", "--", "sh", "-c", "ulimit -Sn"];
    let limit = run_limited(&folder, "ulimit -Sn 40", &arguments).done();
    assert!(limit.trim().parse::<u32>().unwrap() >= 72, "{limit}");
}

#[test]
fn a_rank_that_fails_is_named_and_the_others_end() {
    let folder = Folder::new("fails");
    let script = |code: &str| format!("[ $RANK = 1 ] && {code}; sleep 60");
    let ended = folder.run(&["run", "--", "sh", "-c", &script("exit 3")]);
    assert_eq!(ended.error(), "error: rank 1 exited with code 3");
    let ended = folder.run(&["run", "--", "sh", "-c", &script("kill -9 $$")]);
    assert_eq!(ended.error(), "error: rank 1 was killed by signal 9 (SIGKILL)");
    assert!(ended.hint().contains("memory"));
}

#[test]
fn help_is_data_and_a_closed_pipe_is_no_error() {
    let folder = Folder::new("help");
    assert!(folder.run(&["--help"]).done().contains("compare"));
    assert!(folder.run(&["train", "--help"]).done().contains("--codec"));
    assert_eq!(
        folder.run(&["--version"]).done(),
        format!("thinwire {}\n", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(folder.run(&[]).code, Some(2));

    let mut child =
        folder.command(&["bench", "codec", "--size", "1", "--rounds", "1"]).spawn().unwrap();
    drop(child.stdout.take());
    let ended = support::finish(child);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn benches_print_lines_of_json() {
    let folder = Folder::new("bench");
    let flags =
        ["bench", "codec", "--codecs", "int8,powersgd:2", "--size", "1", "--rounds", "1", "--json"];
    let lines = folder.run(&flags).json();
    assert!(lines.iter().all(|line| line["bytes_per_s"].as_f64().unwrap() > 0.0));
    assert!(lines.iter().any(|line| line["operation"] == "encode with residual"));

    let lines = folder.run(&["bench", "link", "--sizes", "4096", "--json"]).json();
    assert_eq!(
        lines.iter().map(|line| line["encrypted"] == true).collect::<Vec<_>>(),
        [false, true]
    );

    let flags =
        ["bench", "collective", "--sizes", "4096,65536", "--ranks", "3", "--small", "--json"];
    let lines = folder.run(&flags).json();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[1]["world"], 3);
    assert!(lines[1]["seconds_median"].as_f64().unwrap() > 0.0);
}
