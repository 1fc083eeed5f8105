//! Gradient rules: for each operator, the nodes that compute the gradients of its inputs.

use super::Gradients;
use crate::axis::LEADING;
use crate::{
    ActivationBackward, Arithmetic, AttentionBackward, BatchNormBackward, Broadcast, Combine,
    CombineGates, Conv2d, Conv2dInput, Conv2dWeight, CrossEntropyBackward, Dispatch, Embedding,
    EmbeddingBackward, Error, Kind, LayerNormBackward, Linear, MatMul, MomentsBackward, Operator,
    Pack, Place, PoolBackward, Reshape, RmsNormBackward, Rotary, RouteBackward, Scale,
    SoftmaxBackward, Sum, TensorId, Transpose, Unpack,
};

/// Adds the gradients of a node. Operators that are gradients themselves have no gradients.
pub(super) fn gradients(node: &mut Gradients<'_>) -> Result<(), Error> {
    let operator = node.operator();
    let dy = node.given(0)?;
    let input = |node: &Gradients<'_>, index| node.input(index);
    match operator {
        Operator::Linear(rule) => linear(node, *rule, dy),
        Operator::MatMul(rule) => matmul(node, rule, dy),
        Operator::Arithmetic(rule) => arithmetic(node, *rule, dy),
        Operator::Conv2d(rule) => conv2d(node, *rule, dy),
        Operator::Dispatch(rule) => dispatch(node, *rule, dy),
        Operator::Combine(rule) => combine(node, *rule, dy),
        Operator::Embedding(Embedding { padding }) => {
            let (rows, padding) = (node.shape(0)[0], *padding);
            node.give_all(EmbeddingBackward { rows, padding }, &[node.input(1), dy])
        }
        Operator::LayerNorm(rule) => {
            node.give_all(LayerNormBackward(*rule), &[node.input(0), node.input(1), dy])
        }
        Operator::RmsNorm(rule) => {
            node.give_all(RmsNormBackward(*rule), &[node.input(0), node.input(1), dy])
        }
        Operator::BatchNorm(rule) => {
            let [x, sum, squares, gain] = [0, 1, 2, 3].map(|index| input(node, index));
            node.give_all(BatchNormBackward(*rule), &[x, sum, squares, gain, dy])
        }
        Operator::Moments(_) => {
            let dsquares = node.given(1)?;
            node.give_all(MomentsBackward, &[node.input(0), dy, dsquares])
        }
        Operator::Attention(rule) => {
            let [q, k, v] = [0, 1, 2].map(|index| input(node, index));
            node.give_all(AttentionBackward(*rule), &[q, k, v, dy])
        }
        Operator::CrossEntropy(_) => {
            let [logits, targets, total] = [node.input(0), node.input(1), node.output(0)];
            let dchosen = node.given(1)?;
            node.give_all(CrossEntropyBackward, &[logits, targets, total, dy, dchosen])
        }
        Operator::Softmax(_) => node.give_all(SoftmaxBackward, &[node.output(0), dy]),
        Operator::Route(_) => node.give_all(RouteBackward, &[node.output(0), dy]),
        Operator::Activation(rule) => {
            node.give_all(ActivationBackward(*rule), &[node.input(0), dy])
        }
        Operator::Pool(rule) => node.give_all(PoolBackward(*rule), &[node.input(0), dy]),
        Operator::Rotary(rule) => node.give_all(Rotary { back: !rule.back, ..*rule }, &[dy]),
        Operator::Scale(rule) => node.give_all(*rule, &[dy]),
        // The mask depends on the seed, the step and the stream alone.
        Operator::Dropout(rule) => node.give_all(*rule, &[dy]),
        Operator::Place(_) => node.give_all(Place::default(), &[dy]),
        Operator::Sum(rule) => {
            let (shape, sum) = (node.shape(0), rule.clone());
            node.give_all(Broadcast { shape, sum }, &[dy])
        }
        Operator::Broadcast(rule) => node.give_all(rule.sum.clone(), &[dy]),
        Operator::Reshape(_) => {
            let shape = node.shape(0);
            node.give_all(Reshape { shape }, &[dy])
        }
        Operator::Transpose(rule) => {
            node.give_all(Transpose::new(&*rule.output, &*rule.input), &[dy])
        }
        Operator::Unpack(rule) => {
            let given = (0..rule.sections.len()).map(|index| node.given(index));
            let given = given.collect::<Result<Vec<_>, Error>>()?;
            let Unpack { dim, pieces, sections } = rule.clone();
            node.give_all(Pack { dim, pieces, sections }, &given)
        }
        Operator::Pack(rule) => node.give_all(rule.unpack(), &[dy]),
        Operator::Fill(_) | Operator::Constant(_) => Ok(()),
        _ => Err(Error::new(Kind::Gradient, format!("{} has no gradient", node.name()))),
    }
}

