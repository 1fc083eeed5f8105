//! Products with a weight or of two tensors: one batched matrix product.

use thinwire_model::MatMul;

use super::shape::permuted;
use crate::spmd::value::Value;

/// `x[..,k] w[k,n] -> y[..,n]`, and perhaps a bias `[n]`.
pub fn linear(inputs: &[&Value]) -> Value {
    let (x, weight) = (inputs[0], inputs[1]);
    let ([rows, k], [_, n]) = (x.rows(), weight.rows());
    let mut y = x.view([rows, k]).matmul(weight.view([k, n]));
    if let Some(bias) = inputs.get(2) {
        y = y + bias.view([1, n]);
    }
    let mut shape = x.shape().to_vec();
    shape.pop();
    shape.push(n);
    Value::of(&shape, y)
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
    let left = permuted(x, &order(&axes.left, &[&shared, &rows, &summed]));
    let right = permuted(y, &order(&axes.right, &[&shared, &summed, &columns]));
    let z = left.view([b, m, k]).matmul(right.view([b, k, n]));
    let made: Vec<char> = [shared, rows, columns].concat();
    let shape: Vec<usize> = made.iter().map(length).collect();
    Some(permuted(&Value::of(&shape, z), &order(&made, &[&axes.output])))
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
