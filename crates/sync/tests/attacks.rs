//! Malicious states: each is refused in one line, and the rank can load another.

use serde_json::{Value, json};
use thinwire_link::mem;
use thinwire_sync::{Options, Parameter, State, Synchronizer};

fn start() -> Synchronizer {
    let link = mem::mesh(1).pop().unwrap();
    let parameters = vec![Parameter::new("weight", &[96, 70]), Parameter::new("bias", &[96])];
    let options = Options { policy: "auto".parse().unwrap(), ..Options::default() };
    Synchronizer::start(link, parameters, options).unwrap()
}

#[test]
fn plans_that_cannot_be_are_refused() {
    let mut sync = start();
    let sound = sync.state();
    let mut refusal = |field: &str, value: Value| {
        let mut plan: Value = serde_json::from_str(&sound.plan).unwrap();
        plan["assignments"][0][field] = value;
        plan["asked"] = json!("");
        let state = State { plan: plan.to_string(), ..sound.clone() };
        let line = sync.load(&state).expect_err("it was not refused").to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    };
    for (field, value, expected) in [
        ("partitions", json!(0), "0 partitions, expected 1 to 65536"),
        ("partitions", json!(u64::MAX), "18446744073709551615 partitions, expected 1 to 65536"),
        ("partitions", json!(-1), "cannot read the plan in the checkpoint: invalid value"),
        ("partitions", json!(0.5), "cannot read the plan in the checkpoint: invalid type"),
        ("algorithm", json!("star"), "unknown algorithm 'star'"),
        ("codec", json!("zip"), "unknown codec 'zip'"),
        ("codec", json!(null), "cannot read the plan in the checkpoint: invalid type"),
    ] {
        let found = refusal(field, value);
        assert!(found.contains(expected), "{found}");
    }
    for plan in ["[".repeat(100_000), String::new()] {
        assert!(sync.load(&State { plan, ..State::default() }).is_err());
    }
    sync.load(&sound).unwrap();
}

#[test]
fn algorithms_that_cannot_carry_a_codec_are_refused() {
    let mut sync = start();
    let sound = sync.state();
    let mut plan: Value = serde_json::from_str(&sound.plan).unwrap();
    for assignment in plan["assignments"].as_array_mut().unwrap() {
        *assignment = json!({ "codec": "topk:0.01", "algorithm": "ring", "partitions": 1 });
    }
    plan["asked"] = json!("");
    let error = sync.load(&State { plan: plan.to_string(), ..sound }).unwrap_err().to_string();
    assert!(error.ends_with("algorithm ring cannot send codec topk:0.01"), "{error}");
}
