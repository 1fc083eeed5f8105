//! Gradients that are averaged in every step and applied some steps later.

mod made;

use std::ops::Range;
use std::time::Instant;

use made::normal;
use thinwire_collective::Group;
use thinwire_sync::{Channel, Delayed, Due, Options, Outcome, Parameter, Synchronizer};
use thinwire_testkit::{Network, spawn};
use thinwire_wire::Rank;

type Values = Vec<Vec<f32>>;

fn parameters() -> Vec<Parameter> {
    [("wide", &[24, 20][..]), ("bias", &[24]), ("tall", &[61, 4])]
        .map(|(name, shape)| Parameter::new(name, shape))
        .into()
}

fn options(codec: &str) -> Options {
    Options { policy: codec.parse().unwrap(), bucket_bytes: 1_000, seed: 3, ..Options::default() }
}

#[test]
fn without_a_delay_gradients_are_those_of_a_step() {
    for codec in ["none", "int4", "topk:0.1", "powersgd:2"] {
        let averages = |sync: &Synchronizer| -> Values {
            (0..parameters().len()).map(|index| sync.gradient(index).to_vec()).collect()
        };
        let gradients = |rank: Rank, step: u64| -> Values {
            let one = |(index, it): (usize, &Parameter)| normal(rank.0, step, index, it.elements());
            parameters().iter().enumerate().map(one).collect()
        };
        let by_steps = spawn(Network::Mem, 3, |link| {
            let mut sync = Synchronizer::start(link, parameters(), options(codec)).unwrap();
            let rank = sync.world().rank();
            let step = |step| {
                sync.begin(step).unwrap();
                for (index, gradient) in gradients(rank, step).iter().enumerate() {
                    sync.ready(index, gradient).unwrap();
                }
                assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
                averages(&sync)
            };
            (0..4).map(step).collect::<Vec<_>>()
        });
        for steps in [0, 1, 3] {
            let delayed = spawn(Network::Mem, 3, |link| {
                let channel = Channel::new(Group::new(link));
                let rank = channel.world().rank();
                let mut delayed =
                    Delayed::start(&channel, &parameters(), steps, &options(codec)).unwrap();
                let mut all = Vec::new();
                for step in 0..4 {
                    let gradients = gradients(rank, step);
                    let gradients: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
                    let due = delayed.exchange(&gradients, Instant::now()).unwrap();
                    assert_eq!(due.is_some(), step >= steps);
                    all.extend(due.map(|due| (due.step, averages(due.sync))));
                }
                while let Some(due) = delayed.end().unwrap() {
                    all.push((due.step, averages(due.sync)));
                }
                all
            });
            for (found, expected) in delayed.iter().zip(&by_steps) {
                assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 1, 2, 3]);
                // What a codec owes depends on the steps that it has seen.
                let known = if steps == 0 || codec == "none" { 4 } else { 1 };
                for (step, found) in &found[..known] {
                    assert_eq!(*found, expected[*step as usize], "{codec}, {steps} late, {step}");
                }
            }
        }
    }
}

#[test]
fn delayed_gradients_continue_from_a_state_bit_for_bit() {
    spawn(Network::Mem, 2, |link| {
        let channel = Channel::new(Group::new(link));
        let rank = channel.world().rank();
        // Each of two exchanges has raw gradients in its first two steps.
        let options = Options { warm_up_steps: 2, ..options("topk:0.1") };
        let start = || Delayed::start(&channel, &parameters(), 1, &options).unwrap();
        let averages = |delayed: &mut Delayed, steps: Range<u64>| {
            let mut all: Vec<Values> = Vec::new();
            let mut take = |due: Due<'_>| {
                let of = |index| due.sync.gradient(index).to_vec();
                all.push((0..parameters().len()).map(of).collect());
            };
            for step in steps {
                let one =
                    |(index, it): (usize, &Parameter)| normal(rank.0, step, index, it.elements());
                let gradients: Values = parameters().iter().enumerate().map(one).collect();
                let gradients: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
                delayed
                    .exchange(&gradients, Instant::now())
                    .unwrap()
                    .into_iter()
                    .for_each(&mut take);
            }
            while let Some(due) = delayed.end().unwrap() {
                take(due);
            }
            all
        };
        for done in [2, 6] {
            let (mut first, mut second) = (start(), start());
            averages(&mut first, 0..done);
            second.load(&first.tensors(), done).unwrap();
            let expected = averages(&mut first, done..done + 6);
            assert_eq!(averages(&mut second, done..done + 6), expected, "after step {done}");
        }
    });
}
