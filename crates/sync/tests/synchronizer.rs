//! The laws of synchronisation, with made-up gradients over links in memory.

mod made;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use half::{bf16, f16, prelude::*};
use made::{averages, give, gradient, options, parameters, spawn, spawn_with};
use thinwire_codec::Choice;
use thinwire_link::mem;
use thinwire_sync::{
    Error, ExternalBuffer, Gradient, Options, Outcome, Parameter, Policy, State, Synchronizer,
};
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::DType;
use thinwire_wire::random::Key;

const CODECS: [&str; 27] = [
    "none",
    "f16",
    "bf16",
    "int8",
    "int8:stochastic",
    "int4",
    "int3",
    "topk:0.05",
    "powersgd:2",
    "powersgd:2:alternate",
    "int2",
    "onebit",
    "terngrad:2.5",
    "e4m3",
    "dynamic8",
    "tbq:0.05",
    "blocktopk:64/1024:lloyd:2",
    "blocktopk:1/16:ecsq:0.5",
    "dgc:0.05",
    "randomk:0.25",
    "dct:512",
    "ecsq:0.5",
    "lossless",
    "lossless:bf16",
    "intsgd",
    "intsgd:16",
    "head.*=powersgd:2,thin.*=none,*.weight=int4,*=int8",
];

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
                "f16" | "bf16" | "lossless:bf16" => 0.1,
                "int8:stochastic" => 0.8,
                "intsgd" => 3.0,
                "intsgd:16" => 0.2,
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
fn random_elements_are_those_of_all_ranks() {
    for size in [2, 3, 4] {
        let ranks = spawn(size, "randomk:0.25", |mut sync| {
            let _ = give(&mut sync, 0, false);
            averages(&sync)
        });
        for (index, parameter) in parameters().iter().enumerate().filter(|(_, p)| !p.is_exempt()) {
            let found = &ranks[0][index];
            let sent = found.iter().filter(|x| **x != 0.0).count();
            let expected = parameter.elements() as f64 / 4.0;
            assert!((sent as f64 - expected).abs() < 0.1 * expected + 5.0, "{}", parameter.name);
            for (element, found) in found.iter().enumerate().filter(|(_, x)| **x != 0.0) {
                let all = (0..size as u32).map(|rank| gradient_at(rank, 0, index, element));
                let mean = all.sum::<f32>() / size as f32;
                assert!(
                    (found - mean).abs() < 1e-5,
                    "{} {element}: {found} {mean}",
                    parameter.name
                );
            }
        }
    }
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
fn a_step_that_began_earlier_has_computed_since() {
    let before = Duration::from_secs(3);
    for record in spawn(2, "none", |mut sync| {
        sync.begin_since(0, Instant::now().checked_sub(before).unwrap()).unwrap();
        for (index, parameter) in parameters().iter().enumerate() {
            sync.ready(index, &vec![1.0; parameter.elements()]).unwrap();
        }
        let _ = sync.finish().unwrap();
        sync.record().clone()
    }) {
        assert!(record.backward_s >= before.as_secs_f64());
        assert!(record.buckets.iter().all(|bucket| bucket.ready_s >= before.as_secs_f64()));
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
    let link = mem::alone;
    let mut sync = Synchronizer::start(link(), parameters(), options("none")).unwrap();
    sync.begin(0).unwrap();
    let error = sync.ready(0, &[1.0]).unwrap_err().to_string();
    assert_eq!(error, "gradient of head.weight has 1 elements, expected 6720");
    sync.ready(1, &[0.0; 96]).unwrap();
    let error = sync.ready(1, &[0.0; 96]).unwrap_err().to_string();
    assert_eq!(error, "gradient of head.bias was given twice in step 0");
    let error = sync.finish().unwrap_err().to_string();
    assert_eq!(error, "no gradient of head.weight in step 0");
    let pair = ["first", "second"].map(|name| Parameter::new(name, &[8, 8]));
    let mut sync = Synchronizer::start(link(), pair.to_vec(), options("none")).unwrap();
    sync.begin(9).unwrap();
    sync.ready(0, &[1.0; 64]).unwrap();
    let error = sync.finish().unwrap_err().to_string();
    assert_eq!(error, "no gradient of second in step 9");
    let policy = Policy::Fixed(Choice::parse("int8").unwrap());
    let wrong = Options { policy, algorithm: Some("ring".parse().unwrap()), ..Options::default() };
    let error = Synchronizer::start(link(), parameters(), wrong).unwrap_err().to_string();
    assert!(error.starts_with("codec int8 travels by two-shot, not by ring"), "{error}");
    let policy = "auto:f16+topk:0.01".parse().unwrap();
    let wrong =
        Options { policy, algorithm: Some("two-shot".parse().unwrap()), ..Options::default() };
    let error = Synchronizer::start(link(), parameters(), wrong).unwrap_err().to_string();
    assert!(error.starts_with("codec topk:0.01 travels by gather, not by two-shot"), "{error}");
}

#[test]
fn a_step_number_that_does_not_rise_is_refused() {
    spawn(2, "int8", |mut sync| {
        assert_eq!(give(&mut sync, 3, false), Outcome::Averaged);
        let before = sync.state();
        for step in [3, 2, 0] {
            let error = sync.begin(step).unwrap_err().to_string();
            assert_eq!(error, format!("step {step} begins after step 3, expected 4 or more"));
        }
        assert_eq!(give(&mut sync, 7, true), Outcome::Skipped);
        assert!(sync.begin(7).is_err(), "a skipped step has been, too");
        sync.load(&before).unwrap();
        assert_eq!(give(&mut sync, 0, false), Outcome::Averaged);
    });
}

#[test]
fn buckets_that_wait_for_each_other_give_the_same() {
    let history = |underway_max| {
        testkit::spawn(Network::Mem, 3, |link| {
            let options = Options { underway_max, ..options("int4") };
            let mut sync = Synchronizer::start(link, parameters(), options).unwrap();
            assert_eq!(give(&mut sync, 0, false), Outcome::Averaged);
            assert_eq!(give(&mut sync, 1, true), Outcome::Skipped);
            assert_eq!(give(&mut sync, 2, false), Outcome::Averaged);
            averages(&sync)
        })
    };
    assert_eq!(history(std::num::NonZeroUsize::new(1)), history(None));
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

/// A gradient in a type of the framework.
enum Typed {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Typed {
    fn new(dtype: DType, values: &[f32]) -> Typed {
        match dtype {
            DType::F32 => Typed::F32(values.to_vec()),
            DType::F16 => Typed::F16(Vec::from_f32_slice(values)),
            DType::BF16 => Typed::BF16(Vec::from_f32_slice(values)),
        }
    }

    fn gradient(&self) -> Gradient<'_> {
        match self {
            Typed::F32(values) => Gradient::F32(values),
            Typed::F16(values) => Gradient::F16(values),
            Typed::BF16(values) => Gradient::BF16(values),
        }
    }

    fn to_f64(&self) -> Vec<f64> {
        match self {
            Typed::F32(values) => values.iter().map(|&x| f64::from(x)).collect(),
            Typed::F16(values) => values.iter().map(|x| x.to_f64()).collect(),
            Typed::BF16(values) => values.iter().map(|x| x.to_f64()).collect(),
        }
    }
}

/// Gradients of different types, beside each other.
fn typed_parameters() -> Vec<Parameter> {
    let dtype = |index: usize| DType::ALL[index % 3];
    let typed = |(index, parameter)| Parameter { dtype: dtype(index), ..parameter };
    parameters()
        .into_iter()
        .chain([Parameter::new("last", &[40, 40])])
        .enumerate()
        .map(typed)
        .collect()
}

#[test]
fn gradients_travel_in_their_own_type() {
    for size in [1, 2, 3, 4] {
        let ranks = testkit::spawn(Network::Mem, size, |link| {
            let mut sync = Synchronizer::start(link, typed_parameters(), options("none")).unwrap();
            let rank = sync.world().rank().0;
            sync.begin(0).unwrap();
            for (index, parameter) in typed_parameters().iter().enumerate() {
                let values = gradient(rank, 0, index, parameter.elements());
                sync.ready(index, Typed::new(parameter.dtype, &values).gradient()).unwrap();
            }
            assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
            let count = typed_parameters().len();
            let averages: Vec<_> = (0..count).map(|index| sync.gradient(index).to_vec()).collect();
            (averages, sync.record().clone())
        });
        for (index, parameter) in typed_parameters().iter().enumerate() {
            let given = (0..size as u32).map(|rank| {
                let values = gradient(rank, 0, index, parameter.elements());
                Typed::new(parameter.dtype, &values).to_f64()
            });
            let given: Vec<Vec<f64>> = given.collect();
            // Half a unit in the last place, for each of the roundings on the way.
            let rounding = match parameter.dtype {
                DType::F32 => 1e-6,
                DType::F16 => 1e-3,
                DType::BF16 => 8e-3,
            };
            for element in 0..parameter.elements() {
                let all = || given.iter().map(|values| values[element] / size as f64);
                let (expected, largest): (f64, f64) = (all().sum(), all().map(f64::abs).sum());
                let found = ranks[0].0[index][element];
                let error = (f64::from(found) - expected).abs();
                let allowed = rounding * largest * size as f64 + 1e-6;
                assert!(error <= allowed, "{} {found} for {expected}", parameter.name);
            }
        }
        for (averages, record) in &ranks {
            assert_eq!(*averages, ranks[0].0, "all ranks hold the same bits");
            let raw = record.buckets.iter().filter(|_| size == 2);
            for bucket in raw {
                let bytes = if bucket.codec == "none" { 4 } else { 2 };
                let payload = bytes * bucket.elements as u64;
                let headers = bucket.sent_bytes.saturating_sub(payload);
                assert!((1..=200).contains(&headers), "{bucket:?}");
            }
        }
        let mut codecs: Vec<&str> =
            ranks[0].1.buckets.iter().map(|bucket| bucket.codec.as_str()).collect();
        codecs.sort_unstable();
        codecs.dedup();
        assert_eq!(codecs, ["bf16", "f16", "none"]);
    }
}

#[test]
fn what_overflows_half_precision_skips_the_step() {
    let outcomes = testkit::spawn(Network::Mem, 2, |link| {
        let parameter = Parameter { dtype: DType::F16, ..Parameter::new("weight", &[4, 4]) };
        let mut sync = Synchronizer::start(link, vec![parameter], options("none")).unwrap();
        sync.begin(0).unwrap();
        // Halves of the largest number: each fits, and so does the average, but not an infinity.
        sync.ready(0, Gradient::F16(&[f16::MAX; 16])).unwrap();
        assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
        assert_eq!(sync.gradient(0), [65504.0; 16]);
        sync.begin(1).unwrap();
        let largest = [f16::MAX, f16::INFINITY][sync.world().rank().index()];
        sync.ready(0, Gradient::F16(&[largest; 16])).unwrap();
        sync.finish().unwrap()
    });
    assert_eq!(outcomes, [Outcome::Skipped; 2]);
}

/// The parameters backwards and in two of the framework's buckets.
fn other_layout() -> Vec<Parameter> {
    let place = |(index, parameter)| Parameter { bucket: index as u32 / 3, ..parameter };
    parameters().into_iter().rev().enumerate().map(place).collect()
}

/// One step of parameters in any layout; the averages by name.
fn give_by_name(sync: &mut Synchronizer, step: u64) -> BTreeMap<String, Vec<f32>> {
    let rank = sync.world().rank().0;
    let given = sync.parameters().to_vec();
    sync.begin(step).unwrap();
    for (index, Parameter { name, .. }) in given.iter().enumerate() {
        let original = parameters().iter().position(|p| p.name == *name).unwrap();
        let elements = given[index].elements();
        sync.ready(index, &gradient(rank, step, original, elements)).unwrap();
    }
    assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
    given.iter().enumerate().map(|(i, p)| (p.name.clone(), sync.gradient(i).to_vec())).collect()
}

#[test]
fn a_new_layout_keeps_what_is_owed_to_every_parameter() {
    for codec in ["int8", "int4", "topk:0.05", "powersgd:2", "powersgd:2:alternate"] {
        let ranks = spawn(3, codec, |mut sync| {
            let mut history: Vec<_> = (0..2).map(|step| give_by_name(&mut sync, step)).collect();
            let before = sync.state().tensors;
            sync.relayout(other_layout()).unwrap();
            let after = sync.state().tensors;
            assert!(!before.is_empty());
            assert_eq!(before, after, "{codec}: residuals and factors go with their parameters");
            history.extend((2..4).map(|step| give_by_name(&mut sync, step)));
            sync.relayout(parameters()).unwrap();
            history.push(give_by_name(&mut sync, 4));
            (history, residuals(&sync.state()))
        });
        for (index, parameter) in parameters().iter().enumerate() {
            for element in 0..parameter.elements() {
                let given: f64 = (0..3)
                    .flat_map(|rank| (0..5).map(move |step| (rank, step)))
                    .map(|(rank, step)| f64::from(gradient_at(rank, step, index, element)))
                    .sum::<f64>()
                    / 3.0;
                let steps = ranks[0].0.iter();
                let got: f64 = steps.map(|step| f64::from(step[&parameter.name][element])).sum();
                let kept: f64 = ranks.iter().map(|(_, kept)| f64::from(kept[index][element])).sum();
                let error = (got + kept - given).abs();
                assert!(error < 2e-4, "{codec} {} [{element}]: {error}", parameter.name);
            }
        }
        assert!(ranks.iter().all(|(history, _)| *history == ranks[0].0), "{codec}");
    }
}

#[test]
fn a_new_layout_is_not_seen_in_the_averages_of_low_rank() {
    // Factors are those of a matrix, wherever it travels, and of two numbers the order is no matter.
    let run = |codec: &str, relayout: bool| {
        spawn(2, codec, |mut sync| {
            let _ = give_by_name(&mut sync, 0);
            if relayout {
                sync.relayout(other_layout()).unwrap();
            }
            (1..4).map(|step| give_by_name(&mut sync, step)).collect::<Vec<_>>()
        })
    };
    for codec in ["powersgd:2", "powersgd:2:alternate"] {
        assert_eq!(run(codec, true), run(codec, false), "{codec}");
    }
}

#[test]
fn framework_buckets_leave_by_themselves() {
    let parameters: Vec<Parameter> = (0..6)
        .map(|i| Parameter { bucket: i / 2, ..Parameter::new(&format!("p{i}"), &[8, 8]) })
        .collect();
    let mut sync = Synchronizer::start(mem::alone(), parameters, options("none")).unwrap();
    sync.begin(0).unwrap();
    (0..6).for_each(|index| sync.ready(index, &[1.0; 64]).unwrap());
    let _ = sync.finish().unwrap();
    let names: Vec<&str> = sync.record().buckets.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(names, ["p0 … p1 (2)", "p2 … p3 (2)", "p4 … p5 (2)"]);
}

#[test]
fn a_new_layout_of_other_parameters_is_refused() {
    spawn(2, "int8", |mut sync| {
        let _ = give_by_name(&mut sync, 0);
        let before = sync.state();
        let mut other = parameters();
        other[2].shape = vec![33, 70];
        let error = sync.relayout(other).unwrap_err().to_string();
        assert_eq!(
            error,
            "parameter hidden.weight of [33, 70] f32, expected hidden.weight of [70, 33] f32 as before"
        );
        let mut other = parameters();
        other[0].dtype = DType::BF16;
        let error = sync.relayout(other).unwrap_err().to_string();
        assert_eq!(
            error,
            "parameter head.weight of [96, 70] bf16, expected head.weight of [96, 70] f32 as before"
        );
        let fewer = parameters()[..5].to_vec();
        let error = sync.relayout(fewer).unwrap_err().to_string();
        assert_eq!(
            error,
            "parameter thin.weight of [3, 2] f32, expected input.weight of [33, 130] f32 as before"
        );
        let mut more = parameters();
        more.push(Parameter::new("z", &[1]));
        let error = sync.relayout(more).unwrap_err().to_string();
        assert_eq!(error, "7 parameters, expected 6 as before");
        assert_eq!(sync.state(), before);
        let _ = give_by_name(&mut sync, 1);
    });
}

#[test]
fn ranks_that_disagree_on_a_layout_are_told() {
    let errors = spawn(2, "int8", |mut sync| {
        let mut mine = other_layout();
        if sync.world().rank().0 == 1 {
            mine.swap(0, 1);
        }
        let order = sync.relayout(mine).unwrap_err();
        let mut mine = parameters();
        mine[5].bucket = sync.world().rank().0;
        let bucket = sync.relayout(mine).unwrap_err();
        // Nothing has changed, and the group is as it was.
        let _ = give_by_name(&mut sync, 0);
        [order, bucket]
    });
    for (mine, of_rank) in errors.into_iter().enumerate() {
        for error in of_rank {
            let Error::Disagreement { about, rank, .. } = &error else { panic!("{error}") };
            assert_eq!((about.as_str(), rank.index()), ("parameters", 1 - mine), "{error}");
        }
    }
}

#[test]
fn residuals_and_factors_load_into_any_buckets() {
    for codec in ["int8", "topk:0.05", "powersgd:2", "powersgd:2:alternate"] {
        let states: Vec<State> = spawn(2, codec, |mut sync| {
            (0..2).for_each(|step| drop(give_by_name(&mut sync, step)));
            sync.state()
        });
        testkit::spawn(Network::Mem, 2, |link| {
            let one_bucket = Options { bucket_bytes: 1 << 20, ..options(codec) };
            let mut sync = Synchronizer::start(link, other_layout(), one_bucket).unwrap();
            let state = &states[sync.world().rank().index()];
            let error = sync.load(state).unwrap_err().to_string();
            let text = "the checkpoint has 3 buckets of gradients, these --bucket-bytes make 4";
            assert_eq!(error, text);
            sync.load_tensors(state).unwrap();
            assert_eq!(sync.state().tensors, state.tensors, "{codec}");
            let mut strange = state.clone();
            strange.tensors.insert("residual.head.weight".into(), (vec![3], vec![0.5; 3]));
            let error = sync.load_tensors(&strange).unwrap_err().to_string();
            let text = "residual.head.weight in the checkpoint has 3 elements, expected 6720";
            assert_eq!(error, text);
        });
    }
}

/// Memory that a framework would lend.
struct Loan(Vec<f32>);

impl ExternalBuffer for Loan {
    fn values(&self) -> &[f32] {
        &self.0
    }

    fn values_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

/// All gradients of a rank in a step, one after the other.
fn flat(rank: u32, step: u64) -> Vec<f32> {
    let of =
        |(index, parameter): (usize, &Parameter)| gradient(rank, step, index, parameter.elements());
    parameters().iter().enumerate().flat_map(of).collect()
}

#[test]
fn lent_gradients_give_the_same_averages() {
    for codec in ["none", "int8", "topk:0.05", "auto"] {
        let ranks = spawn(3, codec, |mut sync| {
            let rank = sync.world().rank().0;
            let mut history = Vec::new();
            for step in 0..3 {
                sync.begin(step).unwrap();
                let flat = flat(rank, step);
                sync.ready_bucket(0, |range| Loan(flat[range].to_vec())).unwrap();
                assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
                history.push(averages(&sync));
            }
            history
        });
        assert_eq!(ranks[0], ranks[1], "{codec}");
        if codec != "auto" {
            let given = spawn(3, codec, |mut sync| {
                let step = |step| {
                    assert_eq!(give(&mut sync, step, false), Outcome::Averaged);
                    averages(&sync)
                };
                (0..3).map(step).collect::<Vec<_>>()
            });
            assert_eq!(ranks[0], given[0], "{codec}");
        }
    }
}

#[test]
fn a_nan_in_lent_gradients_skips_the_step_on_all_ranks() {
    for size in [2, 3, 4] {
        spawn(size, "none", |mut sync| {
            let rank = sync.world().rank().0;
            let mut flat = flat(rank, 0);
            if rank == 1 {
                flat[8000] = f32::INFINITY;
            }
            sync.begin(0).unwrap();
            sync.ready_bucket(0, |range| Loan(flat[range].to_vec())).unwrap();
            assert_eq!(sync.finish().unwrap(), Outcome::Skipped);
            assert_eq!(give(&mut sync, 1, false), Outcome::Averaged);
        });
    }
}

/// Lets every bucket travel by `codec` from now on.
fn switch(sync: &mut Synchronizer, codec: &str) {
    let mut plan = sync.plan().clone();
    for assignment in &mut plan.assignments {
        (assignment.codec, assignment.algorithm) = (codec.to_owned(), "gather".to_owned());
        assignment.partitions = 1;
    }
    let state = State { plan: serde_json::to_string(&plan).unwrap(), ..State::default() };
    sync.load(&state).unwrap();
    assert_eq!(sync.plan().assignments, plan.assignments);
}

#[test]
fn what_a_codec_owes_is_paid_by_the_next() {
    let pairs = [
        ("int4", "none"),
        ("topk:0.05", "int8"),
        ("int8", "powersgd:2"),
        ("powersgd:2", "powersgd:2:alternate"),
        ("powersgd:2:alternate", "none"),
    ];
    // Steps in which `auto` does not plan anew.
    const STEPS: [u64; 3] = [5, 7, 11];
    for (first, second) in pairs {
        let ranks = spawn(2, "auto", |mut sync| {
            switch(&mut sync, first);
            let mut history = Vec::new();
            for step in &STEPS[..2] {
                assert_eq!(give(&mut sync, *step, false), Outcome::Averaged);
                history.push(averages(&sync));
            }
            assert!(residuals(&sync.state()).iter().flatten().any(|&kept| kept.abs() > 0.01));
            switch(&mut sync, second);
            let before = sync.state();
            assert_eq!(give(&mut sync, 8, true), Outcome::Skipped);
            assert_eq!(sync.state().tensors, before.tensors, "{first}, {second}");
            assert_eq!(give(&mut sync, STEPS[2], false), Outcome::Averaged);
            history.push(averages(&sync));
            let owes_none = sync.state().tensors.keys().all(|name| name == State::WARM_UP);
            assert!(second != "none" || owes_none, "nothing is owed now");
            (history, residuals(&sync.state()))
        });
        for (index, parameter) in parameters().iter().enumerate() {
            for element in 0..parameter.elements() {
                let given = (0..2)
                    .flat_map(|rank| STEPS.map(|step| (rank, step)))
                    .map(|(rank, step)| f64::from(gradient_at(rank, step, index, element)) / 2.0);
                let got = ranks[0].0.iter().map(|step| f64::from(step[index][element]));
                let kept = ranks.iter().map(|(_, kept)| f64::from(kept[index][element]));
                let error = (got.sum::<f64>() + kept.sum::<f64>() - given.sum::<f64>()).abs();
                assert!(error < 2e-4, "{first}, {second}: {} [{element}]", parameter.name);
            }
        }
    }
}

#[test]
fn lossless_gives_the_bits_of_raw() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let parameters: Vec<Parameter> =
            parameters().into_iter().map(|it| Parameter { dtype, ..it }).collect();
        let run = |policy: &str| {
            let algorithm = Some("two-shot".parse().unwrap());
            let options = Options { algorithm, ..options(policy) };
            // A sum of two is the same in either order: exempt tensors lie in other buckets.
            spawn_with(2, &parameters, &options, |mut sync| {
                let rank = sync.world().rank().0;
                sync.begin(1).unwrap();
                for (index, parameter) in parameters.iter().enumerate() {
                    let mut gradient = gradient(rank, 1, index, parameter.elements());
                    for x in gradient.iter_mut() {
                        *x = match dtype {
                            DType::F32 => *x,
                            DType::F16 => f16::from_f32(*x).to_f32(),
                            DType::BF16 => bf16::from_f32(*x).to_f32(),
                        };
                    }
                    sync.ready(index, &gradient).unwrap();
                }
                assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
                averages(&sync).concat().into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            })
        };
        assert!(run("none") == run("lossless"), "{dtype:?}");
    }
}
