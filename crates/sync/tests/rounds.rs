//! Rounds of every mode over links in memory: what they keep, what they equal, and what a skipped one leaves.

mod made;

use std::sync::{Barrier, Mutex};

use made::normal;
use thinwire_collective::Group;
use thinwire_link::mem;
use thinwire_sync::{
    Averager, AveragerState, Channel, DelayedRows, DiLoCo, Mode, Options, Parameter, RoundRecord,
    Tensors,
};
use thinwire_testkit::{Network, spawn};
use thinwire_update::Rule;
use thinwire_wire::{Rank, World};

type Values = Vec<Vec<f32>>;

fn parameters() -> Vec<Parameter> {
    vec![
        Parameter::new("wide", &[24, 20]),
        Parameter::new("bias", &[24]),
        Parameter::new("tall", &[61, 4]),
    ]
}

/// The parameters with which all ranks begin.
fn initial() -> Values {
    let values = |(index, it): (usize, &Parameter)| normal(99, 0, index, it.elements());
    parameters().iter().enumerate().map(values).collect()
}

fn options(codec: &str) -> Options {
    Options { policy: codec.parse().unwrap(), bucket_bytes: 1_000, seed: 3, ..Options::default() }
}

/// How far a rank moves its parameters in a step.
fn moved(rank: Rank, step: u64, index: usize, elements: usize) -> Vec<f32> {
    normal(rank.0, step, index, elements).iter().map(|value| 0.01 * value).collect()
}

/// Trains a rank by itself in one step.
fn train(values: &mut Values, rank: Rank, step: u64) {
    for (index, values) in values.iter_mut().enumerate() {
        let step = moved(rank, step, index, values.len());
        values.iter_mut().zip(step).for_each(|(value, step)| *value -= step);
    }
}

/// A rank's rounds and parameters.
struct Trained {
    world: World,
    averager: Averager,
    values: Values,
}

impl Trained {
    fn start(channel: Channel, mode: &str, options: &Options) -> Trained {
        let (world, values) = (channel.world(), initial());
        let mode = mode.parse().unwrap();
        let averager = Averager::start(channel, &parameters(), mode, options, &values).unwrap();
        Trained { world, averager, values }
    }

    fn steps(&mut self, count: u64) -> Vec<RoundRecord> {
        let step = |_| {
            train(&mut self.values, self.world.rank(), self.averager.steps());
            self.averager.step(&mut self.values).unwrap()
        };
        (0..count).map(step).collect()
    }
}

/// Trains in a mode on every rank of a world; the parameters of all ranks.
fn trained(size: usize, mode: &str, codec: &str, steps: u64) -> Vec<Values> {
    spawn(Network::Mem, size, |link| {
        let mut trained = Trained::start(Channel::new(Group::new(link)), mode, &options(codec));
        trained.steps(steps);
        let values = trained.values.clone();
        // Nobody leaves while something is on its way.
        trained.averager.settle(&mut trained.values).unwrap();
        // How far pairs have moved is not known before.
        if mode.starts_with("pair") { trained.values } else { values }
    })
}

/// Trains in a mode of which only the sum over ranks matters, without any exchange, in f64.
fn mean_alone(size: usize, steps: u64) -> Vec<f64> {
    mean_apart(&vec![steps; size])
}

/// As [`mean_alone`], for so many steps of each rank.
fn mean_apart(steps: &[u64]) -> Vec<f64> {
    let alone = |(rank, steps): (u32, &u64)| {
        let mut values = initial();
        (0..*steps).for_each(|step| train(&mut values, Rank(rank), step));
        values
    };
    mean_of(&(0..).zip(steps).map(alone).collect::<Vec<_>>())
}

fn mean_of(all: &[Values]) -> Vec<f64> {
    let mut mean = vec![0.0; all[0].concat().len()];
    for values in all {
        let share = |value: &f32| f64::from(*value) / all.len() as f64;
        mean.iter_mut().zip(values.concat()).for_each(|(mean, value)| *mean += share(&value));
    }
    mean
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len());
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off < 2e-6, "{what}: off by {off}");
}

