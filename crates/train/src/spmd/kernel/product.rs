//! Products with a weight or of two tensors: one batched matrix product.

use thinwire_model::{Linear, MatMul};

use super::multiply::product;
use super::rows;
use super::shape::permuted;
use crate::spmd::strided::Strided;
use crate::spmd::value::Value;

/// `x[..,k] w[k,n] -> y[..,n]`, and perhaps a bias `[n]`; a turned weight is `w[n,k]`.
pub fn linear(linear: Linear, inputs: &[&Value]) -> Value {
    let (x, weight) = (inputs[0], inputs[1]);
    let ([tokens, k], lengths) = (x.rows(), weight.rows());
    let weight = weight.view(&lengths);
    let (n, weight) = match linear.turned {
        true => (lengths[0], weight.permuted(&[1, 0])),
        false => (lengths[1], weight),
    };
    let mut y = product(&x.view(&[tokens, k]), &weight);
    if let Some(bias) = inputs.get(2) {
        rows::with_repeated(&mut y, bias.floats(), |y, bias| y + bias);
    }
    let mut shape = x.shape().to_vec();
    shape.pop();
    shape.push(n);
    Value::new(&shape, y)
}

/// A product over any axes; none if an axis is summed that only one of both has.
pub fn matmul(matmul: &MatMul, inputs: &[&Value]) -> Option<Value> {
    let (x, y) = (inputs[0], inputs[1]);
    let [left, right, output] =
        [&matmul.left, &matmul.right, &matmul.output].map(|letters| letters.chars().collect());
    let axes = Axes { left, right, output };
    let (shared, summed) = (axes.of(true, true, true), axes.of(true, true, false));
    let (rows, columns) = (axes.of(true, false, true), axes.of(false, true, true));
    if !axes.of(true, false, false).is_empty() || !axes.of(false, true, false).is_empty() {
        return None;
    }
    let length = |letter: &char| match axes.left.iter().position(|l| l == letter) {
        Some(dim) => x.shape()[dim],
        None => y.shape()[axes.right.iter().position(|l| l == letter).expect("of x or y")],
    };
    let size = |letters: &[char]| -> usize { letters.iter().map(length).product() };
    let [b, m, k, n] = [&shared, &rows, &summed, &columns].map(|letters| size(letters));
    let left_order = order(&axes.left, &[&shared, &rows, &summed]);
    let right_order = order(&axes.right, &[&shared, &summed, &columns]);
    let left = grouped(x, &left_order, [b, m, k]);
    let right = grouped(y, &right_order, [b, k, n]);
    let z = product(&matrices(&left, [b, m, k]), &matrices(&right, [b, k, n]));
    let made: Vec<char> = [shared, rows, columns].concat();
    let shape: Vec<usize> = made.iter().map(length).collect();
    Some(permuted(&Value::new(&shape, z), &order(&made, &[&axes.output])))
}

/// An operand, or a copy with its dimensions in an order, and the place of each of three groups
/// of dimensions in it. Only strides change where each group lies together.
fn grouped(x: &Value, order: &[usize], sizes: [usize; 3]) -> (Value, [usize; 3]) {
    match together(x.shape(), order, sizes) {
        Some(places) => (x.clone(), places),
        None => (permuted(x, order), [0, 1, 2]),
    }
}

/// View of an operand as a batch of matrices.
fn matrices((x, places): &(Value, [usize; 3]), sizes: [usize; 3]) -> Strided<'_> {
    let mut lengths = [1; 3];
    places.iter().zip(sizes).for_each(|(place, size)| lengths[*place] = size);
    x.view(&lengths).permuted(places)
}

/// Where each group lies among the three, if its dimensions are neighbours and in their order.
fn together(shape: &[usize], order: &[usize], sizes: [usize; 3]) -> Option<[usize; 3]> {
    let mut rest = order.iter().copied().peekable();
    let mut firsts = [usize::MAX; 3];
    for (first, size) in firsts.iter_mut().zip(sizes) {
        let (mut length, mut last) = (1, None);
        while length < size || rest.peek().is_some_and(|dim| shape[*dim] == 1) {
            let dim = rest.next()?;
            if last.is_some_and(|last| last + 1 != dim) {
                return None;
            }
            length *= shape[dim];
            last = Some(dim);
            *first = (*first).min(dim);
        }
        if length != size {
            return None;
        }
    }
    let place = |first: usize| firsts.iter().filter(|other| **other < first).count();
    let mut places = firsts.map(place);
    // Groups without dimensions come last, each at a place of its own.
    let empty = firsts.iter().filter(|first| **first == usize::MAX).count();
    let mut next = 3 - empty;
    for (place, first) in places.iter_mut().zip(firsts) {
        if first == usize::MAX {
            *place = next;
            next += 1;
        }
    }
    Some(places)
}

struct Axes {
    left: Vec<char>,
    right: Vec<char>,
    output: Vec<char>,
}

impl Axes {
    /// The letters that are, or are not, in x, in y and in the product.
    fn of(&self, left: bool, right: bool, output: bool) -> Vec<char> {
        let rest = self.right.iter().filter(|letter| !self.left.contains(letter));
        let wanted = |letter: &&char| {
            (self.left.contains(letter), self.right.contains(letter), self.output.contains(letter))
                == (left, right, output)
        };
        self.left.iter().chain(rest).filter(wanted).copied().collect()
    }
}

/// For each letter of the lists, its dimension.
fn order(letters: &[char], lists: &[&Vec<char>]) -> Vec<usize> {
    let wanted = lists.iter().flat_map(|list| list.iter());
    wanted.filter_map(|letter| letters.iter().position(|l| l == letter)).collect()
}
