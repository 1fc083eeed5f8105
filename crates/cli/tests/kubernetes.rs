//! Objects for Kubernetes in `deploy/`: flags that exist, and a command that tells ranks that left from
//! those that are done.

mod support;

use std::process::{Command, Stdio};

use support::{Folder, eventually, finish, signal};

const FILES: [&str; 3] = ["coordinator.yaml", "ranks.yaml", "trainer.yaml"];

fn text(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/");
    std::fs::read_to_string(format!("{folder}{name}")).unwrap()
}

#[test]
fn flags_of_commands_exist() {
    let folder = Folder::new("kubernetes-flags");
    for name in FILES {
        let text = text(name);
        let words = text.lines().filter_map(|line| line.trim().strip_prefix("- "));
        let words: Vec<&str> = words.collect();
        let commands = words.split(|word| *word == "thinwire").skip(1);
        let commands: Vec<_> = commands.filter_map(|words| words.split_first()).collect();
        assert!(!commands.is_empty(), "{name}");
        for (command, words) in commands {
            let help = folder.run(&[command, "--help"]).done();
            for flag in words.iter().filter(|word| word.starts_with("--")) {
                let (flag, value) =
                    flag.split_once('=').map_or((*flag, None), |(flag, _)| (flag, Some('<')));
                let mut lines = help.lines().filter_map(|line| line.trim().strip_prefix(flag));
                let is_it =
                    |rest: &str| rest.trim().chars().next() == value && !rest.starts_with('-');
                assert!(lines.any(is_it), "{name}: {command} {flag}");
            }
        }
    }
}

/// The script of a rank's pod.
fn script() -> String {
    let text = text("ranks.yaml");
    let (_, rest) = text.split_once("            - |\n").unwrap();
    let lines = rest.lines().take_while(|line| line.starts_with("              "));
    lines.map(|line| format!("{}\n", line.trim())).collect()
}

/// Whether a pod gets SIGTERM.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Term {
    None,
    Sent,
}

/// The exit code of a pod whose rank is a script, after SIGTERM once the rank is ready, or without it.
fn code(name: &str, rank: &str, term: Term) -> Option<i32> {
    let folder = Folder::new(name);
    let mut pod = Command::new("sh");
    pod.args(["-c", &script(), "rank", "sh", "-c", rank]).current_dir(folder.path());
    let pod = pod.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let pod = pod.unwrap();
    if term == Term::Sent {
        eventually(|| folder.path().join("ready").exists().then_some(()));
        signal(pod.id(), "TERM");
    }
    finish(pod).code
}

#[test]
fn a_rank_that_left_by_sigterm_is_not_done() {
    let leaves = "trap 'touch left; exit 0' TERM; touch ready; while true; do sleep 0.02; done";
    assert_eq!(code("kubernetes-left", leaves, Term::Sent), Some(143));
    assert_eq!(code("kubernetes-done", "exit 0", Term::None), Some(0));
    assert_eq!(code("kubernetes-failed", "exit 2", Term::None), Some(2));
    assert_eq!(code("kubernetes-killed", "kill -9 $$", Term::None), Some(137));
}
