//! Products with a weight or of two tensors, computed as one batched matrix product.

use thinwire_model::{Linear, MatMul};

use super::multiply::product;
use super::rows;
use super::shape::permuted;
use crate::spmd::strided::Strided;
use crate::spmd::value::Value;

/// Indices of x, y and their product in the axes of a product.
const X: usize = 0;
const Y: usize = 1;
const Z: usize = 2;

/// Computes `x[..,k] w[k,n] -> y[..,n]`, with a bias `[n]` if there is one; a transposed weight is `w[n,k]`.
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

/// Computes a product over any axes; returns `None` if it sums over an axis that only one of the operands
/// has.
pub fn matmul(matmul: &MatMul, inputs: &[&Value]) -> Option<Value> {
    let (x, y) = (inputs[0], inputs[1]);
    let axes =
        [&matmul.left, &matmul.right, &matmul.output].map(|letters| letters.chars().collect());
    let [shared, summed, rows, columns] =
        [&[X, Y, Z][..], &[X, Y], &[X, Z], &[Y, Z]].map(|places| in_these_alone(&axes, places));
    if [X, Y].iter().any(|place| !in_these_alone(&axes, &[*place]).is_empty()) {
        return None;
    }
    let [left, right, output] = axes;
    let length = |letter: &char| match left.iter().position(|l| l == letter) {
        Some(dim) => x.shape()[dim],
        None => y.shape()[right.iter().position(|l| l == letter).expect("of x or y")],
    };
    let size = |letters: &[char]| -> usize { letters.iter().map(length).product() };
    let [b, m, k, n] = [&shared, &rows, &summed, &columns].map(|letters| size(letters));
    let left_order = order(&left, &[&shared, &rows, &summed]);
    let right_order = order(&right, &[&shared, &summed, &columns]);
    let left = Grouped::new(x, &left_order, [b, m, k]);
    let right = Grouped::new(y, &right_order, [b, k, n]);
    let z = product(&left.matrices(), &right.matrices());
    let made: Vec<char> = [shared, rows, columns].concat();
    let shape: Vec<usize> = made.iter().map(length).collect();
    Some(permuted(&Value::new(&shape, z), &order(&made, &[&output])))
}

/// An operand, or a copy of it with its dimensions in another order. `places` are the positions of three
/// groups of dimensions in it.
struct Grouped {
    value: Value,
    places: [usize; 3],
    /// Sizes of the groups.
    sizes: [usize; 3],
}

impl Grouped {
    /// Groups the dimensions; if each group is contiguous in memory, this only changes strides.
    fn new(x: &Value, order: &[usize], sizes: [usize; 3]) -> Grouped {
        match together(x.shape(), order, sizes) {
            Some(places) => Grouped { value: x.clone(), places, sizes },
            None => Grouped { value: permuted(x, order), places: [0, 1, 2], sizes },
        }
    }

    /// Returns a view as a batch of matrices.
    fn matrices(&self) -> Strided<'_> {
        let mut lengths = [1; 3];
        self.places.iter().zip(self.sizes).for_each(|(place, size)| lengths[*place] = size);
        self.value.view(&lengths).permuted(&self.places)
    }
}

/// Returns the position of each of the three groups, if the dimensions of each are adjacent and in order.
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

/// Returns the letters that are in exactly these lists, in the order of x, then of y.
fn in_these_alone(axes: &[Vec<char>; 3], places: &[usize]) -> Vec<char> {
    let rest = axes[Y].iter().filter(|letter| !axes[X].contains(letter));
    let wanted = |letter: &&char| {
        (X..=Z).all(|place| axes[place].contains(letter) == places.contains(&place))
    };
    axes[X].iter().chain(rest).filter(wanted).copied().collect()
}

/// Returns the dimension of each letter of the lists.
fn order(letters: &[char], lists: &[&Vec<char>]) -> Vec<usize> {
    let wanted = lists.iter().flat_map(|list| list.iter());
    wanted.filter_map(|letter| letters.iter().position(|l| l == letter)).collect()
}
