//! The laws of synchronisation, with made-up gradients over links in memory.

use std::collections::BTreeMap;

use thinwire_codec::Choice;
use thinwire_link::mem;
use thinwire_sync::{Error, Options, Outcome, Parameter, Policy, State, Synchronizer};
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::random::Key;

const CODECS: [&str; 8] =
    ["none", "f16", "bf16", "int8", "int8:stochastic", "int4", "topk:0.05", "powersgd:2"];

fn parameters() -> Vec<Parameter> {
    vec![
        Parameter::new("head.weight", &[96, 70]),
        Parameter::new("head.bias", &[96]),
        Parameter::new("hidden.weight", &[70, 33]),
        Parameter::new("thin.weight", &[3, 2]),
        Parameter::new("hidden.bias", &[70]),
        Parameter::new("input.weight", &[33, 130]),
    ]
}

fn options(policy: &str) -> Options {
    Options { policy: policy.parse().unwrap(), bucket_bytes: 12_000, seed: 7, ..Options::default() }
}

fn gradient(rank: u32, step: u64, parameter: usize, elements: usize) -> Vec<f32> {
    let key = Key { seed: 100 + u64::from(rank), step, tensor: parameter as u32 };
    (0..elements as u64)
        .map(|i| key.normal(i) * if i.is_multiple_of(50) { 3.0 } else { 0.1 })
        .collect()
}

/// Runs `body` on every rank of a world in memory; the results in rank order.
fn spawn<T: Send>(size: usize, policy: &str, body: impl Fn(Synchronizer) -> T + Sync) -> Vec<T> {
    testkit::spawn(Network::Mem, size, |link| {
        body(Synchronizer::start(link, parameters(), options(policy)).unwrap())
    })
}

fn give(sync: &mut Synchronizer, step: u64, spoil: bool) -> Outcome {
    let rank = sync.world().rank().0;
    sync.begin(step);
    for (index, parameter) in parameters().iter().enumerate() {
        let mut gradient = gradient(rank, step, index, parameter.elements());
        if spoil && rank == 1 && index == 2 {
            gradient[17] = f32::NAN;
        }
        sync.ready(index, &gradient).unwrap();
    }
    sync.finish().unwrap()
}

fn averages(sync: &Synchronizer) -> Vec<Vec<f32>> {
    (0..parameters().len()).map(|index| sync.gradient(index).to_vec()).collect()
}

/// Residuals by parameter; zero where there is none.
fn residuals(state: &State) -> Vec<Vec<f32>> {
    let of = |parameter: &Parameter| {
        let found = state.tensors.get(&format!("residual.{}", parameter.name));
        found.map_or_else(|| vec![0.0; parameter.elements()], |(_, values)| values.clone())
    };
    parameters().iter().map(of).collect()
}

#[test]
fn nothing_is_lost_and_all_ranks_agree_with_every_codec() {
    for codec in CODECS {
        for size in [1, 2, 3] {
            let ranks = spawn(size, codec, |mut sync| {
                let mut history = Vec::new();
                for step in 0..5 {
                    assert_eq!(give(&mut sync, step, false), Outcome::Averaged);
                    history.push(averages(&sync));
                }
                (history, residuals(&sync.state()))
            });
            for (history, _) in &ranks {
                assert_eq!(*history, ranks[0].0, "{codec}: all ranks hold the same bits");
            }
            // Without feedback what rounding loses is gone; with it nothing is.
            let tolerance = match codec {
                "none" => 1e-5,
                "f16" | "bf16" => 0.1,
                "int8:stochastic" => 0.8,
                _ => 2e-4,
            };
            for (index, parameter) in parameters().iter().enumerate() {
                for element in 0..parameter.elements() {
                    let given: f64 = (0..size as u32)
                        .flat_map(|rank| (0..5).map(move |step| (rank, step)))
                        .map(|(rank, step)| f64::from(gradient_at(rank, step, index, element)))
                        .sum::<f64>()
                        / size as f64;
                    let got: f64 =
                        ranks[0].0.iter().map(|step| f64::from(step[index][element])).sum();
                    let kept: f64 =
                        ranks.iter().map(|(_, kept)| f64::from(kept[index][element])).sum();
                    let error = (got + kept - given).abs();
                    assert!(
                        error < tolerance,
                        "{codec}, {size} ranks, {} [{element}]: {got} + {kept} != {given}",
                        parameter.name
                    );
                }
            }
        }
    }
}

fn gradient_at(rank: u32, step: u64, parameter: usize, element: usize) -> f32 {
    let key = Key { seed: 100 + u64::from(rank), step, tensor: parameter as u32 };
    key.normal(element as u64) * if element.is_multiple_of(50) { 3.0 } else { 0.1 }
}

#[test]
fn vectors_travel_uncompressed() {
    for codec in ["int4", "topk:0.05", "powersgd:2"] {
        let ranks = spawn(2, codec, |mut sync| {
            let _ = give(&mut sync, 0, false);
            averages(&sync)
        });
        for (index, parameter) in parameters().iter().enumerate().filter(|(_, p)| p.is_exempt()) {
            for (element, found) in ranks[0][index].iter().enumerate() {
                let expected =
                    (0..2).map(|rank| gradient_at(rank, 0, index, element) * 0.5).sum::<f32>();
                assert_eq!(*found, expected, "{codec} {}", parameter.name);
            }
        }
    }
}

