//! Parameters that no rank has a gradient of, over links in memory: what is kept of them stays.

mod made;

use made::{averages, normal, spawn_with};
use thinwire_sync::{Momentum, Options, Outcome, Parameter, State, Synchronizer};

/// Two networks side by side in the same buckets, and a vector of each.
fn parameters() -> Vec<Parameter> {
    vec![
        Parameter::new("g.wide", &[40, 30]),
        Parameter::new("d.wide", &[36, 30]),
        Parameter::new("g.bias", &[40]),
        Parameter::new("d.bias", &[36]),
        Parameter::new("d.tall", &[50, 11]),
        Parameter::new("g.tall", &[61, 9]),
    ]
}

const CODECS: [&str; 14] = [
    "int8",
    "int4",
    "onebit",
    "topk:0.05",
    "blocktopk:64/1024:lloyd:2",
    "dgc:0.05",
    "dct:512",
    "ecsq:0.5",
    "randomk:0.25",
    "tbq:0.05",
    "powersgd:2",
    "powersgd:2:alternate",
    "intsgd",
    "auto",
];

fn options(codec: &str) -> Options {
    Options { policy: codec.parse().unwrap(), bucket_bytes: 12_000, seed: 7, ..Options::default() }
}

/// The end of a step in which the ranks that `has` chooses give gradients of some networks.
fn step(sync: &mut Synchronizer, step: u64, has: impl Fn(u32, &str) -> bool) -> Outcome {
    let rank = sync.world().rank().0;
    sync.begin(step).unwrap();
    for (index, Parameter { name, .. }) in parameters().iter().enumerate() {
        let elements = parameters()[index].elements();
        let values = match has(rank, name) {
            true => normal(rank, step, index, elements),
            false => vec![0.0; elements],
        };
        sync.ready(index, &values).unwrap();
    }
    sync.finish().unwrap()
}

/// All that a state has of a network; residuals of zero count as none.
fn of(state: &State, network: &str) -> Vec<(String, Vec<u32>)> {
    let tensors = state.tensors.iter().filter(|(name, _)| name.contains(&format!(".{network}.")));
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    let tensors = tensors.filter(|(_, (_, values))| values.iter().any(|value| *value != 0.0));
    tensors.map(|(name, (_, values))| (name.clone(), bits(values))).collect()
}

/// What every rank has of network d before and after steps of g alone, and whether their averages are zero.
fn d_rests(size: usize, options: &Options) {
    let label = format!("{}, {}, {size} ranks", options.policy, options.feedback);
    spawn_with(size, &parameters(), options, |mut sync| {
        for number in 0..3 {
            assert_eq!(step(&mut sync, number, |_, _| true), Outcome::Averaged);
        }
        let before = of(&sync.state(), "d");
        for number in 3..6 {
            assert_eq!(step(&mut sync, number, |_, name| name.starts_with('g')), Outcome::Averaged);
            for (index, average) in averages(&sync).iter().enumerate() {
                let is_of_d = parameters()[index].name.starts_with('d');
                assert_eq!(sync.is_absent(index), is_of_d && sync.keeps(), "{label}");
                assert_eq!(average.iter().all(|x| *x == 0.0), is_of_d, "{label}: {index}");
            }
            assert_eq!(of(&sync.state(), "d"), before, "{label} in step {number}");
        }
    });
}

#[test]
fn what_is_kept_of_an_absent_parameter_stays() {
    for codec in CODECS {
        for size in [1, 2, 3] {
            d_rests(size, &options(codec));
        }
    }
    for feedback in ["ef21", "average:0.5", "decay:0.5"] {
        for codec in ["int4", "powersgd:2"] {
            d_rests(2, &Options { feedback: feedback.parse().unwrap(), ..options(codec) });
        }
    }
    for codec in ["topk:0.05", "none"] {
        d_rests(2, &Options { momentum: Some(Momentum::default()), ..options(codec) });
    }
    d_rests(
        4,
        &Options { algorithm: Some("hierarchical:2:two-shot".parse().unwrap()), ..options("int4") },
    );
}

