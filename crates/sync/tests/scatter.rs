//! The laws of compressed reduce-scatter and all-gather, with made-up gradients in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use half::{bf16, f16};
use proptest::prelude::*;
use thinwire_codec::{Bound, Choice, Codec};
use thinwire_link::mem;
use thinwire_sync::{Error, Part, Place, Scatter};
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::random::Key;
use thinwire_wire::{DType, Rank};

/// A place in the model.
const PLACE: u64 = 3;

/// Every codec of bytes.
fn codecs() -> Vec<Arc<dyn Codec>> {
    let bytes = |choice| match choice {
        Choice::Bytes(codec) => Some(codec),
        Choice::LowRank(_) | Choice::Integers(_) => None,
    };
    thinwire_codec::all().into_iter().filter_map(bytes).collect()
}

/// Those that lose nothing for good.
fn feedback_codecs() -> Vec<Arc<dyn Codec>> {
    codecs().into_iter().filter(|codec| codec.needs_feedback()).collect()
}

/// Runs `body` on every rank of a world in memory; the results in rank order.
fn spawn<T: Send>(
    size: usize,
    codec: &Arc<dyn Codec>,
    body: impl Fn(Scatter) -> T + Sync,
) -> Vec<T> {
    testkit::spawn(Network::Mem, size, |link| {
        let choice = Choice::Bytes(Arc::clone(codec));
        body(Scatter::start(link, choice, 7, Duration::from_secs(60)).unwrap())
    })
}

/// One parameter that travels alone.
fn alone(scatter: &Scatter, key: u64, length: usize) -> [Part; 1] {
    [Part { key, elements: length / scatter.world().size() }]
}

fn me(scatter: &Scatter) -> usize {
    scatter.world().rank().index()
}

