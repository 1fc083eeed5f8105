//! Samples: every operator on operands of random sizes.

use std::sync::Arc;

use thinwire_model::{
    Activation, ActivationBackward, Arithmetic, Array, Attention, AttentionBackward, BatchNorm,
    BatchNormBackward, Broadcast, Combine, CombineGates, Constant, Conv2d, Conv2dInput,
    Conv2dWeight, CrossEntropy, CrossEntropyBackward, Dispatch, Dropout, Embedding,
    EmbeddingBackward, Epsilon, Fill, LayerNorm, LayerNormBackward, Linear, MatMul, Moments,
    MomentsBackward, Operator, Pack, Place, Pool, PoolBackward, PoolKind, Reshape, RmsNorm,
    RmsNormBackward, Rotary, Route, RouteBackward, Scale, Softmax, SoftmaxBackward, Sum, Summed,
    Transpose, Unpack,
};
use thinwire_wire::random::{Key, permutation};

/// What an operand's values must be like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Between -2 and 2, all different, none near zero.
    Any,
    /// Between 3 and 7.
    Positive,
    /// Around ten times as much as a hundred values.
    Large,
    /// Mostly zero, the others positive; what is zero stays so.
    Gates,
    /// Whole numbers below this.
    Index(usize),
}

/// An operator with its operands.
#[derive(Clone, Debug)]
pub struct Sample {
    pub operator: Operator,
    pub inputs: Vec<(Vec<usize>, Values)>,
}

impl Sample {
    fn new(operator: impl Into<Operator>, inputs: &[(&[usize], Values)]) -> Sample {
        let inputs = inputs.iter().map(|(shape, values)| (shape.to_vec(), *values)).collect();
        Sample { operator: operator.into(), inputs }
    }

    /// An operator of operands of any values.
    fn plain(operator: impl Into<Operator>, shapes: &[&[usize]]) -> Sample {
        let inputs: Vec<_> = shapes.iter().map(|shape| (*shape, Values::Any)).collect();
        Sample::new(operator, &inputs)
    }

    /// Values for all inputs.
    pub fn arrays(&self, seed: u64) -> Vec<Array> {
        let filled = |(tensor, (shape, values)): (usize, &(Vec<usize>, Values))| {
            array(shape, *values, Key { seed, step: 1, tensor: tensor as u32 })
        };
        self.inputs.iter().enumerate().map(filled).collect()
    }

    pub fn shapes(&self) -> Vec<&[usize]> {
        self.inputs.iter().map(|(shape, _)| &shape[..]).collect()
    }
}

/// An array of values of a sort.
pub fn array(shape: &[usize], values: Values, key: Key) -> Array {
    let count: usize = shape.iter().product();
    let order = permutation(key, count as u32);
    let spread = |place: usize| (f64::from(order[place]) + 0.37) / count as f64 * 4.0 - 2.0;
    let value = |place: usize| match values {
        Values::Any => spread(place),
        Values::Positive => spread(place) + 5.0,
        Values::Large => spread(place) + 1000.0,
        Values::Gates if key.below(place as u64, 3) > 0 => 0.0,
        Values::Gates => spread(place) + 3.0,
        Values::Index(bound) => f64::from(key.below(place as u64, bound as u32)),
    };
    Array::new(shape, (0..count).map(value).collect())
}

/// Sizes drawn one after the other.
struct Dice {
    key: Key,
    thrown: u64,
}

impl Dice {
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        self.thrown += 1;
        choices[self.key.below(self.thrown, choices.len() as u32) as usize]
    }

    fn size(&mut self) -> usize {
        self.of(&[1, 2, 3, 4, 6])
    }
}

/// At least one sample of every operator.
pub fn samples(seed: u64) -> Vec<Sample> {
    let mut dice = Dice { key: Key { seed, step: 0, tensor: 0 }, thrown: 0 };
    let parts = [products, norms, elements, shapes, attention, images, classes, experts];
    parts.iter().flat_map(|part| part(&mut dice)).collect()
}

fn products(dice: &mut Dice) -> Vec<Sample> {
    let [b, s, k, n] = [(); 4].map(|()| dice.size());
    let padding = dice.of(&[None, Some(n / 2)]);
    vec![
        Sample::plain(Linear::plain(), &[&[b, s, k], &[k, n]]),
        Sample::plain(Linear::biased(), &[&[b, k], &[k, n], &[n]]),
        Sample::plain(Linear { turned: true, ..Linear::biased() }, &[&[b, s, k], &[n, k], &[n]]),
        Sample::plain(MatMul::new("bsk", "bkn", "bsn"), &[&[b, s, k], &[b, k, n]]),
        Sample::plain(MatMul::new("bk", "nk", "nb"), &[&[b, k], &[n, k]]),
        Sample::new(Embedding::plain(), &[(&[n, k], Values::Any), (&[b, s], Values::Index(n))]),
        Sample::new(
            EmbeddingBackward { rows: n, padding },
            &[(&[b, s], Values::Index(n)), (&[b, s, k], Values::Any)],
        ),
    ]
}

