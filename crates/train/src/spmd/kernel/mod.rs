//! Kernels: the computation of a node on a rank, one function per operator.
//!
//! Law: a kernel gives the same result as the reference of crate `model`, within the precision of f32.
//! Products that sum over an axis which only one of the operands has use the reference.

mod activation;
mod attention;
mod batch_norm;
mod classes;
mod elements;
mod embedding;
mod exact;
mod experts;
mod images;
mod multiply;
mod norm;
mod operands;
mod pool;
mod product;
mod reference;
mod rotary;
mod rows;
mod shape;
mod softmax;

use thinwire_model::{Operator, Region};

use super::value::Value;
use crate::error::{Error, Kind};

pub(crate) use multiply::product;

/// Computes an operator for its inputs on a part of its axes. An input that is not shared is changed in place
/// if possible.
pub fn compute(operator: &Operator, inputs: Vec<Value>, region: &Region<'_>) -> Vec<Value> {
    match operator {
        Operator::LayerNorm(norm) => vec![norm::layer_norm(norm.0, inputs)],
        Operator::LayerNormBackward(norm) => norm::layer_norm_backward(norm.0.0, inputs),
        Operator::RmsNorm(norm) => vec![norm::rms_norm(norm.0, inputs)],
        Operator::RmsNormBackward(norm) => norm::rms_norm_backward(norm.0.0, inputs),
        Operator::Softmax(softmax) => vec![softmax::softmax(softmax, inputs, region)],
        Operator::SoftmaxBackward(_) | Operator::RouteBackward(_) => {
            vec![softmax::backward(inputs)]
        }
        Operator::Activation(function) => vec![activation::forward(*function, inputs)],
        Operator::ActivationBackward(backward) => vec![activation::backward(backward.0, inputs)],
        Operator::Arithmetic(operation) => vec![elements::arithmetic(*operation, inputs)],
        Operator::Scale(scale) => vec![elements::scale(scale.0, inputs)],
        Operator::Dropout(dropout) => vec![elements::dropout(dropout, inputs, region)],
        Operator::CrossEntropyBackward(_) => vec![classes::backward(inputs, region)],
        Operator::Rotary(turn) => vec![rotary::rotary(turn, inputs, region)],
        _ => pure(operator, &inputs.iter().collect::<Vec<_>>(), region),
    }
}

/// Computes the operators that change nothing in place.
fn pure(operator: &Operator, inputs: &[&Value], region: &Region<'_>) -> Vec<Value> {
    let first = || inputs[0];
    match operator {
        Operator::Linear(linear) => vec![product::linear(*linear, inputs)],
        Operator::MatMul(matmul) => {
            let product = product::matmul(matmul, inputs);
            vec![product.unwrap_or_else(|| reference::matmul(inputs, region))]
        }
        Operator::Embedding(_) => vec![embedding::embedding(inputs, region.part('v'))],
        Operator::EmbeddingBackward(rule) => vec![embedding::backward(rule, inputs, region)],
        Operator::Attention(attention) => vec![attention::forward(attention, inputs, region)],
        Operator::AttentionBackward(backward) => attention::backward(&backward.0, inputs, region),
        Operator::Fill(fill) => vec![elements::fill(fill.value, &region.output_shape(0))],
        Operator::Constant(constant) => vec![elements::constant(constant, &region.output(0))],
        Operator::Sum(sum) => vec![shape::sum(sum, first(), &region.output_shape(0))],
        Operator::Broadcast(broadcast) => {
            vec![shape::broadcast(&broadcast.sum, first(), &region.output_shape(0))]
        }
        Operator::Place(_) => vec![first().clone()],
        Operator::Reshape(_) => vec![first().reshaped(&region.output_shape(0))],
        Operator::Transpose(transpose) => vec![shape::transpose(transpose, first())],
        Operator::Unpack(unpack) => shape::unpack(unpack, first()),
        Operator::Pack(pack) => vec![shape::pack(pack, inputs)],
        Operator::CrossEntropy(_) => classes::cross_entropy(inputs, region),
        Operator::Conv2d(conv) => {
            vec![images::conv2d(*conv, inputs, &region.output_shape(0))]
        }
        Operator::Conv2dInput(conv) => {
            vec![images::conv2d_input(conv, inputs, &region.output_shape(0))]
        }
        Operator::Conv2dWeight(conv) => {
            vec![images::conv2d_weight(conv, inputs, &region.output_shape(0))]
        }
        Operator::Moments(_) => batch_norm::moments(first()),
        Operator::MomentsBackward(_) => vec![batch_norm::moments_backward(inputs)],
        Operator::BatchNorm(norm) => vec![batch_norm::batch_norm(norm.0, inputs, region)],
        Operator::BatchNormBackward(norm) => {
            batch_norm::batch_norm_backward(norm.0.0, inputs, region)
        }
        Operator::Pool(pool) => vec![pool::forward(pool, first(), &region.output_shape(0))],
        Operator::PoolBackward(backward) => vec![pool::backward(&backward.0, inputs)],
        Operator::Route(route) => vec![experts::route(route.chosen, first())],
        Operator::Dispatch(to) => vec![experts::dispatch(to, inputs, region)],
        Operator::Combine(from) => vec![experts::combine(from, inputs, region)],
        Operator::CombineGates(_) => vec![experts::combine_gates(inputs)],
        _ => unreachable!("{} changes its operands in place", operator.name()),
    }
}

/// Runs `work` with `count` threads for its arithmetic, including the one that runs `work`. 0 means one per
/// core.
///
/// Kernels run on the rayon pool of the thread that calls them. A separate pool limits the number of
/// threads without changing the process-wide pool; with one thread, everything runs on the calling
/// thread. Local ranks share a machine's cores, so each should use its part of them.
///
/// # Errors
/// If the threads cannot be started.
pub fn with_threads<T: Send>(count: usize, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().map_err(|error| {
        Error::new(Kind::Invalid, format!("cannot start {count} threads: {error}"))
    })?;
    Ok(pool.install(work))
}

#[cfg(test)]
mod tests {
    #[test]
    fn work_runs_with_as_many_threads_as_asked() {
        for count in [1, 3] {
            assert_eq!(super::with_threads(count, rayon::current_num_threads).unwrap(), count);
        }
    }
}