/// What a rank gives in a step.
fn gradient(rank: usize, step: u64, length: usize) -> Vec<f32> {
    let key = Key { seed: 50 + rank as u64, step, tensor: 0 };
    let value = |i| key.normal(i) * if i.is_multiple_of(50) { 3.0 } else { 0.1 };
    (0..length as u64).map(value).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// One step of one place: my chunk of the sum.
fn give(scatter: &mut Scatter, step: u64, chunk: usize) -> Vec<f32> {
    let length = chunk * scatter.world().size();
    let values = gradient(me(scatter), step, length);
    reduce(scatter, PLACE, values).unwrap()
}

/// The reduce-scatter of a parameter that travels alone.
fn reduce(scatter: &mut Scatter, key: u64, values: Vec<f32>) -> Result<Vec<f32>, Error> {
    let parts = alone(scatter, key, values.len());
    scatter.reduce_scatter(&parts, DType::F32, values)
}

fn residual(scatter: &Scatter, length: usize) -> Vec<f32> {
    let place = scatter.state().remove(&PLACE).filter(|place| !place.residual.is_empty());
    place.map_or_else(|| vec![0.0; length], |place| place.residual)
}

/// A state after one more exchange that has changed nothing.
fn skip_one(mut state: BTreeMap<u64, Place>) -> BTreeMap<u64, Place> {
    state.values_mut().for_each(|place| place.count += 1);
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn results_and_residuals_hold_every_gradient(
        size in 1_usize..5,
        codec in prop::sample::select(feedback_codecs()),
        chunk in prop_oneof![0_usize..4, 4_usize..900],
    ) {
        let (steps, length) = (4, chunk * size);
        let ranks = spawn(size, &codec, |mut scatter| {
            let mut sum = vec![0.0_f64; chunk];
            for step in 0..steps {
                let result = give(&mut scatter, step, chunk);
                sum.iter_mut().zip(result).for_each(|(sum, x)| *sum += f64::from(x));
            }
            (sum, residual(&scatter, length))
        });
        let gradients: Vec<Vec<f32>> = (0..size)
            .flat_map(|rank| (0..steps).map(move |step| gradient(rank, step, length)))
            .collect();
        for element in 0..length {
            let given: f64 = gradients.iter().map(|values| f64::from(values[element])).sum();
            let got = ranks[element / chunk].0[element % chunk];
            let kept: f64 = ranks.iter().map(|(_, kept)| f64::from(kept[element])).sum();
            let error = (got + kept - given).abs();
            prop_assert!(error < 2e-4, "{codec} [{element}]: {got} + {kept} != {given}");
        }
    }

    #[test]
    fn something_infinite_anywhere_is_a_nan_everywhere_and_leaves_no_trace(
        size in 1_usize..4,
        codec in prop::sample::select(codecs()),
        (culprit, place) in (0_usize..4, 0_usize..1000),
        poison in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        const CHUNK: usize = 130;
        let spoiled = spawn(size, &codec, |mut scatter| {
            let first = give(&mut scatter, 0, CHUNK);
            let before = scatter.state();
            let mut values = gradient(me(&scatter), 1, CHUNK * size);
            if me(&scatter) == culprit % size {
                values[place % (CHUNK * size)] = poison;
            }
            let result = reduce(&mut scatter, PLACE, values).unwrap();
            assert!(result.iter().all(|value| value.is_nan()), "{codec}: {result:?}");
            assert_eq!(result.len(), CHUNK);
            // Only the random numbers are others from here on.
            let skipped = skip_one(before);
            assert_eq!(scatter.state(), skipped, "{codec}");
            (first, give(&mut scatter, 2, CHUNK), scatter.state())
        });
        let spared = spawn(size, &codec, |mut scatter| {
            let first = give(&mut scatter, 0, CHUNK);
            scatter.load(skip_one(scatter.state()));
            (first, give(&mut scatter, 2, CHUNK), scatter.state())
        });
        prop_assert_eq!(spoiled, spared);
    }

    #[test]
    fn all_ranks_gather_the_same_bits(
        size in 1_usize..5,
        codec in prop::sample::select(codecs()),
        length in prop_oneof![0_usize..3, 3_usize..700],
    ) {
        let raw = thinwire_codec::raw();
        let ranks = spawn(size, &raw, |mut scatter| {
            let mine = gradient(me(&scatter), 0, length);
            let first = scatter.all_gather(&codec, PLACE, &mine).unwrap();
            let again = scatter.all_gather(&codec, PLACE, &mine).unwrap();
            [bits(&first), bits(&again)]
        });
        for rank in &ranks {
            prop_assert_eq!(rank, &ranks[0]);
        }
        // In a world of one, too, parameters are what the codec keeps of them.
        let gathered: Vec<f32> = ranks[0][0].iter().map(|&bits| f32::from_bits(bits)).collect();
        prop_assert_eq!(gathered.len(), size * length);
        for (rank, part) in gathered.chunks_exact(length.max(1)).enumerate() {
            let given = gradient(rank, 0, length);
            let largest = given.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            for (found, given) in part.iter().zip(given.iter().copied()) {
                let fits = match codec.dtype() {
                    Some(DType::F32) => *found == given,
                    Some(DType::F16) => *found == f16::from_f32(given).to_f32(),
                    Some(DType::BF16) => *found == bf16::from_f32(given).to_f32(),
                    // How near is each codec's own law; here, that it is this rank's part.
                    None => found.abs() <= 1.0 + 2.0 * largest,
                };
                prop_assert!(fits, "{codec}: {found} for {given}");
            }
            if let Bound::Contraction(delta) = codec.bound(length) {
                let square = |x: f32| f64::from(x) * f64::from(x);
                let lost: f64 = part.iter().zip(&given).map(|(x, y)| square(x - y)).sum();
                let all: f64 = given.iter().map(|x| square(*x)).sum();
                prop_assert!(lost <= (1.0 - delta + 1e-4) * all, "{codec}: {lost} of {all}");
            }
        }
    }
}

#[test]
fn uncompressed_gradients_travel_in_their_own_dtype() {
    let raw = thinwire_codec::raw();
    for size in [1, 2, 3, 4] {
        for dtype in DType::ALL {
            let round = |value: f32| match dtype {
                DType::F32 => value,
                DType::F16 => f16::from_f32(value).to_f32(),
                DType::BF16 => bf16::from_f32(value).to_f32(),
            };
            let sums = spawn(size, &raw, |mut scatter| {
                let values = gradient(me(&scatter), 0, 70 * size);
                let sum = scatter
                    .reduce_scatter(&alone(&scatter, PLACE, 70 * size), dtype, values)
                    .unwrap();
                assert!(scatter.state()[&PLACE].residual.is_empty(), "nothing is lost or kept");
                sum
            });
            // My own as it is, then the others' as they travelled, from the rank before mine backwards.
            for (owner, sum) in sums.iter().enumerate() {
                let given: Vec<Vec<f32>> =
                    (0..size).map(|rank| gradient(rank, 0, 70 * size)).collect();
                for (i, found) in sum.iter().enumerate() {
                    let element = owner * 70 + i;
                    let others = (1..size).map(|offset| (owner + size - offset) % size);
                    let mine = given[owner][element];
                    let expected = others.fold(mine, |sum, rank| sum + round(given[rank][element]));
                    assert_eq!(*found, expected, "{dtype}, {size} ranks");
                }
            }
        }
    }
}

/// As with an all-reduce: one vote for each rank, whoever owns the chunk, and one for the result.
#[test]
fn a_vote_is_the_majority_of_all_ranks() {
    const CHUNK: usize = 140;
    for size in [1, 2, 3, 4, 5] {
        let sums = spawn(size, &codec("vote"), |mut scatter| {
            let loud = (1.0 + me(&scatter) as f32) * 10.0;
            let values = gradient(me(&scatter), 0, CHUNK * size).iter().map(|x| x * loud).collect();
            reduce(&mut scatter, PLACE, values).unwrap()
        });
        let given: Vec<Vec<f32>> = (0..size).map(|rank| gradient(rank, 0, CHUNK * size)).collect();
        for (element, found) in sums.concat().into_iter().enumerate() {
            let against = given.iter().filter(|values| values[element] < 0.0).count();
            let expected = if 2 * against > size { -1.0 } else { 1.0 };
            assert_eq!(found, expected, "{against} of {size} against");
        }
    }
}

/// Every rank gives another power of two, so a sum tells who sent an element.
#[test]
fn random_elements_are_those_of_all_ranks() {
    const CHUNK: usize = 900;
    for (name, size) in [("randomk:0.25", 4), ("randomk:0.25", 3), ("randomk:0.25:block", 4)] {
        let sums = spawn(size, &codec(name), |mut scatter| {
            let values = vec![(1 << me(&scatter)) as f32; CHUNK * size];
            reduce(&mut scatter, PLACE, values).unwrap()
        });
        let all = ((1 << size) - 1) as f32;
        for (owner, sum) in sums.iter().enumerate() {
            let alone = (1 << owner) as f32;
            assert!(sum.iter().all(|x| [alone, all].contains(x)), "{name}, {size} ranks");
            let sent = sum.iter().filter(|x| **x == all).count();
            // Blocks have 64 elements, the last one 4.
            assert!((132..=384).contains(&sent), "{name}: {sent} of {CHUNK}");
        }
        let sent = |sum: &Vec<f32>| sum.iter().map(|x| *x == all).collect::<Vec<_>>();
        assert_ne!(sent(&sums[0]), sent(&sums[1]), "{name}: chunks draw for themselves");
    }
}

/// Parameters of the law below: some are equally long, one has nothing.
const ELEMENTS: [usize; 5] = [40, 40, 7, 0, 130];

/// The parameters in the call of a step, in the order of this step.
fn present(step: u64) -> Vec<usize> {
    let key = Key { seed: 3, step, tensor: 0 };
    let mut all: Vec<usize> =
        (0..ELEMENTS.len()).filter(|i| key.below(*i as u64, 2) == 1).collect();
    // Twice the same in a row, and now and then the other way round.
    if step.is_multiple_of(3) {
        all.reverse();
    }
    if all.is_empty() { vec![step as usize % ELEMENTS.len()] } else { all }
}

/// Whichever parameters travel together, each has its own residual: what it gave, it gets or is owed, and
/// a call without it changes nothing for it.
#[test]
fn every_parameter_has_a_residual_of_its_own() {
    let (size, steps) = (3, 24);
    for codec in feedback_codecs() {
        let ranks = spawn(size, &codec, |mut scatter| {
            let me = me(&scatter);
            let mut sums = ELEMENTS.map(|elements| vec![0.0_f64; elements]);
            let mut given = ELEMENTS.map(|elements| vec![0.0_f64; elements * size]);
            for step in 0..steps {
                let members = present(step / 2);
                let part = |&i: &usize| Part { key: i as u64, elements: ELEMENTS[i] };
                let parts: Vec<Part> = members.iter().map(part).collect();
                let gradients: Vec<Vec<f32>> = members
                    .iter()
                    .map(|&i| gradient(me, step * 10 + i as u64, ELEMENTS[i] * size))
                    .collect();
                let row = |rank: usize| {
                    let rows = gradients.iter().zip(&members);
                    rows.flat_map(move |(all, &i)| &all[rank * ELEMENTS[i]..][..ELEMENTS[i]])
                };
                let values = (0..size).flat_map(row).copied().collect();
                let before = scatter.state();
                let sum = scatter.reduce_scatter(&parts, DType::F32, values).unwrap();
                let after = scatter.state();
                for (key, place) in before {
                    let stays = after[&key] == place;
                    assert_eq!(stays, !members.contains(&(key as usize)), "{codec}: {key}");
                }
                let mut rest = &sum[..];
                for (&i, all) in members.iter().zip(&gradients) {
                    let (mine, others) = rest.split_at(ELEMENTS[i]);
                    rest = others;
                    sums[i].iter_mut().zip(mine).for_each(|(sum, x)| *sum += f64::from(*x));
                    given[i].iter_mut().zip(all).for_each(|(sum, x)| *sum += f64::from(*x));
                }
                if step % 5 == 4 {
                    scatter.load(scatter.state());
                }
            }
            (sums, given, scatter.state())
        });
        for (i, elements) in ELEMENTS.into_iter().enumerate() {
            for element in 0..elements * size {
                let got = ranks[element / elements].0[i][element % elements];
                let given: f64 = ranks.iter().map(|(_, given, _)| given[i][element]).sum();
                let kept: f64 = ranks
                    .iter()
                    .filter_map(|(_, _, state)| state.get(&(i as u64))?.residual.get(element))
                    .map(|kept| f64::from(*kept))
                    .sum();
                let error = (got + kept - given).abs();
                assert!(error < 1e-3, "{codec} {i} [{element}]: {got} + {kept} != {given}");
            }
        }
    }
}

/// Parameters that always travel together do so bit for bit like one parameter of all their elements.
#[test]
fn parameters_that_travel_together_are_one() {
    for name in ["none", "int8", "int4", "onebit", "vote", "topk:0.05"] {
        let sums = |parts: &'static [usize]| {
            spawn(2, &codec(name), |mut scatter| {
                let parts: Vec<Part> =
                    (7..).zip(parts).map(|(key, &elements)| Part { key, elements }).collect();
                let steps = (0..4).map(|step| {
                    let values = gradient(me(&scatter), step, 300);
                    bits(&scatter.reduce_scatter(&parts, DType::F32, values).unwrap())
                });
                steps.collect::<Vec<_>>()
            })
        };
        assert_eq!(sums(&[150]), sums(&[1, 100, 49]), "{name}");
    }
}