fn norms(dice: &mut Dice) -> Vec<Sample> {
    let [b, s] = [(); 2].map(|()| dice.size());
    let n = dice.of(&[2, 3, 5]);
    let epsilon = Epsilon { value: dice.of(&[1e-5, 0.1]) };
    let (layer_norm, rms_norm) = (LayerNorm(epsilon), RmsNorm(epsilon));
    let (x, n): (&[usize], &[usize]) = (&[b, s, n], &[n]);
    vec![
        Sample::plain(layer_norm, &[x, n, n]),
        Sample::plain(LayerNormBackward(layer_norm), &[x, n, x]),
        Sample::plain(rms_norm, &[x, n]),
        Sample::plain(RmsNormBackward(rms_norm), &[x, n, x]),
        Sample::plain(Softmax { causal: false }, &[x]),
        Sample::plain(Softmax { causal: true }, &[&[b, s, s]]),
        Sample::plain(SoftmaxBackward, &[x, x]),
    ]
}

fn elements(dice: &mut Dice) -> Vec<Sample> {
    let [b, s, n] = [(); 3].map(|()| dice.size());
    let x: &[usize] = &[b, s, n];
    let function = dice.of(&[
        Activation::Relu,
        Activation::Gelu,
        Activation::GeluErf,
        Activation::Silu,
        Activation::Sigmoid,
        Activation::Tanh,
    ]);
    let mut samples = vec![
        Sample::plain(function, &[x]),
        Sample::plain(ActivationBackward(function), &[x, x]),
        Sample::plain(Scale(-1.5), &[x]),
        Sample::plain(Dropout { rate: 0.3, stream: 7 }, &[x]),
    ];
    let operations =
        [Arithmetic::Add, Arithmetic::Subtract, Arithmetic::Multiply, Arithmetic::Divide];
    for operation in operations {
        let smaller: [&[usize]; 6] = [x, &[s, n], &[n], &[], &[b, 1, n], &[s, 1]];
        let smaller = (dice.of(&smaller), Values::Positive);
        samples.push(Sample::new(operation, &[(x, Values::Any), smaller]));
    }
    samples
}

fn counted(elements: usize) -> Arc<[f32]> {
    (0..elements).map(|value| value as f32).collect()
}

fn shapes(dice: &mut Dice) -> Vec<Sample> {
    let [b, s, n] = [(); 3].map(|()| dice.size());
    let x: &[usize] = &[b, s, n];
    let summed = || Sum { dims: vec![Summed::Away, Summed::ToOne] };
    let (pieces, sections) = (dice.of(&[1, 2, 4]), vec![2, 1]);
    let heads: &[usize] = &[b, pieces * 3, n];
    vec![
        Sample::plain(summed(), &[x]),
        Sample::plain(Sum::over(0..3), &[x]),
        Sample::plain(Broadcast { shape: x.to_vec(), sum: summed() }, &[&[1, n]]),
        Sample::new(Fill { shape: x.to_vec(), value: 3.0 }, &[]),
        Sample::new(Constant { shape: x.to_vec(), values: counted(b * s * n) }, &[]),
        Sample::plain(Reshape { shape: vec![b, s * n] }, &[x]),
        Sample::plain(Place { cuts: [("tensor".to_owned(), 'n')].into() }, &[x]),
        Sample::plain(Reshape { shape: vec![s, 2, n, 2] }, &[&[2 * s, 2 * n]]),
        Sample::plain(Reshape { shape: vec![6, 2] }, &[&[4, 3]]),
        Sample::plain(Transpose::new("bsn", "nbs"), &[x]),
        Sample::plain(Unpack { dim: 1, pieces, sections: sections.clone() }, &[heads]),
        Sample::plain(Pack { dim: 1, pieces, sections }, &[&[b, pieces * 2, n], &[b, pieces, n]]),
    ]
}

fn attention(dice: &mut Dice) -> Vec<Sample> {
    let [b, s, t] = [(); 3].map(|()| dice.of(&[1, 2, 3, 4]));
    let (groups, queries_per_key, causal) =
        (dice.of(&[1, 2, 4]), dice.of(&[1, 2]), dice.of(&[true, false]));
    let operator = Attention { head_size: 2, queries_per_key, causal };
    let t = if causal { s } else { t };
    let q: &[usize] = &[b, s, groups * queries_per_key * 2];
    let k: &[usize] = &[b, t, groups * 2];
    let rotary = Rotary { head_size: 2, base: 100.0, back: dice.of(&[true, false]) };
    vec![
        Sample::plain(operator, &[q, k, k]),
        Sample::plain(AttentionBackward(operator), &[q, k, k, q]),
        Sample::plain(rotary, &[k]),
    ]
}

