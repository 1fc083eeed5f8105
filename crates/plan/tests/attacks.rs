//! Malicious files: each is refused with a one-line reason, before memory or time is spent on it.

use std::fmt::Display;

use thinwire_plan::Cluster;
use thinwire_plan::report::PlanFile;

const CLUSTER: &str = include_str!("../../../fuzz/seeds/cluster/links");
const LEVELS: &str = include_str!("../../../fuzz/seeds/cluster/kinds");
const PLAN: &str = include_str!("../../../fuzz/seeds/plan/rich");
/// Deeper than any stack of a parser that calls itself for every bracket.
const DEEP: usize = 20_000;

/// A refusal of one line, not much longer than what it quotes.
fn line<T: std::fmt::Debug>(outcome: Result<T, impl Display>) -> String {
    let line = outcome.expect_err("it was not refused").to_string();
    assert!(!line.contains('\n') && line.len() < 1000, "{line}");
    line
}

fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

/// Texts that no reader of TOML takes, whatever they are read as.
fn no_toml() -> Vec<String> {
    vec![
        format!("a = {}", "[".repeat(DEEP)),
        format!("a = {}", "{b=".repeat(DEEP)),
        format!("a{} = 1", ".a".repeat(DEEP)),
        format!("[a{}]", ".a".repeat(DEEP)),
        "a = 1\na = 2\n".to_owned(),
        "\u{0}".to_owned(),
        "x".repeat(DEEP),
        String::new(),
    ]
}

#[test]
fn what_is_deep_or_twice_or_nothing_is_refused() {
    for text in no_toml() {
        line(Cluster::parse(&text));
        line(PlanFile::parse(&text));
    }
}

#[test]
fn clusters_of_too_much_are_refused() {
    for (from, to, expected) in [
        ("size = 8", "size = 9223372036854775807", "level 'node': size 9223372036854775807 makes"),
        ("size = 8", "size = -1", "line 17: invalid value"),
        ("size = 2", "size = 1048576", "level 'pod': size 1048576 makes 8388608 devices"),
        ("gbit = 800", "gbit = inf", "level 'pod': gbit is inf"),
        ("gbit = 800", "gbit = nan", "level 'pod': gbit is NaN"),
        ("tflops = 312", "tflops = 1e308", "device 'a': tflops is 1e308"),
        ("tflops = 312", "tflops = -0.0", "device 'a': tflops is -0"),
        ("name = \"b\"", "name = \"a\"", "device 'a' appears twice"),
        ("kinds = [\"a\", \"b\"]", "kinds = []", "2 kinds of devices"),
        ("[\"a\", \"b\"]", "[\"a\", \"a\", \"a\"]", "kinds names 3 units"),
    ] {
        let found = line(Cluster::parse(&changed(LEVELS, from, to)));
        assert!(found.starts_with(expected), "{found}");
    }
    for (from, to, expected) in [
        ("[80, -1, 2]", "[80, -1]", "level 'node': row 2 of gbit_matrix has 2 numbers"),
        ("[4, 5, 6]", "[4, nan, 6]", "level 'node': gbit_matrix from 3 to 2 is NaN"),
        ("size = 3", "size = 1025", "level 'node': a matrix of 1025 members"),
        ("attention = 0.5", "attention = 0", "device 'a100': operators.attention is 0"),
        ("[10, 0.6]", "[inf, 0.6]", "device 'a100': efficiency's gflop is inf"),
    ] {
        let found = line(Cluster::parse(&changed(CLUSTER, from, to)));
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn plans_of_too_much_are_refused() {
    const MOST: &str = "9223372036854775807";
    for (from, to, expected) in [
        ("version = 2", "version = 3", "a plan of version 3"),
        ("version = 2", "version = \"2\"", "a plan of version \"2\""),
        ("batch = 16", "batch = 0", "batch of 0"),
        ("micro_batches = 4", "micro_batches = 0", "0 micro-batches"),
        ("micro_batches = 4", &format!("micro_batches = {MOST}"), "9223372036854775807 micro-"),
        ("mesh = [2]", &format!("mesh = [2, {MOST}]"), "2 stages of mesh [2, 92233720368547758"),
        ("mesh = [2]", "mesh = [2, -1]", "line 7: invalid value"),
        ("shares = [3, 5]", &format!("shares = [{MOST}, {MOST}]"), "shares are ["),
        ("shares = [3, 5]", "shares = [8, 0]", "shares are [8, 0]"),
        ("[3, 1, 2, 0]", "[3, 1, 2, 3]", "devices names 3 devices in 4 places"),
        ("step_s = 0.5", "step_s = nan", "step_s is NaN"),
        ("bound_s = 0.25", "bound_s = -1.0", "bound_s is -1"),
        ("bound_s = 0.25", "bound_s = inf", "bound_s is inf"),
        ("chunks = 2", "chunks = 0", "schedule has 0 chunks a stage"),
        ("chunks = 2", &format!("chunks = {MOST}"), "schedule has 9223372036854775807 chunks"),
        ("within = 2\nparameters", "within = 0\nparameters", "codec 'int8' is not used within 0"),
        ("\"block.1.mlp.up.weight\"", "\"block.0.mlp.up.weight\"", "parameter 'block.0.mlp.up"),
        ("blocks = [\"head\"]", "blocks = [\"head\", \"head\"]", "block 'head' appears twice"),
        ("recompute = false", "recompute = false\nrecompute = false", "line 9: duplicate key"),
        ("memory_bytes = 64624", "memory_bytes = -1", "line 23: invalid value"),
    ] {
        let found = line(PlanFile::parse(&changed(PLAN, from, to)));
        assert!(found.starts_with(expected), "{found}");
    }
}
