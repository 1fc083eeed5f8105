//! The laws of low rank: factors are alike on all ranks, and what is sent of them.

mod made;

use thinwire_sync::{Options, Outcome, Parameter, Synchronizer};
use thinwire_wire::random::Key;

fn parameters() -> Vec<Parameter> {
    vec![
        Parameter::new("head.weight", &[96, 70]),
        Parameter::new("head.bias", &[96]),
        Parameter::new("hidden.weight", &[70, 33]),
        Parameter::new("thin.weight", &[3, 2]),
        Parameter::new("input.weight", &[33, 130]),
    ]
}

/// Runs `body` on every rank of a world in memory; the results in rank order.
fn spawn<T: Send>(size: usize, codec: &str, body: impl Fn(Synchronizer) -> T + Sync) -> Vec<T> {
    let options = Options { seed: 0, ..made::options(codec) };
    made::spawn_with(size, &parameters(), &options, body)
}

fn give(sync: &mut Synchronizer, step: u64) {
    let rank = u64::from(sync.world().rank().0);
    sync.begin(step).unwrap();
    for (index, parameter) in parameters().iter().enumerate() {
        let key = Key { seed: 100 + rank, step, tensor: index as u32 };
        let gradient: Vec<f32> = (0..parameter.elements() as u64).map(|i| key.normal(i)).collect();
        sync.ready(index, &gradient).unwrap();
    }
    assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
}

#[test]
fn factors_follow_the_gradients_alike_on_all_ranks() {
    let factors = |sync: &Synchronizer| {
        let mut tensors = sync.state().tensors;
        tensors.retain(|name, _| name.starts_with("factor."));
        tensors
    };
    for codec in ["powersgd:2", "powersgd:2:alternate"] {
        let ranks = spawn(3, codec, |mut sync| {
            let begin = factors(&sync);
            give(&mut sync, 0);
            let end = factors(&sync);
            assert_eq!(end.len(), 3, "the thin matrix and the vectors have none");
            assert!(end.iter().all(|(name, factor)| *factor != begin[name]));
            end
        });
        assert!(ranks.iter().all(|factors| *factors == ranks[0]), "{codec}");
    }
}

#[test]
fn factors_that_take_turns_send_one_of_them() {
    let payloads = |codec: &str| {
        let of_step = |sync: &mut Synchronizer, step| {
            give(sync, step);
            let head = &sync.record().buckets[0];
            assert_eq!((head.name.as_str(), head.codec.as_str()), ("head.weight", codec));
            head.sent_bytes
        };
        spawn(2, codec, |mut sync| [0, 1, 2].map(|step| of_step(&mut sync, step)))[0]
    };
    // A ring of two sends as many bytes as a message has, in two frames with a header of 40 bytes
    // each: 2 vectors of 96 rows, then 2 of 70 columns.
    const FRAMES: u64 = 80;
    let [rows, columns] = [96, 70].map(|length| 4 * 2 * length + FRAMES);
    assert_eq!(payloads("powersgd:2:alternate"), [rows, columns, rows]);
    assert_eq!(payloads("powersgd:2"), [rows + columns; 3]);
}
