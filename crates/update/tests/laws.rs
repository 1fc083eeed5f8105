//! Laws of all rules: the formulas of the papers, parts and the whole, rows that are not given.

use proptest::prelude::*;
use thinwire_update::{AdamWOptions, Optimizer, Rows, Rule, Step};

/// Values, gradients of some steps, and rates.
fn rounds() -> impl Strategy<Value = (f32, Vec<f32>)> {
    (-2.0_f32..2.0, prop::collection::vec(-3.0_f32..3.0, 1..8))
}

/// A rule's formula for one number in `f64`, as its paper has it: the value after all gradients.
fn reference(rule: &Rule, start: f64, gradients: &[f64], lr: f64) -> f64 {
    let (mut w, mut a, mut b) = (start, 0.0_f64, 0.0_f64);
    for (t, &g) in (1..).zip(gradients) {
        match *rule {
            Rule::Sgd => w -= lr * g,
            Rule::Momentum(o) => {
                a = f64::from(o.factor) * a + g;
                w -= lr * a;
            }
            Rule::Nesterov(o) => {
                a = f64::from(o.factor) * a + g;
                w -= lr * (g + f64::from(o.factor) * a);
            }
            Rule::Adam(o) | Rule::LazyAdam(o) => {
                let betas = (f64::from(o.beta1), f64::from(o.beta2));
                w -= lr * adam(&mut a, &mut b, g, t, betas);
            }
            Rule::AdamW(o) => {
                let betas = (f64::from(o.beta1), f64::from(o.beta2));
                w -= lr * (adam(&mut a, &mut b, g, t, betas) + f64::from(o.weight_decay) * w);
            }
            Rule::Ftrl(o) => {
                let sigma = ((b + g * g).sqrt() - b.sqrt()) / lr;
                a += g - sigma * w;
                b += g * g;
                let l1 = f64::from(o.l1);
                let scale = (f64::from(o.beta) + b.sqrt()) / lr + f64::from(o.l2);
                w = if a.abs() <= l1 { 0.0 } else { -(a - a.signum() * l1) / scale };
            }
            Rule::Adagrad(o) => {
                a += g * g;
                w -= lr * g / (a.sqrt() + f64::from(o.epsilon));
            }
        }
    }
    w
}

/// Kingma and Ba's direction, `m̂ / (sqrt(v̂) + epsilon)`.
fn adam(m: &mut f64, v: &mut f64, g: f64, t: i32, (beta1, beta2): (f64, f64)) -> f64 {
    *m = beta1 * *m + (1.0 - beta1) * g;
    *v = beta2 * *v + (1.0 - beta2) * g * g;
    (*m / (1.0 - beta1.powi(t))) / ((*v / (1.0 - beta2.powi(t))).sqrt() + 1e-8)
}

fn optimizers() -> Vec<Optimizer> {
    let mut optimizers: Vec<_> =
        Rule::all().into_iter().map(|rule| Optimizer { rule, learning_rate: 0.05 }).collect();
    optimizers.push(Optimizer::parse("ftrl:lr=0.05,l1=0.5,l2=0.3").unwrap());
    optimizers
}

fn step(number: u64, optimizer: &Optimizer) -> Step {
    Step { number, learning_rate: optimizer.learning_rate, gradient_scale: 0.5 }
}