fn images(dice: &mut Dice) -> Vec<Sample> {
    let [b, c, o] = [(); 3].map(|()| dice.of(&[1, 2, 4]));
    let groups = dice.of(&[1, 1, 2, 4]);
    let size = [(); 2].map(|()| dice.of(&[1, 2, 3]));
    let stride = [(); 2].map(|()| dice.of(&[1, 2]));
    let dilation = [(); 2].map(|()| dice.of(&[1, 2]));
    let padding = [(); 4].map(|()| dice.of(&[0, 1, 2]));
    let forward = Conv2d { stride, padding, dilation, groups };
    let image = [5, 6];
    let windows = |dilation: [usize; 2], padding: [usize; 4]| {
        [0, 1].map(|dim| {
            let reach = (size[dim] - 1) * dilation[dim] + 1;
            (image[dim] + padding[dim] + padding[dim + 2] - reach) / stride[dim] + 1
        })
    };
    let [rows, columns] = windows(dilation, padding);
    let x: &[usize] = &[b, c, 5, 6];
    let all: &[usize] = &[b, groups * c, 5, 6];
    let y: &[usize] = &[b, groups * o, rows, columns];
    let weight: &[usize] = &[groups * o, c, size[0], size[1]];
    let kind = dice.of(&[PoolKind::Max, PoolKind::Mean]);
    let pool = Pool { kind, size, stride, padding: padding.map(|pixels| pixels.min(1)) };
    let [pool_rows, pool_columns] = windows([1, 1], pool.padding);
    let (any, large) = (Values::Any, Values::Large);
    let batch_norm = BatchNorm(Epsilon { value: dice.of(&[1e-5, 0.1]) });
    let statistics = [(x, any), (&[c], any), (&[c][..], large), (&[c], any)];
    vec![
        Sample::plain(forward, &[all, weight]),
        Sample::plain(Conv2dInput { forward, image }, &[y, weight]),
        Sample::plain(Conv2dWeight { forward, kernel: size }, &[all, y]),
        Sample::plain(pool, &[x]),
        Sample::plain(PoolBackward(pool), &[x, &[b, c, pool_rows, pool_columns]]),
        Sample::plain(Moments, &[x]),
        Sample::plain(MomentsBackward, &[x, &[c], &[c]]),
        Sample::new(batch_norm, &[&statistics[..], &[(&[c], any)]].concat()),
        Sample::new(BatchNormBackward(batch_norm), &[&statistics[..], &[(x, any)]].concat()),
    ]
}

fn classes(dice: &mut Dice) -> Vec<Sample> {
    let [b, s, v] = [(); 3].map(|()| dice.size());
    let (logits, token): (&[usize], &[usize]) = (&[b, s, v], &[b, s]);
    let (any, index) = (Values::Any, Values::Index(v));
    vec![
        Sample::new(CrossEntropy, &[(logits, any), (token, index)]),
        Sample::new(
            CrossEntropyBackward,
            &[(logits, any), (token, index), (token, any), (token, any), (token, any)],
        ),
    ]
}

fn experts(dice: &mut Dice) -> Vec<Sample> {
    let [b, e, n] = [(); 3].map(|()| dice.of(&[1, 2, 4]));
    let (s, capacity) = (dice.of(&[3, 5]), dice.of(&[1, 2, 4]));
    let gates: (&[usize], Values) = (&[b, s, e], Values::Gates);
    let x: (&[usize], Values) = (&[b, s, n], Values::Any);
    let y: (&[usize], Values) = (&[b, e, capacity, n], Values::Any);
    let weighted = dice.of(&[true, false]);
    vec![
        Sample::plain(Route { chosen: dice.of(&[1, 2]).min(e) }, &[&[b, s, e]]),
        Sample::new(RouteBackward, &[gates, (gates.0, Values::Any)]),
        Sample::new(Dispatch { capacity, weighted }, &[x, gates]),
        Sample::new(Combine { weighted }, &[y, gates]),
        Sample::new(CombineGates, &[y, gates, x]),
    ]
}

#[test]
fn every_operator_has_a_sample() {
    let samples = samples(0);
    for name in Operator::NAMES {
        let sampled = samples.iter().any(|sample| sample.operator.name() == *name);
        assert!(sampled, "{name} has no sample");
    }
}