/// Where every rank has gradients of other parameters, their sum would be one of two parameters.
#[test]
fn other_parameters_on_another_rank_end_both() {
    let errors = spawn(2, &codec("int8"), |mut scatter| {
        give(&mut scatter, 0, 10);
        // Places have been exchanged equally often, or not.
        let (key, elements) = (PLACE + me(&scatter) as u64, 10);
        scatter
            .reduce_scatter(&[Part { key, elements }], DType::F32, vec![1.0; 20])
            .unwrap_err()
            .to_string()
    });
    for error in &errors {
        assert!(error.contains("calls differ"), "{errors:?}");
    }
}

#[test]
fn places_do_not_share_a_residual() {
    let codec = codec("topk:0.05");
    let give_one = |place: u64| {
        spawn(2, &codec, |mut scatter| {
            let steps = (0..3).map(|step| {
                let values = gradient(me(&scatter), step + 10 * place, 200);
                reduce(&mut scatter, place, values).unwrap()
            });
            steps.collect::<Vec<_>>()
        })
    };
    let both = spawn(2, &codec, |mut scatter| {
        let mut results = [Vec::new(), Vec::new()];
        for step in 0..3 {
            for place in [0_u64, 1] {
                let values = gradient(me(&scatter), step + 10 * place, 200);
                let sum = reduce(&mut scatter, place, values).unwrap();
                results[place as usize].push(sum);
            }
        }
        results
    });
    let (first, second) = (give_one(0), give_one(1));
    for (rank, results) in both.into_iter().enumerate() {
        assert_eq!(results, [first[rank].clone(), second[rank].clone()]);
    }
}