proptest! {
    #[test]
    fn a_rule_is_the_formula_of_its_paper((start, gradients) in rounds()) {
        for optimizer in optimizers() {
            let rule = optimizer.rule;
            let (mut values, mut state) = ([start], vec![0.0; rule.slots()]);
            for (number, gradient) in (1..).zip(&gradients) {
                rule.update(&mut values, &[2.0 * gradient], &mut state, step(number, &optimizer));
            }
            let gradients: Vec<f64> = gradients.iter().map(|g| f64::from(*g)).collect();
            let rate = f64::from(optimizer.learning_rate);
            let expected = reference(&rule, f64::from(start), &gradients, rate);
            let found = f64::from(values[0]);
            prop_assert!((found - expected).abs() < 2e-5, "{optimizer}: {found}, not {expected}");
        }
    }

    #[test]
    fn parts_give_the_bits_of_the_whole(
        gradient in prop::collection::vec(-3.0_f32..3.0, 1..60), cut in 0_usize..60
    ) {
        let cut = cut.min(gradient.len());
        for optimizer in optimizers() {
            let (rule, length) = (optimizer.rule, gradient.len());
            let mut whole = (vec![0.5; length], vec![0.0; rule.slots() * length]);
            let start = |length: usize| (vec![0.5; length], vec![0.0; rule.slots() * length]);
            let (mut left, mut right) = (start(cut), start(length - cut));
            for number in 1..4 {
                let step = step(number, &optimizer);
                rule.update(&mut whole.0, &gradient, &mut whole.1, step);
                rule.update(&mut left.0, &gradient[..cut], &mut left.1, step);
                rule.update(&mut right.0, &gradient[cut..], &mut right.1, step);
            }
            left.0.extend(right.0);
            prop_assert_eq!(bits(&left.0), bits(&whole.0), "{}", optimizer);
        }
    }

    #[test]
    fn rows_that_are_not_given_are_untouched(
        touched in prop::collection::vec(prop::collection::btree_set(0_u32..6, 0..6), 1..5)
    ) {
        const WIDTH: usize = 3;
        for optimizer in optimizers() {
            let slots = optimizer.rule.slots() * WIDTH;
            let (mut values, mut state) = (vec![0.5; 6 * WIDTH], vec![0.0; 6 * slots]);
            let mut updates = vec![0; 6];
            let mut alone = vec![(vec![0.5; WIDTH], vec![0.0; slots], 0_u64); 6];
            for places in &touched {
                let places: Vec<u32> = places.iter().copied().collect();
                let gradient: Vec<f32> =
                    (0..places.len() * WIDTH).map(|i| (i as f32 * 0.7).sin()).collect();
                let (width, values, state) = (WIDTH, &mut values[..], &mut state[..]);
                let mut rows = Rows { width, values, state, updates: &mut updates };
                optimizer.update_rows(&mut rows, &places, &gradient);
                for (place, gradient) in places.iter().zip(gradient.chunks(WIDTH)) {
                    let (values, state, number) = &mut alone[*place as usize];
                    *number += 1;
                    let step = Step { gradient_scale: 1.0, ..step(*number, &optimizer) };
                    optimizer.rule.update(values, gradient, state, step);
                }
            }
            for (place, (expected, _, number)) in alone.iter().enumerate() {
                let found = &values[place * WIDTH..][..WIDTH];
                prop_assert_eq!(bits(found), bits(expected), "row {} of {}", place, optimizer);
                prop_assert_eq!(u64::from(updates[place]), *number);
            }
        }
    }

    #[test]
    fn a_lazy_rule_is_one_that_a_zero_gradient_does_not_move((start, gradients) in rounds()) {
        for optimizer in optimizers() {
            let rule = optimizer.rule;
            let (mut values, mut state) = ([start], vec![0.0; rule.slots()]);
            let mut last = 0;
            for (number, gradient) in (1..).zip(&gradients) {
                rule.update(&mut values, &[gradient + 4.0], &mut state, step(number, &optimizer));
                last = number;
            }
            let before = values;
            rule.update(&mut values, &[0.0], &mut state, step(last + 1, &optimizer));
            // Lazy Adam is lazy by definition: it leaves rows out that Adam would move.
            let moves = !rule.is_lazy() || matches!(rule, Rule::LazyAdam(_));
            prop_assert_eq!(before != values, moves, "{}", optimizer);
        }
    }
}

/// AdamW is bit for bit what the native trainer ran before its rule was moved here.
#[test]
fn adamw_has_the_bits_that_it_had() {
    let cases = [
        (0.01, 0.5, 0.1, 0x4b3c_2670_5bda_570a),
        (3e-4, 0.37, 0.0, 0x3275_53c4_762a_7566),
        (0.05, 1.0, 0.1, 0xb7bc_f42a_2b2d_9174),
    ];
    for (learning_rate, gradient_scale, weight_decay, expected) in cases {
        let rule = Rule::AdamW(AdamWOptions { weight_decay, ..AdamWOptions::default() });
        let start = |i: usize| (i * 7919 % 2003) as f32 / 1001.0 - 1.0;
        let mut values: Vec<f32> = (0..1003).map(start).collect();
        let mut state = vec![0.0; 2 * values.len()];
        for number in 1..=200 {
            let at = |i: u64| ((i * 104_729 + number * 31) % 1999) as f32 / 999.0 - 1.0;
            let gradient: Vec<f32> = (0..1003).map(at).collect();
            let step = Step { number, learning_rate, gradient_scale };
            rule.update(&mut values, &gradient, &mut state, step);
        }
        let hash = bits(&values).into_iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, bits| {
            (hash ^ u64::from(bits)).wrapping_mul(0x100_0000_01b3)
        });
        assert_eq!(hash, expected, "rate {learning_rate}");
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