#[test]
fn a_step_with_a_nan_is_skipped_by_all_and_changes_nothing() {
    for codec in CODECS {
        let ranks = spawn(3, codec, |mut sync| {
            assert_eq!(give(&mut sync, 0, false), Outcome::Averaged);
            let before = sync.state();
            assert_eq!(give(&mut sync, 1, true), Outcome::Skipped, "{codec}");
            assert_eq!(sync.state(), before, "{codec}: a skipped step leaves no trace");
            assert_eq!(give(&mut sync, 2, false), Outcome::Averaged);
            averages(&sync)
        });
        let spared = spawn(3, codec, |mut sync| {
            let _ = give(&mut sync, 0, false);
            let _ = give(&mut sync, 2, false);
            averages(&sync)
        });
        assert_eq!(ranks, spared, "{codec}");
    }
}

#[test]
fn a_restart_from_state_continues_bit_for_bit() {
    for codec in CODECS {
        let whole = spawn(2, codec, |mut sync| {
            (0..6).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
            averages(&sync)
        });
        let states: BTreeMap<u32, State> = spawn(2, codec, |mut sync| {
            (0..3).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
            (sync.world().rank().0, sync.state())
        })
        .into_iter()
        .collect();
        let resumed = spawn(2, codec, |mut sync| {
            sync.load(&states[&sync.world().rank().0]).unwrap();
            (3..6).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
            averages(&sync)
        });
        assert_eq!(whole, resumed, "{codec}");
    }
}

#[test]
fn auto_plans_runs_and_agrees() {
    let ranks = spawn(2, "auto", |mut sync| {
        for step in 0..6 {
            assert_eq!(give(&mut sync, step, false), Outcome::Averaged);
        }
        (averages(&sync), sync.plan().clone())
    });
    assert_eq!(ranks[0], ranks[1]);
    assert!(ranks[0].1.iteration_s > 0.0);
}

#[test]
fn the_record_accounts_for_bytes_and_time() {
    let records = spawn(2, "int8", |mut sync| {
        let _ = give(&mut sync, 0, false);
        sync.record().clone()
    });
    for record in records {
        let raw: u64 = record.total(|bucket| bucket.raw_bytes);
        let sent: u64 = record.total(|bucket| bucket.sent_bytes);
        assert!(sent * 3 < raw, "{sent} of {raw}");
        assert_eq!(sent, record.total(|bucket| bucket.received_bytes), "two ranks are symmetric");
        assert!(record.buckets.iter().all(|bucket| bucket.done_s >= bucket.ready_s));
        assert!((0.0..=1.0).contains(&record.overlap));
    }
}

#[test]
fn ranks_that_disagree_are_told_what_about() {
    let errors: Vec<Error> = testkit::spawn(Network::Mem, 2, |link| {
        let codec = ["int8", "int4"][link.world().rank().index()];
        Synchronizer::start(link, parameters(), options(codec)).unwrap_err()
    });
    let text = errors[0].to_string();
    assert_eq!(text, "ranks disagree on codec: this rank has int8, rank 1 has int4");
    assert!(errors[1].to_string().contains("this rank has int4, rank 0 has int8"));
}

#[test]
fn facts_of_the_trainer_are_compared_too() {
    let errors = spawn(2, "none", |sync| {
        let data = format!("{} bytes", 100 + sync.world().rank().0);
        sync.agree(&[("model".to_owned(), "gpt".to_owned())]).unwrap();
        sync.agree(&[("data".to_owned(), data)]).unwrap_err().to_string()
    });
    assert_eq!(errors[0], "ranks disagree on data: this rank has 100 bytes, rank 1 has 101 bytes");
}

#[test]
fn mistakes_are_refused_in_one_line() {
    let link = || Box::new(mem::alone());
    let mut sync = Synchronizer::start(link(), parameters(), options("none")).unwrap();
    sync.begin(0);
    let error = sync.ready(0, &[1.0]).unwrap_err().to_string();
    assert_eq!(error, "gradient of head.weight has 1 elements, expected 6720");
    sync.ready(1, &[0.0; 96]).unwrap();
    let error = sync.ready(1, &[0.0; 96]).unwrap_err().to_string();
    assert_eq!(error, "gradient of head.bias was given twice in step 0");
    let error = sync.finish().unwrap_err().to_string();
    assert_eq!(error, "no gradient of head.weight in step 0");
    let policy = Policy::Fixed(Choice::parse("int8").unwrap());
    let wrong = Options { policy, algorithm: Some("ring".parse().unwrap()), ..Options::default() };
    let error = Synchronizer::start(link(), parameters(), wrong).unwrap_err().to_string();
    assert!(error.starts_with("codec int8 travels by two-shot, not by ring"), "{error}");
}

#[test]
fn residuals_need_no_more_memory_than_the_gradients() {
    let elements: usize = parameters().iter().map(Parameter::elements).sum();
    for (codec, times) in
        [("none", 0), ("f16", 0), ("int8", 1), ("topk:0.05", 1), ("powersgd:2", 1)]
    {
        let bytes = spawn(2, codec, |mut sync| {
            let _ = give(&mut sync, 0, false);
            sync.state_bytes()
        });
        assert!(bytes[0] <= times * elements * 4, "{codec}: {} bytes", bytes[0]);
    }
}
