//! The model computes what its formula says, cut or whole.

use super::*;
use crate::model::initial_values;
use crate::testing::{assert_differences_agree, batch, gradients};

const TINY: Config = Config { context: 12, width: 16, layers: 2, heads: 2 };

/// A tiny model away from its symmetric start.
fn tiny() -> (Gpt, Vec<Vec<f32>>) {
    let gpt = Gpt::new(TINY).unwrap();
    let mut values = initial_values(gpt.parameters(), 7);
    let noise = initial_values(
        &gpt.parameters()
            .iter()
            .map(|p| Parameter { initial: Initial::Normal(0.2), ..p.clone() })
            .collect::<Vec<_>>(),
        8,
    );
    values.iter_mut().flatten().zip(noise.iter().flatten()).for_each(|(v, n)| *v += n);
    (gpt, values)
}

/// Backward through the whole graph at once, with nothing of ours but the linear layers:
/// Burn's own attention, GELU and softmax.
fn whole(gpt: &Gpt, values: &[Vec<f32>], batch: &Batch) -> (f32, Vec<Vec<f32>>) {
    use burn_tensor::activation::{gelu, softmax};
    let device = gpt.device.clone().autodiff();
    let Config { context, width, heads, .. } = gpt.config;
    let segments: Vec<Leaves> =
        (0..=gpt.head()).map(|segment| gpt.leaves(segment, values, &device)).collect();
    let [tokens, targets] = tokens_and_targets(batch, &device);
    let mut x = gpt.embed(tokens, &segments[0], context);
    let mask =
        (0..context * context).map(|i| if i % context > i / context { -1e9 } else { 0.0_f32 });
    let mask: Tensor<4> =
        Tensor::from_data(TensorData::new(mask.collect(), [1, 1, context, context]), &device);
    for (segment, leaves) in segments.iter().enumerate().take(gpt.head()).skip(1) {
        let m = |i: usize| matrix(&mut leaves.tensors[i..].iter());
        let v = |i: usize| vector(&mut leaves.tensors[i..].iter());
        let apply = |x: &Tensor<2>, i: usize| x.clone().matmul(m(i)) + v(i + 1).unsqueeze();
        if !is_attention(segment) {
            let h = layers::layer_norm(x.clone(), v(4), v(5));
            x = x + apply(&gelu(apply(&h, 0)), 2);
            continue;
        }
        let h = layers::layer_norm(x.clone(), v(8), v(9));
        let split = |x: Tensor<2>| {
            let size = width / heads;
            x.reshape([batch.rows().len(), context, heads, size]).swap_dims(1, 2)
        };
        let scores = split(apply(&h, 0)).matmul(split(apply(&h, 2)).swap_dims(2, 3));
        let weights =
            softmax(scores.mul_scalar(((width / heads) as f32).powf(-0.5)) + mask.clone(), 3);
        let mixed = weights.matmul(split(apply(&h, 4))).swap_dims(1, 2);
        x = x.clone() + apply(&mixed.reshape(x.dims()), 6);
    }
    let loss = layers::cross_entropy(gpt.logits(x, &segments[gpt.head()]), targets);
    let mut graph = loss.backward();
    let mut gradients = Vec::new();
    for leaves in segments.into_iter().rev() {
        let push = &mut |_: usize, gradient: &mut [f32]| {
            gradients.push(gradient.to_vec());
            Ok(())
        };
        leaves.hand_over(&mut graph, push).unwrap();
    }
    (loss.into_scalar(), gradients)
}

#[test]
fn segments_give_the_gradients_of_the_whole_graph() {
    let (gpt, values) = tiny();
    let batch = batch(3, TINY.context, 5);
    let (loss, found) = gradients(&gpt, &values, &batch);
    let (expected_loss, expected) = whole(&gpt, &values, &batch);
    assert!((loss - expected_loss).abs() < 1e-5, "{loss} and {expected_loss}");
    for ((parameter, found), expected) in gpt.parameters().iter().zip(&found).zip(&expected) {
        assert_eq!(found.len(), parameter.elements());
        for (found, expected) in found.iter().zip(expected) {
            let name = &parameter.name;
            assert!((found - expected).abs() < 1e-5, "{name}: {found} and {expected}");
        }
    }
}

#[test]
fn gradients_equal_differences() {
    let (gpt, values) = tiny();
    assert_differences_agree(&gpt, &values, &batch(2, TINY.context, 6), 5e-3);
}

#[test]
fn a_prediction_sees_no_later_byte() {
    let (gpt, values) = tiny();
    let logits = |text: &[u8]| {
        let [tokens, _] = tokens_and_targets(&Batch::new([text, b"."].concat(), 12), &gpt.device);
        let segments = gpt.constants(&values);
        let x = gpt.trunk(&segments, tokens, 12);
        gpt.logits(x, &segments[gpt.head()]).into_data().try_to_vec::<f32>().unwrap()
    };
    let (one, other) = (logits(b"abcdefghijkl"), logits(b"abcdefghijkX"));
    assert_eq!(one[..11 * VOCABULARY], other[..11 * VOCABULARY]);
    assert_ne!(one[11 * VOCABULARY..], other[11 * VOCABULARY..]);
}

#[test]
fn loss_is_the_same_with_and_without_gradients() {
    let (gpt, values) = tiny();
    let batch = batch(3, TINY.context, 5);
    let (loss, _) = gradients(&gpt, &values, &batch);
    assert!((loss - gpt.loss(&values, &batch)).abs() < 1e-5);
}

#[test]
fn an_untrained_model_knows_nothing() {
    let gpt = Gpt::new(TINY).unwrap();
    let values = initial_values(gpt.parameters(), 1);
    let loss = gpt.loss(&values, &batch(4, TINY.context, 1));
    assert!((loss - (VOCABULARY as f32).ln()).abs() < 0.2, "{loss}");
    assert!(values != initial_values(gpt.parameters(), 2));
    assert!(values == initial_values(gpt.parameters(), 1));
}
