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
        let said = "a job of 16 ranks on this machine needs 72 open files in addition to the ";
        assert!(ended.error().contains(said), "{}", ended.stderr);
        assert!(ended.error().contains(", but at most 40 are allowed"), "{}", ended.stderr);
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
    let version = format!("thinwire {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(folder.run(&["-V"]).done(), format!("{version}\n"));
    let long = folder.run(&["--version"]).done();
    assert!(long.starts_with(&format!("{version} (")) && long.contains("features"), "{long}");
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

#[test]
fn former_names_of_flags_are_taken_with_a_warning() {
    let folder = Folder::new("renamed");
    let flags = ["--steps", "1", "--codec", "topk:0.1", "--warmup=1", "--warmup-steps", "0"];
    let ended = folder.train(&flags);
    let warnings: Vec<_> =
        ended.stderr.lines().filter(|line| line.contains("warning: --")).collect();
    let of = |before: &str, now: &str| {
        format!("warning: --{before} is now called --{now}; the next version has only --{now}")
    };
    let expected = [of("warmup", "lr-warmup-steps"), of("warmup-steps", "codec-warmup-steps")];
    assert_eq!(warnings, expected, "{}", ended.stderr);
    ended.done();
    // Another program's flags are its own.
    let other = folder.run(&["run", "--ranks", "1", "--", "echo", "--warmup", "1"]);
    assert_eq!((&other.stdout[..], &other.stderr[..]), ("--warmup 1\n", ""));
}

#[test]
fn a_file_has_flags_and_those_that_are_typed_win() {
    let folder = Folder::new("config");
    let write = |text: &str| std::fs::write(folder.path().join("job.toml"), text).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    write(
        "# A job.\nsteps = 9\nlr = 0.01\ncodec = \"int8\"\nranks = 1\njson = true\nunchecked = false\n\
         policy = [\"noise-scale:max=8\"]\n",
    );
    let flags = ["--config", "job.toml", "--steps=2", "--save-config", "saved.toml"];
    let ended = folder.train(&flags);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let ran = &ended.json()[0];
    assert_eq!((&ran["steps"], &ran["codec"]), (&2.into(), &"int8".into()), "{ran}");
    let saved = read("saved.toml");
    for line in [
        "steps = 2",
        "lr = 0.01",
        "codec = \"int8\"",
        "json = true",
        "batch = 4",
        "policy = [\"noise-scale:max=8\"]",
    ] {
        assert!(saved.lines().any(|it| it == line), "{line}: {saved}");
    }
    let kept = |name: &str| saved.lines().any(|line| line.starts_with(name));
    assert!(!kept("config") && !kept("save-config") && !kept("unchecked"), "{saved}");
    // What is saved is the same job.
    let flags = ["train", "--config=saved.toml", "--save-config", "again.toml"];
    assert_eq!(folder.run(&flags).code, Some(0));
    assert_eq!(read("again.toml"), saved);
    write("steps = 1\nranks = 1\nquiet = true");
    assert_eq!(folder.train(&["--config", "job.toml", "-q"]).code, Some(0));

    for (text, error, hint) in [
        ("\nstepps = 2", "job.toml, line 2: unknown flag 'stepps'", "the nearest one is steps"),
        ("config = \"x\"", "job.toml, line 1: unknown flag 'config'", "its keys are flags"),
        (
            "steps = [1]",
            "job.toml, line 1: steps is of type array, expected a text or a number",
            "",
        ),
        ("json = 1", "job.toml, line 1: json is of type integer, expected true or false", ""),
        ("steps = ", "job.toml, line 1: ", ""),
        ("steps = 0", "invalid value '0' for '--steps <N>'", ""),
    ] {
        write(text);
        let ended = folder.train(&["--config", "job.toml"]);
        assert!(ended.error().starts_with(&format!("error: {error}")), "{}", ended.error());
        assert!(ended.hint().contains(hint), "{}", ended.hint());
    }
    let ended = folder.train(&["--config", "gone.toml"]);
    assert!(ended.error().starts_with("error: cannot read gone.toml"), "{}", ended.error());
}

#[test]
fn manual_pages_are_of_all_commands() {
    let folder = Folder::new("man");
    folder.run(&["man", "--out", "pages"]).done();
    let read =
        |name: &str| std::fs::read_to_string(folder.path().join("pages").join(name)).unwrap();
    assert!(read("thinwire-plan-make.1").contains("error\\-budget"));
    assert_eq!(read("thinwire-train.1"), folder.run(&["man", "train"]).done());
    let pages = std::fs::read_dir(folder.path().join("pages")).unwrap();
    let names = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| name.starts_with("thinwire") && !name.contains("rank")));
    assert_eq!(folder.run(&["man", "tarin"]).error(), "error: no command 'tarin'");
}