fn floats(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

#[test]
fn modes_that_keep_the_mean_keep_it() {
    for mode in ["sma:0.3", "sma:1,every=2", "pair", "pair:2", "pair:3", "local:2", "local:5"] {
        for size in 1..=5 {
            let all = trained(size, mode, "none", 10);
            assert_close(&mean_of(&all), &mean_alone(size, 10), &format!("{mode} on {size} ranks"));
        }
    }
}

#[test]
fn pairs_of_any_speed_keep_the_mean() {
    let steps = [25, 3, 14, 9];
    let all = spawn(Network::Mem, 4, |link| {
        let mut trained = Trained::start(Channel::new(Group::new(link)), "pair", &options("none"));
        trained.steps(steps[trained.world.rank().index()]);
        // Who has taken all its steps waits for the others here, and answers them meanwhile.
        trained.averager.settle(&mut trained.values).unwrap();
        let settled = trained.values.clone();
        trained.averager.finish(&mut trained.values).unwrap();
        (settled, trained.values)
    });
    let (settled, ended): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    assert_close(&mean_of(&settled), &mean_apart(&steps), "after exchanges");
    assert!(ended.iter().all(|values| *values == ended[0]));
    assert_close(&mean_of(&ended), &mean_apart(&steps), "in the end");
}

#[test]
fn a_rank_does_not_wait_for_its_partner() {
    let stopped = Barrier::new(2);
    let all = spawn(Network::Mem, 2, |link| {
        let mut trained = Trained::start(Channel::new(Group::new(link)), "pair", &options("none"));
        let mut ended = 0;
        // The other rank takes no step before this one has averaged with it three times.
        while trained.world.rank() == Rank(0) && ended < 3 {
            ended += trained.steps(1)[0].ended;
            std::thread::yield_now();
        }
        stopped.wait();
        trained.steps(2);
        trained.averager.settle(&mut trained.values).unwrap();
        (trained.averager.steps(), trained.values)
    });
    let (steps, values): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    assert_close(&mean_of(&values), &mean_apart(&steps), "one rank stood still");
}

#[test]
fn partners_that_learn_nothing_have_the_same_bits_after_a_round() {
    for size in [2, 4] {
        let all = spawn(Network::Mem, size, |link| {
            let mut trained =
                Trained::start(Channel::new(Group::new(link)), "pair", &options("none"));
            trained.steps(5);
            // All have published what they have once all are here again.
            for _ in 0..2 {
                trained.averager.settle(&mut trained.values).unwrap();
            }
            trained.averager.step(&mut trained.values).unwrap();
            trained.averager.settle(&mut trained.values).unwrap();
            trained.values
        });
        let equal = |values: &Values| all.iter().filter(|other| *other == values).count();
        assert!(all.iter().all(|values| equal(values) == 2));
    }
}

#[test]
fn ranks_have_the_same_bits_after_a_round_without_an_own_part() {
    for (mode, codec) in [
        ("local:3", "none"),
        ("diloco:3", "int8"),
        ("diloco:3", "topk:0.1"),
        ("sma:1,every=3", "int4"),
    ] {
        let all = trained(3, mode, codec, 6);
        assert!(all.iter().all(|values| *values == all[0]), "{mode} with {codec}");
    }
}

#[test]
fn local_sgd_is_diloco_whose_outer_step_is_the_average() {
    let diloco = trained(3, "diloco:2,outer=sgd,lr=1", "int8", 8);
    assert_eq!(trained(3, "local:2", "int8", 8), diloco);
    let each_step = trained(3, "diloco:1,outer=sgd,lr=1", "none", 4);
    assert_close(&floats(&each_step[1].concat()), &mean_alone(3, 4), "averages in every step");
}

/// DiLoCo by fragments on one thread, in f32 like the ranks: what each rank has in the end.
fn simulated(size: u32, settings: DiLoCo, steps: u64) -> Vec<Values> {
    let lengths: Vec<usize> = parameters().iter().map(Parameter::elements).collect();
    let total: usize = lengths.iter().sum();
    // As `cut` does, but element by element: each is in the fragment of the row that it belongs to.
    let rows: Vec<usize> = parameters()
        .iter()
        .flat_map(|it| vec![it.elements() / it.shape[0]; it.elements()])
        .collect();
    let fragments = settings.fragments as usize;
    let mut of = Vec::new();
    let (mut fragment, mut begun) = (0, 0);
    while of.len() < total {
        let row = rows[of.len()];
        let end = total * (fragment + 1) / fragments;
        // A row goes to the fragment that has room for half of it.
        if fragment + 1 < fragments && of.len() + row > end + row / 2 && of.len() > begun {
            (fragment, begun) = (fragment + 1, of.len());
            continue;
        }
        of.resize(of.len() + row, fragment);
    }
    let mut common = initial().concat();
    let mut velocity = vec![0.0_f32; total];
    let mut all: Vec<Vec<f32>> = vec![common.clone(); size as usize];
    let mut sent: Vec<Option<Vec<f32>>> = vec![None; fragments];
    let Rule::Nesterov(rule) = settings.outer.rule else { panic!("{:?}", settings.outer) };
    for step in 1..=steps {
        for (rank, values) in all.iter_mut().enumerate() {
            let mut start = 0;
            for (index, length) in lengths.iter().enumerate() {
                let move_by = moved(Rank(rank as u32), step - 1, index, *length);
                values[start..start + length].iter_mut().zip(move_by).for_each(|(v, by)| *v -= by);
                start += length;
            }
        }
        let turn = |it: usize| (it as u64 + 1) * settings.every / settings.fragments as u64;
        let begins = |it: usize, step: u64| {
            step >= turn(it) && (step - turn(it)).is_multiple_of(settings.every)
        };
        let ends = |it: &usize| step > settings.delay && begins(*it, step - settings.delay);
        let send = |all: &[Vec<f32>], common: &[f32]| {
            let mean = |at: usize| {
                all.iter().map(|values| common[at] - values[at]).sum::<f32>() / size as f32
            };
            (0..total).map(mean).collect::<Vec<f32>>()
        };
        if settings.delay == 0 {
            for it in (0..fragments).filter(|it| begins(*it, step)) {
                sent[it] = Some(send(&all, &common));
            }
        }
        for it in (0..fragments).filter(ends) {
            let mean = sent[it].take().unwrap();
            for at in (0..total).filter(|at| of[*at] == it) {
                velocity[at] = rule.factor * velocity[at] + mean[at];
                common[at] -=
                    settings.outer.learning_rate * (mean[at] + rule.factor * velocity[at]);
                for values in &mut all {
                    values[at] = settings.alpha * values[at] + (1.0 - settings.alpha) * common[at];
                }
            }
        }
        if settings.delay > 0 {
            for it in (0..fragments).filter(|it| begins(*it, step)) {
                sent[it] = Some(send(&all, &common));
            }
        }
    }
    let split = |values: Vec<f32>| {
        let mut rest = &values[..];
        let take = |length: &usize| {
            let (mine, after) = rest.split_at(*length);
            rest = after;
            mine.to_vec()
        };
        lengths.iter().map(take).collect()
    };
    all.into_iter().map(split).collect()
}

#[test]
fn fragments_with_delays_follow_the_algorithm() {
    for text in [
        "diloco:4",
        "diloco:6,fragments=3",
        "diloco:6,fragments=3,delay=1,alpha=0.25",
        "diloco:5,fragments=4,delay=5",
        "diloco:3,fragments=2,delay=2",
    ] {
        let Mode::DiLoCo(settings) = text.parse().unwrap() else { panic!("{text}") };
        for size in [1, 2, 4] {
            let (found, expected) =
                (trained(size, text, "none", 23), simulated(size as u32, settings, 23));
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(&floats(&found.concat()), &floats(&expected.concat()), text);
            }
        }
    }
}

