//! The batch script in `deploy/slurm`: it starts killed ranks again, ends with the training, and queues a
//! job whose time is over again. Slurm's commands are scripts here.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use support::{Ended, Folder, SMALL, eventually, finish, free_port};

const SCRIPT: &str = include_str!("../../../deploy/slurm/train.sbatch");

/// Starts two tasks, each in a process group of its own.
const SRUN: &str = r#"#!/bin/bash
set -m
while [[ $1 == --* ]]; do shift; done
for _ in 1 2; do "$@" & tasks+=($!); done
echo "${tasks[@]}" > tasks
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit "${code:-0}"
"#;

/// Kills the first rank before it does anything.
const THINWIRE: &str = r#"#!/bin/bash
[[ $1 == train ]] && mkdir killed 2>/dev/null && kill -9 $$
exec "$PROGRAM" "$@"
"#;

const SCONTROL: &str = "#!/bin/bash\necho \"$@\" > scontrol\n";
const HOSTNAME: &str = "#!/bin/bash\necho 127.0.0.1\n";

/// Writes a program into the folder's `bin`.
fn program(folder: &Folder, name: &str, text: &str) {
    let path = folder.path().join("bin").join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Starts the script, with a model that trains in milliseconds.
fn submit(folder: &Folder, job: u16, steps: u32) -> Child {
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    let programs =
        [("srun", SRUN), ("thinwire", THINWIRE), ("scontrol", SCONTROL), ("hostname", HOSTNAME)];
    programs.iter().for_each(|(name, text)| program(folder, name, text));
    let small = SMALL.join(" ");
    let given = format!("--steps={steps} --validation-batches=0 --sample-bytes=0 {small}");
    let text = SCRIPT.replace("--steps=10000", &given).replace("every=500", "every=10");
    assert_ne!(text, SCRIPT);
    let path = std::env::var("PATH").unwrap();
    let mut script = Command::new("bash");
    script.args(["-c", &text]).current_dir(folder.path());
    script.env("PATH", format!("{}:{path}", folder.path().join("bin").display()));
    script.env("PROGRAM", env!("CARGO_BIN_EXE_thinwire")).env("SLURM_JOB_ID", job.to_string());
    script.env("SLURM_NTASKS", "2").env("SLURM_CPUS_PER_TASK", "1");
    script.env("THINWIRE_HEARTBEAT_TIMEOUT_S", "10").stdin(Stdio::null());
    script.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A job whose coordinator's port is free.
fn job() -> u16 {
    let ports = std::iter::repeat_with(free_port);
    ports.filter_map(|port| port.checked_sub(20_000)).next().unwrap()
}

fn succeeded(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn a_killed_rank_is_started_again_and_the_job_ends_with_the_training() {
    let (folder, job) = (Folder::new("slurm-done"), job());
    let ended = finish(submit(&folder, job, 20));
    succeeded(&ended);
    let exists = |name: &str| folder.path().join(name).exists();
    assert!(ended.stderr.contains("all steps are done"), "{}", ended.stderr);
    assert!(exists("killed") && exists("checkpoints/step-000020") && exists("report.html"));
    assert!(!exists("scontrol") && !exists(&format!("thinwire-{job}.state")));
}

#[test]
fn a_job_whose_ranks_left_is_queued_again() {
    let (folder, job) = (Folder::new("slurm-left"), job());
    let script = submit(&folder, job, 1_000_000);
    program(&folder, "sleep", "#!/bin/bash\n");
    let names =
        || std::fs::read_dir(folder.path().join("checkpoints")).into_iter().flatten().flatten();
    let has_checkpoint =
        || names().any(|each| each.file_name().to_string_lossy().starts_with("step-"));
    eventually(|| has_checkpoint().then_some(()));
    let tasks = std::fs::read_to_string(folder.path().join("tasks")).unwrap();
    let groups = tasks.split_whitespace().map(|task| format!("-{task}"));
    assert!(
        Command::new("kill").args(["-s", "TERM", "--"]).args(groups).status().unwrap().success()
    );
    let ended = finish(script);
    succeeded(&ended);
    let asked = std::fs::read_to_string(folder.path().join("scontrol")).unwrap();
    assert_eq!(asked, format!("requeue {job}\n"));
    assert!(folder.path().join(format!("thinwire-{job}.state")).exists());
}
