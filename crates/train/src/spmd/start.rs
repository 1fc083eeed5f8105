//! Parameters before the first step, part by part.
//!
//! A value depends only on the seed, the parameter and the position in it. So every rank computes the parts
//! that it has, and no rank ever holds the whole model.

use thinwire_model::{Graph, Initial, Part, Role, TensorId};
use thinwire_wire::random::Key;

/// Function that returns the values of a part of a parameter, in the order of its rows.
pub type Start<'a> = &'a dyn Fn(TensorId, &[Part]) -> Vec<f32>;

/// Returns a function that gives the initial values of a part of a parameter.
pub fn initial(graph: &Graph, seed: u64) -> impl Fn(TensorId, &[Part]) -> Vec<f32> {
    move |id, parts| {
        let tensor = &graph.tensors[id];
        let key = Key { seed, step: 0, tensor: id as u32 };
        let value = |place: u64| match tensor.role {
            Role::Parameter(Initial::Normal(deviation)) => key.normal(place) * deviation as f32,
            Role::Parameter(Initial::Ones) => 1.0,
            _ => 0.0,
        };
        places(&tensor.shape, parts).map(value).collect()
    }
}

/// Returns zeros for a part of a parameter. A rank starts with them if it takes over the state of others
/// before its first step; drawing [`initial`] values would cost it a second per ten million parameters.
pub fn zeros(_: TensorId, parts: &[Part]) -> Vec<f32> {
    vec![0.0; parts.iter().map(|part| part.length).product()]
}

/// Returns a part of a parameter whose values are known.
pub fn part(whole: &[f32], shape: &[usize], parts: &[Part]) -> Vec<f32> {
    places(shape, parts).map(|place| whole[place as usize]).collect()
}

/// Returns the positions of a part's elements in the whole tensor.
pub fn places(shape: &[usize], parts: &[Part]) -> impl Iterator<Item = u64> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    let lengths: Vec<usize> = parts.iter().map(|part| part.length).collect();
    let first: usize = parts.iter().zip(&strides).map(|(part, stride)| part.start * stride).sum();
    (0..lengths.iter().product()).map(move |index: usize| {
        let mut rest = index;
        let mut place = first;
        for (length, stride) in lengths.iter().zip(&strides).rev() {
            place += rest % length * stride;
            rest /= length;
        }
        place as u64
    })
}

#[cfg(test)]
mod tests {
    use thinwire_model::{Element, Tensor};

    use super::*;

    #[test]
    fn parameters_start_independent_and_with_their_deviation() {
        let tensor = |name: &str, deviation: f64| Tensor {
            name: name.to_owned(),
            shape: vec![50, 40],
            element: Element::Float,
            role: Role::Parameter(match deviation {
                0.0 => Initial::Ones,
                deviation => Initial::Normal(deviation),
            }),
        };
        let mut graph = thinwire_model::named("mlp", 1, 1).unwrap();
        graph.tensors = vec![tensor("a", 0.5), tensor("b", 0.5), tensor("c", 0.0)];
        let parts = [50, 40].map(|length| Part { start: 0, length });
        let values = |seed| [0, 1, 2].map(|id| initial(&graph, seed)(id, &parts));
        let [first, second, ones] = values(4);
        assert_ne!(first, second);
        assert_ne!(first, values(5)[0]);
        let variance = first.iter().map(|v| v * v).sum::<f32>() / 2000.0;
        assert!((variance - 0.25).abs() < 0.04, "{variance}");
        assert!(ones.iter().all(|value| *value == 1.0));
    }

    #[test]
    fn places_are_those_of_the_whole() {
        let part = |start, length| Part { start, length };
        let found: Vec<u64> = places(&[4, 5], &[part(1, 2), part(3, 2)]).collect();
        assert_eq!(found, [8, 9, 13, 14]);
        assert_eq!(places(&[], &[]).collect::<Vec<_>>(), [0]);
    }
}