#[test]
fn a_restart_goes_on_with_its_residuals_and_random_numbers() {
    for name in ["int4", "topk:0.05", "int8:stochastic"] {
        let codec = codec(name);
        let whole =
            spawn(3, &codec, |mut scatter| (0..4).map(|step| give(&mut scatter, step, 300)).last());
        let states: Vec<BTreeMap<u64, Place>> = spawn(3, &codec, |mut scatter| {
            (0..3).for_each(|step| drop(give(&mut scatter, step, 300)));
            scatter.state()
        });
        let resumed = spawn(3, &codec, |mut scatter| {
            scatter.load(states[me(&scatter)].clone());
            Some(give(&mut scatter, 3, 300))
        });
        assert_eq!(whole, resumed, "{name}");
    }
}

#[test]
fn mistakes_are_refused_and_the_scatter_lives_on() {
    let start = |name: &str| {
        let choice = Choice::parse(name).unwrap();
        Scatter::start(mem::alone(), choice, 0, Duration::from_secs(1))
    };
    let error = start("powersgd:2").unwrap_err().to_string();
    assert_eq!(
        error,
        "codec powersgd:2 needs whole matrices, and each rank has only a shard: use int8, int4 or topk"
    );
    let error = start("intsgd").unwrap_err().to_string();
    assert_eq!(
        error,
        "codec intsgd needs the whole averaged gradient, and each rank has only a shard: use int8:stochastic or qsgd:8"
    );
    spawn(2, &codec("topk:0.05"), |mut scatter| {
        let mut refused = |place, length: usize| {
            reduce(&mut scatter, place, vec![1.0; length]).map_err(|error| error.to_string())
        };
        let error = refused(PLACE, 7).unwrap_err();
        assert_eq!(error, "7 elements for 2 ranks, expected 3 for each");
        refused(PLACE, 8).unwrap();
        let error = refused(PLACE, 10).unwrap_err();
        assert_eq!(error, "gradients of place 3 have 10 elements, expected 8");
        refused(PLACE, 8).unwrap();
        refused(PLACE + 1, 10).unwrap();
        let twice = [Part { key: PLACE, elements: 4 }; 2];
        let error = scatter.reduce_scatter(&twice, DType::F32, vec![1.0; 16]).unwrap_err();
        assert_eq!(error.to_string(), "a parameter appears twice in one call, expected once");
        assert!(scatter.reduce_scatter(&[], DType::F32, Vec::new()).is_err());
    });
}