/// The sums over ranks of what was given, of all averages, and of what is owed at the end.
fn sums(codec: &str, has: impl Fn(u64, u32, &str) -> bool + Sync) -> Vec<f64> {
    let size = 2;
    let ranks = spawn_with(size, &parameters(), &options(codec), |mut sync| {
        let mut results = Vec::new();
        for number in 0..8 {
            assert_eq!(step(&mut sync, number, |r, name| has(number, r, name)), Outcome::Averaged);
            results.push(averages(&sync));
        }
        (results, sync.state())
    });
    let error = |index: usize, element: usize| {
        let Parameter { name, .. } = &parameters()[index];
        let mut sum = 0.0;
        for (rank, (results, state)) in (0..).zip(&ranks) {
            for number in (0..8).filter(|number| has(*number, rank, name)) {
                let elements = parameters()[index].elements();
                let given = normal(rank, number, index, elements)[element];
                sum += f64::from(given) / size as f64;
            }
            let owed = state.tensors.get(&format!("residual.{name}"));
            sum -= owed.map_or(0.0, |(_, values)| f64::from(values[element]));
            sum -=
                results.iter().map(|all| f64::from(all[index][element])).sum::<f64>() / size as f64;
        }
        sum.abs()
    };
    let largest = |index: usize| (0..30).map(move |i| (index, i * 17 % 396 % 36));
    (0..6).flat_map(largest).map(|(index, element)| error(index, element)).collect()
}

/// Each network is there in some steps, on some ranks, on all or on none.
#[test]
fn results_and_residuals_are_all_gradients_whoever_had_some() {
    for codec in ["int4", "onebit", "topk:0.05", "powersgd:2", "powersgd:2:alternate"] {
        let has = |step: u64, rank: u32, name: &str| match name.starts_with('g') {
            true => step % 3 != 1 || rank == 1 && step == 4,
            false => step % 2 == 1 && (rank == 0 || step == 3),
        };
        for error in sums(codec, has) {
            assert!(error < 2e-4, "{codec}: {error}");
        }
    }
}

/// A framework may give the gradient of an earlier step in place of one.
#[test]
fn what_is_given_for_a_parameter_said_to_be_absent_is_ignored_where_all_say_so() {
    for codec in ["int4", "powersgd:2", "auto"] {
        let both = [false, true].map(|says_so| {
            spawn_with(2, &parameters(), &options(codec), |mut sync| {
                assert_eq!(step(&mut sync, 0, |_, _| true), Outcome::Averaged);
                sync.begin(1).unwrap();
                for (index, parameter) in parameters().iter().enumerate() {
                    if says_so && parameter.name.starts_with('d') {
                        sync.absent(index).unwrap();
                    }
                    let rank = sync.world().rank().0;
                    sync.ready(index, &normal(rank, 0, index, parameter.elements())).unwrap();
                }
                assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
                let d = parameters().iter().position(|each| each.name == "d.wide").unwrap();
                (sync.is_absent(d), sync.gradient(d).iter().all(|x| *x == 0.0))
            })
        });
        assert_eq!(both, [vec![(false, false); 2], vec![(true, true); 2]], "{codec}");
    }
    let link = thinwire_link::mem::alone();
    let mut sync = Synchronizer::start(link, parameters(), options("int4")).unwrap();
    let error = sync.absent(6).unwrap_err().to_string();
    assert_eq!(error, "gradient of parameter 6, expected one of 6");
}

/// A skipped step leaves no trace of absent parameters either, and is not taken for one without them.
#[test]
fn a_skipped_step_forgets_who_was_absent() {
    spawn_with(2, &parameters(), &options("int4"), |mut sync| {
        assert_eq!(step(&mut sync, 0, |_, _| true), Outcome::Averaged);
        let before = sync.state();
        sync.begin(1).unwrap();
        for (index, parameter) in parameters().iter().enumerate() {
            let value = if index == 0 { f32::NAN } else { 0.0 };
            sync.ready(index, &vec![value; parameter.elements()]).unwrap();
        }
        assert_eq!(sync.finish().unwrap(), Outcome::Skipped);
        assert_eq!(sync.state(), before);
        assert_eq!(step(&mut sync, 2, |_, _| true), Outcome::Averaged);
        assert!((0..6).all(|index| !sync.is_absent(index)));
    });
}
