//! Laws of 1-bit and 0/1 Adam: AdamW in the warm-up, a fixed variance after it, residuals that owe nothing for good, and
//! ranks that are alike whenever something has travelled.

use proptest::prelude::*;
use thinwire_collective::Group;
use thinwire_link::Link;
use thinwire_sync::Options;
use thinwire_testkit::{Network, spawn};

use super::*;
use crate::spmd::{ExchangeOptions, Executor, GraphModel, initial};
use crate::testing::{batch, gradients, model};
use crate::{AdamWOptions, Batch, Pace};

const STEPS: u64 = 8;
/// Steps of the warm-up.
const RAW: u64 = 5;
const ADAMW: AdamWOptions =
    AdamWOptions { beta1: 0.8, beta2: 0.9, epsilon: 1e-6, weight_decay: 0.1 };
const RATE: f32 = 0.01;
/// Steps of 0/1 Adam, and the one from which on the learning rate is a quarter.
const LONG: u64 = 120;
const LATE: u64 = 90;

/// A rank after a step: what it has of each parameter, and what it owes.
#[derive(Clone, Debug, PartialEq)]
struct After {
    values: Vec<Vec<f32>>,
    means: Vec<Vec<f32>>,
    squares: Vec<Vec<f32>>,
    /// Values with which the rank computes.
    shown: Vec<Vec<f32>>,
    owed: Tensors,
    is_warm: bool,
    sent_bytes: u64,
}

impl After {
    fn of(model: &GraphModel, executor: &mut Executor<'_>) -> After {
        let shards = executor.shards();
        let all = |suffix: &str| -> Vec<Vec<f32>> {
            let names = model.parameters().iter().map(|it| format!("{}{suffix}", it.name));
            // A whole parameter begins at its first element.
            let is_it = |part: &str, name: &str| part.split('@').next() == Some(name);
            let named = |name: String| shards.iter().find(|(part, _)| is_it(part, &name));
            names.map(|name| named(name).unwrap().1.1.clone()).collect()
        };
        let [values, means, squares] = ["", ".mean", ".square"].map(all);
        let mut owed = executor.sync().state().tensors;
        owed.retain(|name, _| name.starts_with("residual."));
        let (is_warm, sent_bytes) =
            (!executor.sync().is_in_warm_up(), executor.record().total(|it| it.sent_bytes));
        let mut whole = executor.whole().unwrap().unwrap();
        let shown = model.parameters().iter().map(|it| whole.remove(&it.name).unwrap());
        let shown = shown.collect();
        After { values, means, squares, shown, owed, is_warm, sent_bytes }
    }

    /// Parameters and moments as bits.
    fn bits(&self) -> Vec<u32> {
        let all = [&self.values, &self.shown, &self.means, &self.squares];
        all.into_iter().flatten().flatten().map(|value| value.to_bits()).collect()
    }
}

fn rows(seed: u64, rank: u32, step: u64) -> Batch {
    batch(4, 8, 1000 * seed + 100 * u64::from(rank) + step)
}

/// The learning rate of a step.
fn pace(step: u64) -> Pace {
    let learning_rate = if step < LATE { RATE } else { RATE / 4.0 };
    Pace { learning_rate, gradient_scale: 1.0 }
}

/// A rank before the first step.
fn started<'m>(
    model: &'m GraphModel,
    link: Link,
    seed: u64,
    adam: Adam,
    codec: &str,
) -> Executor<'m> {
    let warm_up_steps = if adam == Adam::OneBit { RAW } else { 0 };
    let policy = codec.parse().unwrap();
    let sync = Options { policy, warm_up_steps, bucket_bytes: 2_000, ..Options::default() };
    let options = ExchangeOptions { sync, adam, ..ExchangeOptions::default() };
    let start = initial(&model.training().graph, seed);
    let (plan, group) = (model.plan(1), Group::new(link));
    Executor::new(model.training(), &plan, group, &start, options).unwrap()
}

/// What each of two ranks has before the first step and after each one.
fn trained(seed: u64, adam: Adam, codec: &str, steps: u64) -> Vec<Vec<After>> {
    spawn(Network::Mem, 2, |link| {
        let (model, rank) = (model(8), link.world().rank().0);
        let mut executor = started(&model, link, seed, adam, codec);
        let mut all = vec![After::of(&model, &mut executor)];
        for step in 0..steps {
            let inputs = model.micro_batches(&rows(seed, rank, step));
            executor.step(&inputs, pace(step), &ADAMW).unwrap();
            all.push(After::of(&model, &mut executor));
        }
        executor.settle().unwrap();
        assert_eq!(executor.sent_bytes(), executor.predicted_bytes());
        all.push(After::of(&model, &mut executor));
        all
    })
}

/// Gradients of a rank in a step, at some values, in the model's order.
fn gradients_of(seed: u64, rank: u32, step: u64, values: &[Vec<f32>]) -> Vec<Vec<f32>> {
    gradients(&model(8), values, &rows(seed, rank, step)).1
}