#[test]
fn doctor_tells_what_would_keep_a_job_from_starting() {
    let folder = Folder::new("doctor");
    let told = folder.run(&["doctor", "--json"]).json();
    let found = |check: &str| {
        let found = told.iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("no {check} in {told:?}"))
    };
    for check in [
        "cores",
        "memory",
        "open files",
        "loopback",
        "thinwire",
        "python",
        "cuda",
        "place",
        "token",
        "port",
        "choice",
    ] {
        assert_ne!(found(check)["severity"], "error", "{}", found(check));
    }
    let refused = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = folder.command(&[&["doctor"], words].concat());
        let ended = support::finish(command.envs(variables.iter().copied()).spawn().unwrap());
        assert_eq!(ended.code, Some(1), "{}", ended.stdout);
        let line = ended.stdout.lines().find(|line| line.starts_with("ERROR")).unwrap().to_owned();
        assert!(line.contains("; hint: "), "{line}");
        line
    };
    let two = ["--rank", "1", "--world", "2", "--coordinator"];
    let hosts = [&two[..], &["10.255.255.1:29417"]].concat();
    assert!(refused(&hosts, &[]).contains("no token for a job that meets at 10.255.255.1:29417"));
    let here = [&["doctor"], &two[..], &["127.0.0.1:29417"]].concat();
    let told = folder.run(&here).stdout;
    let other = "thinwire bench link --rank 1 --world 2 --coordinator 127.0.0.1:29417, and";
    assert!(
        told.lines().any(|line| line.starts_with("note   link") && line.contains(other)),
        "{told}"
    );
    let unknown = [&two[..], &["nowhere.invalid:29417", "--token", "0123456789abcdef"]].concat();
    assert!(refused(&unknown, &[]).contains("'nowhere.invalid:29417' is no known address"));
    assert!(refused(&[], &[("THINWIRE_PORT", "x")]).contains("THINWIRE_PORT"));
    assert!(refused(&["--rank", "1"], &[]).contains("--world"));
    // Each variable that some command refuses has a line of its own.
    let mut command = folder.command(&["doctor", "--rank", "1"]);
    let names =
        ["THINWIRE_MEMBER", "THINWIRE_LEASE_S", "THINWIRE_METRICS", "THINWIRE_SHARED_MEMORY"];
    let ended = support::finish(command.envs(names.map(|name| (name, "x"))).spawn().unwrap());
    for name in names {
        let is_told =
            |line: &str| line.starts_with("ERROR") && line.contains(&format!("{name} is"));
        assert_eq!(ended.stdout.lines().filter(|it| is_told(it)).count(), 1, "{}", ended.stdout);
    }
}

#[test]
fn quiet_commands_say_warnings_only_and_verbose_ones_every_step() {
    let folder = Folder::new("talk");
    let flags = ["--steps", "12", "--codec", "none", "--checkpoint-dir", "none"];
    let train = |more: &[&str]| folder.train(&[&flags[..], more].concat());
    let quiet = train(&["--quiet", "--warmup", "1"]);
    assert_eq!(quiet.stderr.lines().count(), 1, "{}", quiet.stderr);
    assert!(quiet.stderr.starts_with("warning: ") && quiet.stdout.contains("training loss"));
    let verbose = train(&["-v"]);
    let steps = verbose.stderr.lines().filter(|line| line.starts_with("step ")).count();
    assert_eq!(steps, 12, "{}", verbose.stderr);
    let told = folder.run(&["run", "-v", "--", "true"]);
    assert!(told.stderr.contains("rank 1 is process "), "{}", told.stderr);
    let failed = folder.run(&["run", "-q", "--", "false"]);
    assert!(failed.error().contains("exited with code 1"));
}