fn linear(node: &mut Gradients<'_>, rule: Linear, dy: TensorId) -> Result<(), Error> {
    let (x, weight) = (node.input(0), node.input(1));
    let leading = node.shape(0).len() - 1;
    let rows: String = LEADING[..leading].iter().collect();
    let (of_x, of_y) = (format!("{rows}k"), format!("{rows}n"));
    let of_weight = if rule.turned { "nk" } else { "kn" };
    node.give_one(0, MatMul::new(&*of_y, of_weight, &*of_x), &[dy, weight])?;
    node.give_one(1, MatMul::new(of_x, of_y, of_weight), &[x, dy])?;
    match rule.bias {
        true => node.give_one(2, Sum::over(0..leading), &[dy]),
        false => Ok(()),
    }
}

fn matmul(node: &mut Gradients<'_>, rule: &MatMul, dz: TensorId) -> Result<(), Error> {
    let (x, y) = (node.input(0), node.input(1));
    let MatMul { left, right, output } = rule;
    node.give_one(0, MatMul::new(&**output, &**right, &**left), &[dz, y])?;
    node.give_one(1, MatMul::new(&**left, &**output, &**right), &[x, dz])
}

fn conv2d(node: &mut Gradients<'_>, forward: Conv2d, dy: TensorId) -> Result<(), Error> {
    let (x, weight) = (node.input(0), node.input(1));
    let last_two = |shape: Vec<usize>| [shape[2], shape[3]];
    let (image, kernel) = (last_two(node.shape(0)), last_two(node.shape(1)));
    node.give_one(0, Conv2dInput { forward, image }, &[dy, weight])?;
    node.give_one(1, Conv2dWeight { forward, kernel }, &[x, dy])
}

fn dispatch(node: &mut Gradients<'_>, rule: Dispatch, dy: TensorId) -> Result<(), Error> {
    let (x, gates) = (node.input(0), node.input(1));
    node.give_all(Combine { weighted: rule.weighted }, &[dy, gates])?;
    match rule.weighted {
        true => node.give_one(1, CombineGates, &[dy, gates, x]),
        false => Ok(()),
    }
}

fn combine(node: &mut Gradients<'_>, rule: Combine, dx: TensorId) -> Result<(), Error> {
    let (y, gates, capacity) = (node.input(0), node.input(1), node.shape(0)[2]);
    node.give_all(Dispatch { capacity, weighted: rule.weighted }, &[dx, gates])?;
    match rule.weighted {
        true => node.give_one(1, CombineGates, &[y, gates, dx]),
        false => Ok(()),
    }
}

fn arithmetic(node: &mut Gradients<'_>, rule: Arithmetic, dz: TensorId) -> Result<(), Error> {
    let (x, y) = (node.input(0), node.input(1));
    if node.wants(0) {
        let dx = match rule {
            Arithmetic::Add | Arithmetic::Subtract => dz,
            Arithmetic::Multiply | Arithmetic::Divide => node.apply(rule, &[dz, y])?[0],
        };
        node.give(0, dx);
    }
    if node.wants(1) {
        let mut dy = match rule {
            Arithmetic::Add => dz,
            Arithmetic::Subtract => node.apply(Scale(-1.0), &[dz])?[0],
            Arithmetic::Multiply => node.apply(rule, &[dz, x])?[0],
            Arithmetic::Divide => {
                let product = node.apply(Arithmetic::Multiply, &[dz, x])?[0];
                let once = node.apply(rule, &[product, y])?[0];
                let twice = node.apply(rule, &[once, y])?[0];
                node.apply(Scale(-1.0), &[twice])?[0]
            }
        };
        // y may have been broadcast to the shape of x.
        let (whole, shape) = (node.shape(0), node.shape(1));
        if whole != shape {
            dy = node.apply(Sum::back_to(&whole, &shape), &[dy])?[0];
        }
        node.give(1, dy);
    }
    Ok(())
}