fn close(found: f32, expected: f64, scale: f64) -> bool {
    (f64::from(found) - expected).abs() <= 2e-5 * scale.max(expected.abs())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn the_warm_up_is_adamw_and_ranks_are_alike(seed in 0_u64..1000) {
        let raw = trained(seed, Adam::AdamW, "none", STEPS);
        let ranks = trained(seed, Adam::OneBit, "onebit", STEPS);
        for step in 0..=STEPS as usize {
            let [one, other] = [0, 1].map(|rank| &ranks[rank][step]);
            prop_assert_eq!(one.bits(), other.bits());
            prop_assert_eq!(one.is_warm, step >= RAW as usize);
            let is_same = one.bits() == raw[0][step].bits();
            prop_assert_eq!(is_same, step <= RAW as usize, "step {}", step);
            if step > RAW as usize {
                prop_assert_eq!(&one.squares, &ranks[0][RAW as usize].squares);
                prop_assert!(!one.owed.is_empty());
            }
        }
    }

    #[test]
    fn after_the_warm_up_it_is_adamw_of_a_fixed_variance(seed in 0_u64..1000) {
        let all = &trained(seed, Adam::OneBit, "none", STEPS)[0];
        let corrected = |beta: f32, updates: u64| 1.0 - f64::from(beta).powi(updates as i32);
        for step in RAW..STEPS {
            let [before, after] = [step, step + 1].map(|at| &all[at as usize]);
            let shares = [0, 1].map(|rank| gradients_of(seed, rank, step, &before.values));
            for (index, parameter) in model(8).parameters().iter().enumerate() {
                let decay = if parameter.is_matrix() { f64::from(ADAMW.weight_decay) } else { 0.0 };
                for at in 0..parameter.elements() {
                    let of = |all: &Vec<Vec<f32>>| f64::from(all[index][at]);
                    let gradient = shares.iter().map(of).sum::<f64>() / 2.0;
                    let beta1 = f64::from(ADAMW.beta1);
                    let mean = beta1 * of(&before.means) + (1.0 - beta1) * gradient;
                    let root = (of(&before.squares) / corrected(ADAMW.beta2, RAW)).sqrt();
                    let direction = mean / corrected(ADAMW.beta1, step + 1);
                    let direction = direction / (root + f64::from(ADAMW.epsilon));
                    let value = of(&before.values);
                    let expected = value - f64::from(RATE) * (direction + decay * value);
                    prop_assert!(close(after.means[index][at], mean, 1e-2));
                    prop_assert!(close(after.values[index][at], expected, 0.1));
                }
            }
        }
    }

    #[test]
    fn what_is_sent_and_owed_are_the_momenta(seed in 0_u64..1000) {
        let ranks = trained(seed, Adam::OneBit, "onebit", STEPS);
        for step in RAW..STEPS {
            let [before, after] =
                [step, step + 1].map(|at| [0, 1].map(|rank| &ranks[rank][at as usize]));
            let shares = [0, 1].map(|rank| gradients_of(seed, rank, step, &before[0].values));
            for (index, parameter) in model(8).parameters().iter().enumerate() {
                let owed = |all: [&After; 2], at: usize| -> f64 {
                    let name = format!("residual.{}", parameter.name);
                    let of = |one: &After| one.owed.get(&name).map_or(0.0, |(_, values)| values[at]);
                    all.into_iter().map(|one| f64::from(of(one))).sum()
                };
                for at in 0..parameter.elements() {
                    let beta1 = f64::from(ADAMW.beta1);
                    let momentum = |share: &Vec<Vec<f32>>| {
                        let mean = f64::from(before[0].means[index][at]);
                        beta1 * mean + (1.0 - beta1) * f64::from(share[index][at])
                    };
                    let given = shares.iter().map(momentum).sum::<f64>() / 2.0 + owed(before, at);
                    let got = f64::from(after[0].means[index][at]) + owed(after, at);
                    prop_assert!((got - given).abs() <= 1e-6, "{got} and {given}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]

    #[test]
    fn ranks_of_zero_one_adam_are_alike_after_every_exchange(seed in 0_u64..1000) {
        let raw = trained(seed, Adam::AdamW, "none", 20);
        let ranks = trained(seed, Adam::ZeroOne, "onebit", LONG);
        let mut local = 0;
        for step in 0..=LONG as usize + 1 {
            let [one, other] = [0, 1].map(|rank| &ranks[rank][step]);
            // Its first updates change the variance, all of them.
            prop_assert_eq!(one.bits() == raw[0][step.min(20)].bits(), step <= 17);
            prop_assert_eq!(&one.values, &other.values);
            if step > 0 && step <= LONG as usize && one.sent_bytes == 0 {
                local += 1;
                prop_assert!(one.shown != other.shown && one.means != other.means);
            } else {
                prop_assert_eq!(one.bits(), other.bits(), "step {}", step);
            }
        }
        // Three of four steps once the learning rate is a quarter, unless the variance has settled late.
        prop_assert!((12..=24).contains(&local), "{} local steps", local);
    }

    #[test]
    fn an_exchange_gives_all_ranks_the_mean_of_their_parameters(seed in 0_u64..1000) {
        let ranks = trained(seed, Adam::ZeroOne, "none", LONG);
        let last = LONG as usize;
        // The last exchange ends steps that ranks have taken on their own.
        let [before, after] = [last, last + 1].map(|at| [0, 1].map(|rank| &ranks[rank][at]));
        prop_assert!(before[0].shown != before[1].shown);
        for (index, values) in after[0].values.iter().enumerate() {
            for (at, value) in values.iter().enumerate() {
                let shown = before.map(|one| f64::from(one.shown[index][at]));
                prop_assert!(close(*value, (shown[0] + shown[1]) / 2.0, 0.1));
            }
        }
    }
}

/// A training may end, or have a checkpoint, after any step.
#[test]
fn steps_of_ranks_alone_end_after_an_exchange_that_was_skipped() {
    let ranks = spawn(Network::Mem, 2, |link| {
        let (model, rank) = (model(8), link.world().rank().0);
        let mut executor = started(&model, link, 3, Adam::ZeroOne, "onebit");
        let (mut step, mut alone) = (0, 0);
        // Momenta travel in every fourth step in the end.
        while alone < 3 {
            let inputs = model.micro_batches(&rows(3, rank, step));
            executor.step(&inputs, pace(step), &ADAMW).unwrap();
            let is_alone = executor.record().total(|it| it.sent_bytes) == 0;
            (step, alone) = (step + 1, if is_alone { alone + 1 } else { 0 });
            assert!(step < LONG, "ranks take no steps alone");
        }
        let kept = executor.values().clone();
        if rank == 1 {
            executor.values_mut()[0].fill(f32::NAN);
            executor.use_values();
        }
        let inputs = model.micro_batches(&rows(3, rank, step));
        executor.step(&inputs, pace(step), &ADAMW).unwrap();
        assert!(executor.record().total(|it| it.sent_bytes) > 0);
        assert!(executor.gradient_norm().is_nan());
        *executor.values_mut() = kept;
        executor.use_values();
        let apart = After::of(&model, &mut executor);
        executor.settle().unwrap();
        (apart, After::of(&model, &mut executor))
    });
    let [one, other] = [0, 1].map(|rank| &ranks[rank]);
    assert!(one.0.shown != other.0.shown);
    assert_eq!(one.1.bits(), other.1.bits());
}

#[test]
fn gradients_travel_ever_more_rarely() {
    assert_eq!(
        [0, 1, 16, 17, 18, 48, 49, 52].map(variance_updates),
        [0, 1, 16, 17, 17, 32, 33, 33]
    );
    let all: Vec<u64> = (0..500).filter(|update| changes_variance(*update)).collect();
    for (at, pair) in all.windows(2).enumerate() {
        assert_eq!(pair[1] - pair[0], 1 << (at / 16), "after update {at}");
    }
    let between = [1.0, 0.6, 0.5, 0.26, 0.25, 0.1, 0.01, 0.0].map(|rate| steps_between(1.0, rate));
    assert_eq!(between, [1, 1, 2, 2, 4, 8, 16, 16]);
}

#[test]
fn names_read_as_they_are_shown() {
    for adam in Adam::ALL {
        assert_eq!(adam.to_string().parse(), Ok(adam));
    }
    let error = "adamm".parse::<Adam>().unwrap_err();
    let names = "adamw, onebit-adam, zero-one-adam";
    assert_eq!(error, format!("unknown optimizer 'adamm', expected one of {names}"));
}

/// The numbers of python/tests/test_torch_onebit.py: both follow one rule.
#[test]
fn a_variance_settles_when_it_stays() {
    let again = |variance: &Variance| {
        let mut tensors = Tensors::new();
        variance.save(&mut tensors);
        Variance::load(&tensors)
    };
    let (mut variance, mut updates) = (Variance::default(), 1);
    // 1 - 0.9^n is at least 1.04 times what it was ten updates before up to the 36th.
    while !variance.settles(1.0 - 0.9_f64.powi(updates), 0.9) {
        updates += 1;
        assert_eq!(again(&variance), variance);
    }
    assert_eq!(updates, 37);
    variance.fix(37);
    variance.fix(38);
    assert_eq!(variance.fixed, Some(37));
    assert_eq!(again(&variance), variance);
    assert_eq!(again(&Variance::default()), Variance::default());
}

#[test]
fn an_exchange_that_momenta_do_not_follow_is_refused() {
    let model = model(8);
    let refusal = |options: ExchangeOptions| {
        let options = ExchangeOptions { adam: Adam::OneBit, ..options };
        let start = initial(&model.training().graph, 1);
        let group = Group::new(thinwire_link::mem::alone());
        let executor = Executor::new(model.training(), &model.plan(1), group, &start, options);
        executor.unwrap_err().to_string()
    };
    let sync = Options { policy: "auto".parse().unwrap(), ..Options::default() };
    let auto = ExchangeOptions { sync, ..ExchangeOptions::default() };
    assert_eq!(refusal(auto), "optimizer onebit-adam with codec auto, expected adamw");
    let local = ExchangeOptions { is_local: true, ..ExchangeOptions::default() };
    let expected = "optimizer onebit-adam in a mode that exchanges parameters, expected adamw";
    assert_eq!(refusal(local), expected);
}