#[test]
fn another_length_on_another_rank_is_named() {
    let errors = spawn(2, &codec("none"), |mut scatter| {
        let values = vec![1.0; 20 + 20 * me(&scatter)];
        let result = reduce(&mut scatter, PLACE, values);
        let mine = vec![1.0; 10 + me(&scatter)];
        let raw = thinwire_codec::raw();
        result.and_then(|_| scatter.all_gather(&raw, PLACE, &mine)).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|error| error.contains("calls differ")), "{errors:?}");
}

#[test]
fn a_shard_that_is_not_finite_reaches_everybody_or_ends_everybody() {
    let raw = thinwire_codec::raw();
    let gather = |codec: &Arc<dyn Codec>| {
        spawn(2, &raw, |mut scatter| {
            let mine = [1.0, [0.5, f32::NAN][me(&scatter)]];
            scatter.all_gather(codec, PLACE, &mine).map_err(|error| error.to_string())
        })
    };
    for gathered in gather(&raw) {
        assert_eq!(bits(&gathered.unwrap()), bits(&[1.0, 0.5, 1.0, f32::NAN]));
    }
    let reason = "a parameter of place 3 is not finite on rank 1";
    let errors: Vec<String> =
        gather(&codec("int8")).into_iter().map(|result| result.unwrap_err()).collect();
    assert!(errors[0].contains(&format!("rank 1 reports: {reason}")), "{errors:?}");
    assert_eq!(errors[1], reason);
}

#[test]
fn a_stop_ends_a_scatter_that_waits() {
    let errors = spawn(2, &codec("int8"), |mut scatter| {
        if scatter.world().rank() == Rank(1) {
            scatter.stop().stop("enough");
        }
        reduce(&mut scatter, PLACE, vec![1.0; 64]).unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 1 reports: enough"), "{errors:?}");
    assert_eq!(errors[1], "enough");
}

#[test]
fn a_call_that_fails_changes_nothing_and_the_next_one_fails_too() {
    for name in ["int8", "topk:0.05", "none"] {
        let given = Barrier::new(2);
        spawn(2, &codec(name), |mut scatter| {
            give(&mut scatter, 0, 130);
            given.wait();
            let before = scatter.state();
            if scatter.world().rank() == Rank(1) {
                scatter.stop().stop("enough");
            }
            for _ in 0..2 {
                let values = gradient(me(&scatter), 1, 260);
                let error = reduce(&mut scatter, PLACE, values).unwrap_err();
                assert!(error.to_string().contains("enough"), "{name}: {error}");
                assert_eq!(scatter.state(), before, "{name}");
            }
        });
    }
}

fn codec(name: &str) -> Arc<dyn Codec> {
    match Choice::parse(name).unwrap() {
        Choice::Bytes(codec) => codec,
        Choice::LowRank(_) | Choice::Integers(_) => panic!("{name} is not a codec of bytes"),
    }
}