#[test]
fn codecs_by_name_are_those_of_whole_parameters() {
    spawn(Network::Mem, 2, |link| {
        let (channel, options) = (Channel::new(Group::new(link)), options("*ide=none,*=int4"));
        let mut trained = Trained::start(channel, "diloco:4,fragments=2", &options);
        trained.steps(4);
        let state = trained.averager.state();
        let is_part = |name: &&String| name.starts_with("common.wide[");
        assert_eq!(state.tensors.keys().filter(is_part).count(), 2);
        let owed = state.tensors.keys().filter(|name| name.starts_with("residual."));
        assert_eq!(owed.collect::<Vec<_>>(), ["residual.tall"]);
    });
}

#[test]
fn rounds_of_several_fragments_are_under_way_at_once() {
    let records = spawn(Network::Mem, 2, |link| {
        let channel = Channel::new(Group::new(link));
        let mut trained = Trained::start(channel, "diloco:4,fragments=4,delay=3", &options("int8"));
        let records = trained.steps(12);
        trained.averager.settle(&mut trained.values).unwrap();
        records
    });
    let mut underway = 0;
    let underway: Vec<u32> = records[0]
        .iter()
        .map(|record| {
            underway = underway + record.begun - record.ended;
            underway
        })
        .collect();
    assert_eq!(underway, [1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
    assert!(records[0].iter().all(|record| record.ended == 0 || record.sent_bytes > 0));
}

/// What a codec owes of a parameter, of all ranks together: changes travel times one over the number of ranks.
fn owed(states: &[AveragerState], name: &str, elements: usize) -> Vec<f64> {
    let mut sum = vec![0.0; elements];
    for state in states {
        let Some((_, residual)) = state.tensors.get(&format!("residual.{name}")) else { continue };
        sum.iter_mut().zip(residual).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    sum
}

#[test]
fn what_a_codec_loses_is_owed() {
    for codec in ["int4", "topk:0.05", "onebit"] {
        let ranks = spawn(Network::Mem, 3, |link| {
            let channel = Channel::new(Group::new(link));
            let mut trained = Trained::start(channel, "local:2", &options(codec));
            trained.steps(8);
            (trained.averager.state(), trained.values)
        });
        let (states, values): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        // All progress of all ranks is in the common parameters, or owed.
        let alone = mean_alone(3, 8);
        let owed: Vec<f64> =
            parameters().iter().flat_map(|it| owed(&states, &it.name, it.elements())).collect();
        assert!(owed.iter().any(|value| value.abs() > 1e-4), "{codec} loses something");
        let found: Vec<f64> = floats(&values[0].concat())
            .iter()
            .zip(&owed)
            .map(|(value, owed)| value - owed)
            .collect();
        assert_close(&found, &alone, codec);
    }
}

#[test]
fn a_skipped_round_leaves_no_trace() {
    for (mode, codec, steps, kept) in [
        ("local:2", "int8", 2, ""),
        // The other fragment's round is not skipped.
        ("diloco:2,fragments=2", "int8", 2, "wide[0"),
        ("diloco:4,delay=1", "topk:0.1", 5, ""),
        ("pair:2", "none", 2, ""),
    ] {
        spawn(Network::Mem, 2, |link| {
            let channel = Channel::new(Group::new(link));
            let mut trained = Trained::start(channel, mode, &options(codec));
            trained.steps(8);
            trained.averager.settle(&mut trained.values).unwrap();
            let before = trained.averager.state();
            let spoilt = trained.world.rank() == Rank(1);
            if spoilt {
                trained.values[0][5] = f32::NAN;
            }
            // Partners see it from here on.
            for _ in 0..2 {
                trained.averager.settle(&mut trained.values).unwrap();
            }
            let mut records = trained.steps(steps);
            records.push(trained.averager.settle(&mut trained.values).unwrap());
            let after = trained.averager.state();
            assert_eq!(records.iter().map(|record| record.skipped).sum::<u32>(), 1, "{mode}");
            if codec == "none" {
                assert_eq!(trained.values[0][5].is_nan(), spoilt);
                return;
            }
            assert!(trained.values.concat().iter().all(|value| value.is_finite()), "{mode}");
            let found = before.tensors.iter().filter(|(name, _)| name.contains(kept));
            for (name, (_, values)) in found.clone() {
                assert_eq!(after.tensors[name].1, *values, "{mode}: {name}");
            }
            assert!(found.count() >= 2, "{mode}");
        });
    }
}

#[test]
fn a_rank_without_finite_parameters_does_not_spoil_the_end_of_pairs() {
    let all = spawn(Network::Mem, 3, |link| {
        let mut trained = Trained::start(Channel::new(Group::new(link)), "pair", &options("none"));
        if trained.world.rank() == Rank(1) {
            trained.values[0][5] = f32::NAN;
        }
        trained.steps(5);
        trained.averager.finish(&mut trained.values).unwrap();
        trained.values
    });
    assert!(all[0].concat().iter().all(|value| value.is_finite()));
    assert!(all.iter().all(|values| *values == all[0]));
}

#[test]
fn the_outer_optimiser_makes_no_step_without_progress() {
    spawn(Network::Mem, 2, |link| {
        let channel = Channel::new(Group::new(link));
        let mut trained = Trained::start(channel, "diloco:4", &options("none"));
        trained.steps(8);
        let values = trained.values.clone();
        trained.averager.finish(&mut trained.values).unwrap();
        assert_eq!(trained.values, values);
    });
    // What was learnt since the last round is added as it is.
    let (apart, united) = [false, true]
        .map(|is_united| {
            spawn(Network::Mem, 2, |link| {
                let channel = Channel::new(Group::new(link));
                let mut trained = Trained::start(channel, "diloco:4", &options("none"));
                trained.steps(10);
                let values = trained.values.clone();
                trained.averager.finish(&mut trained.values).unwrap();
                if is_united { trained.values } else { values }
            })
        })
        .into();
    assert_close(&mean_of(&united), &mean_of(&apart), "the last round");
}

#[test]
fn rare_elements_do_not_make_parameters_drift_apart() {
    // Ranks are drawn to targets of their own, whose mean is theirs together.
    let elements = 400;
    let apart = |mode: &str, codec: &str| {
        let all = spawn(Network::Mem, 4, |link| {
            let channel = Channel::new(Group::new(link));
            let rank = channel.world().rank();
            let target = normal(rank.0, 9, 0, elements);
            let parameters = [Parameter::new("matrix", &[20, 20])];
            let mut values = vec![vec![0.0; elements]];
            let (mode, options) = (mode.parse().unwrap(), options(codec));
            let mut averager =
                Averager::start(channel, &parameters, mode, &options, &values).unwrap();
            for _ in 0..400 {
                values[0]
                    .iter_mut()
                    .zip(&target)
                    .for_each(|(value, to)| *value -= 0.05 * (*value - to));
                averager.step(&mut values).unwrap();
            }
            averager.settle(&mut values).unwrap();
            values
        });
        let largest =
            |values: &Values| values[0].iter().map(|value| value.abs()).fold(0.0, f32::max);
        all.iter().map(largest).fold(0.0, f32::max)
    };
    assert!(apart("sma:0.1", "topk:0.01") < 6.0);
    assert!(apart("diloco:2,delay=1,outer=sgd,lr=1", "topk:0.02") < 6.0);
}

#[test]
fn a_state_continues_bit_for_bit() {
    for (mode, codec) in [
        ("local:3", "int8"),
        ("diloco:4,fragments=2,delay=2", "topk:0.1"),
        ("diloco:3,outer=adam,lr=0.1", "int4"),
        ("sma:0.2", "int4"),
        ("pair:2", "none"),
    ] {
        let ranks = spawn(Network::Mem, 3, |link| {
            let channel = Channel::new(Group::new(link));
            let mut first = Trained::start(channel.clone(), mode, &options(codec));
            first.steps(7);
            first.averager.settle(&mut first.values).unwrap();
            let (state, values) = (first.averager.state(), first.values.clone());
            first.steps(9);
            first.averager.settle(&mut first.values).unwrap();
            let mut second = Trained::start(channel, mode, &options(codec));
            second.values = values;
            second.averager.load(&state, &second.values).unwrap();
            second.steps(9);
            second.averager.settle(&mut second.values).unwrap();
            assert_eq!(first.averager.state(), second.averager.state(), "{mode}");
            (first.values, second.values)
        });
        if mode.starts_with("pair") {
            // What ranks exchange depends on their speed.
            let (first, second): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
            assert_close(&mean_of(&second), &mean_of(&first), mode);
            continue;
        }
        assert!(ranks.iter().all(|(first, second)| first == second), "{mode} with {codec}");
    }
}

#[test]
fn a_training_ends_with_the_same_parameters_on_all_ranks() {
    for mode in ["local:4", "diloco:5,fragments=2,delay=3", "sma:0.1", "pair", "pair:3"] {
        let all = spawn(Network::Mem, 3, |link| {
            let mut trained =
                Trained::start(Channel::new(Group::new(link)), mode, &options("none"));
            trained.steps(7);
            trained.averager.finish(&mut trained.values).unwrap();
            trained.values
        });
        assert!(all.iter().all(|values| *values == all[0]), "{mode}");
        if !mode.starts_with("diloco") {
            assert_close(&mean_of(&all), &mean_alone(3, 7), mode);
        }
    }
}

#[test]
fn ranks_with_other_steps_do_not_end_with_other_parameters() {
    let ended = |steps: [u64; 2]| {
        spawn(Network::Mem, 2, |link| {
            let channel = Channel::new(Group::new(link));
            let mut trained = Trained::start(channel, "diloco:4", &options("none"));
            trained.steps(steps[trained.world.rank().index()]);
            let ended = trained.averager.finish(&mut trained.values).map(|_| ());
            (ended.map_err(|error| error.to_string()), trained.values)
        })
    };
    // After steps 8 and 7 the last round of one rank is another round of the training for the other.
    let [together, apart] = [[11, 9], [8, 7]].map(ended);
    assert!(together.iter().all(|ended| *ended == together[0] && ended.0.is_ok()));
    let error = "give every rank the same number of steps";
    assert!(apart.iter().all(|(ended, _)| ended.as_ref().unwrap_err().contains(error)));
}

/// The error of every rank that starts with a mode and parameters of its own.
fn refusals(codec: &str, mode: impl Fn(Rank) -> String + Sync, spoil: bool) -> Vec<String> {
    spawn(Network::Mem, 2, |link| {
        let channel = Channel::new(Group::new(link));
        let rank = channel.world().rank();
        let mut values = initial();
        if spoil {
            values[1][3] += rank.0 as f32;
        }
        let mode = mode(rank).parse().unwrap();
        Averager::start(channel, &parameters(), mode, &options(codec), &values)
            .unwrap_err()
            .to_string()
    })
}

#[test]
fn ranks_that_differ_are_refused() {
    let differ = refusals("none", |rank| format!("local:{}", rank.0 + 2), false);
    assert!(
        differ.iter().all(|error| error.contains("mode") && error.contains("local:2")),
        "{differ:?}"
    );
    for mode in ["local:2", "pair"] {
        let differ = refusals("none", |_| mode.to_owned(), true);
        assert!(differ.iter().all(|error| error.contains("hash of the parameters")), "{differ:?}");
    }
    let auto = refusals("auto", |_| "diloco:4".to_owned(), false);
    assert!(auto[0].contains("codec auto with mode diloco:4"), "{auto:?}");
    let pair = refusals("int8", |_| "pair".to_owned(), false);
    assert!(pair[0].contains("codec int8 with mode pair, expected none"), "{pair:?}");
    let many = refusals("none", |_| "diloco:200,fragments=110".to_owned(), false);
    assert!(many[0].contains("110 fragments of parameters with 109 rows together"), "{many:?}");
    let step = refusals("none", |_| "step".to_owned(), false);
    assert!(step[0].contains("mode step has no rounds"), "{step:?}");
}

#[test]
fn states_of_other_trainings_are_refused() {
    spawn(Network::Mem, 2, |link| {
        let channel = Channel::new(Group::new(link));
        let mut first = Trained::start(channel.clone(), "local:2", &options("int8"));
        first.steps(4);
        let state = first.averager.state();
        let mut other = Trained::start(channel.clone(), "local:3", &options("int8"));
        let error = other.averager.load(&state, &other.values).unwrap_err().to_string();
        assert!(error.contains("is of mode local:2, this training is of mode local:3"), "{error}");
        let mut same = Trained::start(channel, "local:2", &options("int8"));
        let mut lacking = state.clone();
        if same.world.rank() == Rank(1) {
            lacking.tensors.remove("common.wide");
        }
        same.steps(2);
        let before = same.averager.state();
        let error = same.averager.load(&lacking, &same.values).unwrap_err().to_string();
        assert!(error.contains("common.wide of 0 elements, expected 480"), "{error}");
        assert_eq!(same.averager.state(), before);
        same.averager.load(&state, &same.values).unwrap();
        assert_eq!(same.averager.state(), state);
    });
}

#[test]
fn rows_are_known_some_steps_later() {
    for size in [1, 2, 3, 5] {
        for lag in [0, 1, 4] {
            spawn(Network::Mem, size, |link| {
                let channel = Channel::new(Group::new(link));
                let rank = channel.world().rank().0 as f32;
                let mut rows = DelayedRows::new(channel, 2, lag);
                for step in 0..9 {
                    let known = rows.tell(&[rank, step as f32]).unwrap();
                    let expected = (step >= lag).then(|| {
                        let row = |rank: usize| [rank as f32, (step - lag) as f32];
                        (0..size).flat_map(row).collect::<Vec<_>>()
                    });
                    assert_eq!(known, expected);
                    if step % 3 == 2 {
                        rows.settle().unwrap();
                    }
                }
                rows.settle().unwrap();
            });
        }
    }
}

/// A rank after some of three have met anew: its parameters and those in common just before, its state a step earlier,
/// and what it is now.
struct Changed {
    before: (Values, Option<Values>),
    kept: AveragerState,
    trained: Trained,
}

/// Trains three ranks for so many steps each. Then the third goes and another one joins, and `then` is done.
fn changed<T: Send>(
    mode: &str,
    codec: &str,
    steps: [u64; 3],
    then: impl Fn(Changed) -> T + Sync,
) -> Vec<T> {
    let later = mem::mesh_of_epoch(1, 3).into_iter().map(|link| Mutex::new(Some(link)));
    let (later, parting) = (later.collect::<Vec<_>>(), Barrier::new(3));
    spawn(Network::Mem, 3, |link| {
        let rank = link.world().rank();
        let mut trained = Trained::start(Channel::new(Group::new(link)), mode, &options(codec));
        trained.steps(steps[rank.index()] - 1);
        let kept = trained.averager.state();
        trained.steps(1);
        // Nobody goes before the others have what it has sent.
        parting.wait();
        let before = (trained.values.clone(), trained.averager.common());
        let link = later[rank.index()].lock().unwrap().take().unwrap();
        let (world, channel) = (link.world(), Channel::new(Group::new(link)));
        if rank == Rank(2) {
            let (mode, mut values) = (mode.parse().unwrap(), trained.values);
            trained.averager.channel().stop().stop("killed");
            let joined = Averager::join(channel, &parameters(), mode, &options(codec), &mut values);
            trained = Trained { world, averager: joined.unwrap(), values };
        } else {
            trained.averager.reform(channel, &mut trained.values).unwrap();
        }
        then(Changed { before, kept, trained })
    })
}

/// What all ranks have in common of a state.
fn in_common(state: &AveragerState) -> Tensors {
    let mut tensors = state.tensors.clone();
    tensors.retain(|name, _| name.starts_with("common.") || name.starts_with("outer"));
    tensors
}

#[test]
fn ranks_that_meet_anew_have_all_in_common() {
    // The first rank has ended a round of the second fragment, of which the second rank has only seen the begin.
    for (mode, codec, alpha, missed) in [
        ("diloco:4,fragments=2,delay=2", "int4", 0.5, true),
        ("diloco:4,fragments=2,delay=2,alpha=0", "powersgd:2", 0.0, true),
        ("diloco:4,outer=adam,lr=0.1", "topk:0.1", 0.0, false),
        ("sma:0.3,every=4", "int8", 0.7, false),
    ] {
        let ranks = changed(mode, codec, [6, 5, 5], |changed| {
            let Changed { before, mut trained, .. } = changed;
            let (state, after) = (trained.averager.state(), trained.values.concat());
            let common = trained.averager.common().unwrap().concat();
            let mut moved = 0;
            for ((before, after), common) in before.0.concat().iter().zip(&after).zip(&common) {
                let drawn = alpha * before + (1.0 - alpha) * common;
                assert!(after == before || *after == drawn || trained.world.rank() == Rank(2));
                moved += u32::from(after != before);
            }
            match trained.world.rank() {
                Rank(0) => assert!(moved == 0 && before.1 == trained.averager.common(), "{mode}"),
                Rank(1) => assert_eq!(moved > 0, missed, "{mode}"),
                _ => assert_eq!(after, common, "{mode}"),
            }
            trained.steps(7);
            trained.averager.finish(&mut trained.values).unwrap();
            (in_common(&state), state.progress, trained.values)
        });
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{mode}");
        assert!(ranks[0].2.concat().iter().all(|value| value.is_finite()), "{mode}");
    }
}

/// The rounds and updates of each fragment.
fn counts(state: &AveragerState) -> serde_json::Value {
    serde_json::from_str::<serde_json::Value>(&state.progress).unwrap()["fragments"].clone()
}

#[test]
fn a_round_that_is_dropped_leaves_no_trace() {
    for (mode, codec) in
        [("diloco:4,delay=2", "int4"), ("diloco:4,fragments=2,delay=1", "topk:0.1")]
    {
        changed(mode, codec, [8, 8, 8], |Changed { before, kept, trained }| {
            if trained.world.rank() == Rank(2) {
                return;
            }
            assert_eq!(trained.values, before.0, "{mode}");
            let state = trained.averager.state();
            assert_eq!(state.tensors, kept.tensors, "{mode}");
            // The round that had begun is counted no more.
            assert_eq!(counts(&state), counts(&kept), "{mode}");
        });
    }
}

#[test]
fn pairs_that_meet_anew_end_with_the_same_parameters() {
    let all = changed("pair:2", "none", [3, 2, 3], |Changed { before, mut trained, .. }| {
        assert_eq!(trained.values, before.0);
        trained.steps(6);
        trained.averager.finish(&mut trained.values).unwrap();
        trained.values
    });
    assert!(all.iter().all(|values| *values == all[0]));
}
