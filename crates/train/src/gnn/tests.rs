//! Laws of the networks.

use proptest::prelude::*;
use thinwire_graph::{Adjacency, FanOut, Frontier, Sample, Sampler, Sampling};
use thinwire_wire::random::Key;

use super::hop::Hop;
use super::*;

const VERTICES: u32 = 8;
const FEATURES: usize = 3;
const CLASSES: usize = 3;

const KEY: Key = Key { seed: 3, step: 0, tensor: 0 };
const KEPT: Dropout = Dropout { share: 0.0, key: KEY };

fn shape(model: Model, layers: usize) -> Shape {
    Shape { model, features: FEATURES, hidden: 4, classes: CLASSES, layers, heads: 2 }
}

fn graph(edges: &[(u32, u32)]) -> Adjacency {
    Adjacency::from_edges(VERTICES, edges).unwrap()
}

fn sampled(graph: &Adjacency, seeds: &[u32], fan_outs: Vec<FanOut>) -> Sample {
    let sampling = Sampling { fan_outs, frontier: Frontier::All, ..Sampling::new(&[]) };
    let mut sample = Sample::new();
    let mut sampler = Sampler::new(graph, sampling).unwrap();
    sampler.sample(graph, seeds, KEY, &mut sample).unwrap();
    sample
}

/// Returns numbers around 0 from a random stream.
fn numbers(step: u64, count: usize) -> Vec<f32> {
    let key = Key { seed: 9, step, tensor: 1 };
    (0..count as u64).map(|element| key.normal(element)).collect()
}

/// Returns the features of all vertices.
fn features() -> Vec<f32> {
    numbers(0, FEATURES * VERTICES as usize)
}

fn input<'a>(graph: &'a Adjacency, sample: &'a Sample) -> Input<'a> {
    let all = Matrix::new(FEATURES, features());
    let rows = sample.vertices.iter().flat_map(|vertex| all.row(*vertex as usize).to_vec());
    Input { sample, graph, features: Matrix::new(FEATURES, rows.collect()), wanted: Wanted::All }
}

/// Returns values that are not 0, including biases.
fn values(network: &Network, seed: u64) -> Vec<Vec<f32>> {
    let of = |(step, parameter): (u64, &crate::Parameter)| {
        numbers(100 * seed + step + 1, parameter.elements()).iter().map(|v| 0.7 * v).collect()
    };
    (0..).zip(network.parameters()).map(of).collect()
}

/// Returns the mean loss and all gradients; that of the features is the last.
fn gradients(
    network: &Network,
    values: &[Vec<f32>],
    input: Input<'_>,
    (labels, dropout): (&[u32], Dropout),
) -> (f64, Vec<Vec<f32>>) {
    let mut gradients = vec![Vec::new(); values.len()];
    let ready = |parameter: usize, gradient| {
        assert!(std::mem::replace(&mut gradients[parameter], gradient).is_empty());
        Ok::<(), ()>(())
    };
    let (figures, of_features) = network.gradients(values, input, labels, dropout, ready).unwrap();
    gradients.push(of_features.unwrap().into_values());
    (figures.mean_loss(), gradients)
}

fn edges() -> impl Strategy<Value = Vec<(u32, u32)>> {
    prop::collection::vec((0..VERTICES, 0..VERTICES), 0..30)
}

fn model() -> impl Strategy<Value = Model> {
    prop::sample::select(Model::ALL.to_vec())
}

/// Computes a layer by its formula, vertex by vertex in f64.
fn reference(
    layer: (Model, usize),
    weights: &[Vec<f32>],
    graph: &Adjacency,
    x: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let (model, heads) = layer;
    let bias = &weights[if model == Model::Gat { 3 } else { 1 }];
    let times = |row: &[f64], weight: &[f32]| -> Vec<f64> {
        let columns = bias.len();
        let element = |column| {
            (0..row.len()).map(|at| row[at] * f64::from(weight[at * columns + column])).sum()
        };
        (0..columns).map(element).collect()
    };
    let plus = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>();
    let bias: Vec<f64> = bias.iter().map(|value| f64::from(*value)).collect();
    let sum = |terms: Vec<(f64, &[f64])>, length: usize| {
        (0..length)
            .map(|at| terms.iter().map(|(factor, row)| factor * row[at]).sum())
            .collect::<Vec<f64>>()
    };
    let z: Vec<Vec<f64>> = x.iter().map(|row| times(row, &weights[0])).collect();
    let of = |v: u32| {
        let near: Vec<usize> = graph.neighbors(v).iter().map(|u| *u as usize).collect();
        let me = v as usize;
        match model {
            Model::Sage => {
                let mean = near.iter().map(|u| (1.0 / near.len() as f64, &z[*u][..])).collect();
                plus(sum(mean, bias.len()), times(&x[me], &weights[2]))
            }
            Model::Gcn => {
                let root = |v: usize| (graph.degree(v as u32) as f64 + 1.0).sqrt();
                let both = near.iter().chain([&me]);
                sum(both.map(|u| (1.0 / root(*u) / root(me), &z[*u][..])).collect(), bias.len())
            }
            Model::Gat => {
                let width = bias.len() / heads;
                let near: Vec<usize> = near.into_iter().chain([me]).collect();
                let head = |head: usize| {
                    let part = head * width..(head + 1) * width;
                    let score = |row: &[f64], weight: &[f32]| -> f64 {
                        part.clone().map(|at| row[at] * f64::from(weight[at])).sum()
                    };
                    let raw = near
                        .iter()
                        .map(|u| score(&z[*u], &weights[1]) + score(&z[me], &weights[2]));
                    let power: Vec<f64> = raw.map(|raw| raw.max(0.2 * raw).exp()).collect();
                    let total: f64 = power.iter().sum();
                    let terms =
                        near.iter().zip(power).map(|(u, p)| (p / total, &z[*u][part.clone()]));
                    sum(terms.collect(), width)
                };
                (0..heads).flat_map(head).collect()
            }
        }
    };
    (0..VERTICES).map(|vertex| plus(of(vertex), bias.clone())).collect()
}

proptest! {
    #[test]
    fn outputs_are_the_formula(model in model(), edges in edges(), seed in 0_u64..50) {
        let graph = graph(&edges);
        let network = Network::new(shape(model, 2)).unwrap();
        let values = values(&network, seed);
        let sample = sampled(&graph, &[5, 0, 3], vec![FanOut::All; 2]);
        let outputs = network.outputs(&values, input(&graph, &sample));
        let x: Vec<Vec<f64>> = features().chunks(FEATURES).map(|row| row.iter().map(|v| f64::from(*v)).collect()).collect();
        let split = values.len() / 2;
        let heads = if model == Model::Gat { 2 } else { 1 };
        let mut hidden = reference((model, heads), &values[..split], &graph, &x);
        hidden.iter_mut().flatten().for_each(|value| *value = value.max(0.0));
        let expected = reference((model, 1), &values[split..], &graph, &hidden);
        for (row, seed) in [5, 0, 3].into_iter().enumerate() {
            for (found, expected) in outputs.row(row).iter().zip(&expected[seed]) {
                prop_assert!((f64::from(*found) - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{found} {expected}");
            }
        }
    }

    #[test]
    fn a_turned_hop_is_the_adjoint(edges in edges(), is_sage in any::<bool>(), limit in 1_u32..4) {
        let graph = graph(&edges);
        let sample = sampled(&graph, &[1, 4], vec![FanOut::Limit(limit)]);
        let model = if is_sage { Model::Sage } else { Model::Gcn };
        let hop = Hop::new(model, &sample, 0, &graph);
        let x = Matrix::new(2, numbers(1, 2 * hop.sources()));
        let y = Matrix::new(2, numbers(2, 2 * hop.destinations()));
        let product = |a: &Matrix, b: &Matrix| -> f64 {
            a.values().iter().zip(b.values()).map(|(a, b)| f64::from(a * b)).sum()
        };
        prop_assert!((product(&hop.sum(&x), &y) - product(&x, &hop.turned(&y))).abs() < 1e-4);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn gradients_are_differences(
        model in model(), edges in edges(), layers in 1_usize..4, (limit, share) in (1_u32..5, 0_u32..2)
    ) {
        const STEP: f32 = 4e-3;
        let graph = graph(&edges);
        let network = Network::new(shape(model, layers)).unwrap();
        let mut values = values(&network, u64::from(limit));
        let sample = sampled(&graph, &[5, 0, 3], vec![FanOut::Limit(limit); layers]);
        let dropout = Dropout { share: 0.4 * share as f32, key: KEY };
        let labels = [2, 0, 1];
        let (loss, found) = gradients(&network, &values, input(&graph, &sample), (&labels, dropout));
        for parameter in 0..values.len() {
            for at in 0..values[parameter].len() {
                let start = values[parameter][at];
                let mut loss_at = |value: f32| {
                    values[parameter][at] = value;
                    gradients(&network, &values, input(&graph, &sample), (&labels, dropout)).0
                };
                let (up, down) = (loss_at(start + STEP), loss_at(start - STEP));
                loss_at(start);
                // Where a ReLU or LeakyReLU bends, both sides differ.
                if (up - 2.0 * loss + down).abs() > 2e-3 * f64::from(STEP) {
                    continue;
                }
                let (found, expected) = (f64::from(found[parameter][at]), (up - down) / f64::from(2.0 * STEP));
                prop_assert!((found - expected).abs() < 4e-3 * (1.0 + expected.abs()),
                    "{} {at}: {found}, expected {expected}", network.parameters()[parameter].name);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_gradient_of_features_is_a_difference(
        model in model(), edges in edges(), layers in 1_usize..3, share in 0_u32..2
    ) {
        const STEP: f32 = 4e-3;
        let graph = graph(&edges);
        let network = Network::new(shape(model, layers)).unwrap();
        let values = values(&network, 3);
        let sample = sampled(&graph, &[5, 0, 3], vec![FanOut::Limit(2); layers]);
        let dropout = Dropout { share: 0.4 * share as f32, key: KEY };
        let loss_at = |at: usize, change: f32| {
            let mut input = input(&graph, &sample);
            input.features.values_mut()[at] += change;
            gradients(&network, &values, input, (&[2, 0, 1], dropout))
        };
        let (loss, found) = loss_at(0, 0.0);
        let found = found.last().unwrap();
        prop_assert_eq!(found.len(), FEATURES * sample.vertices.len());
        for (at, found) in found.iter().enumerate() {
            let (up, down) = (loss_at(at, STEP).0, loss_at(at, -STEP).0);
            if (up - 2.0 * loss + down).abs() > 2e-3 * f64::from(STEP) {
                continue;
            }
            let (found, expected) = (f64::from(*found), (up - down) / f64::from(2.0 * STEP));
            prop_assert!((found - expected).abs() < 4e-3 * (1.0 + expected.abs()), "{at}: {found}, {expected}");
        }
    }
}

#[test]
fn drawn_neighbours_of_gcn_stand_for_all_on_average() {
    let graph = graph(&[(1, 0), (2, 0), (3, 0), (4, 0), (0, 1), (0, 2), (5, 3)]);
    let sum = |fan_out: FanOut, seed: u64| {
        let sampling =
            Sampling { fan_outs: vec![fan_out], frontier: Frontier::All, ..Sampling::new(&[]) };
        let (mut sample, mut sampler) = (Sample::new(), Sampler::new(&graph, sampling).unwrap());
        sampler.sample(&graph, &[0], Key { seed, ..KEY }, &mut sample).unwrap();
        let Input { features, .. } = input(&graph, &sample);
        Hop::new(Model::Gcn, &sample, 0, &graph).sum(&features).values()[0]
    };
    let mean = (0..4000).map(|seed| sum(FanOut::Limit(2), seed)).sum::<f32>() / 4000.0;
    assert!((mean - sum(FanOut::All, 0)).abs() < 0.02, "{mean}");
}

#[test]
fn without_seeds_gradients_are_zero() {
    for model in Model::ALL {
        let graph = graph(&[(0, 1)]);
        let network = Network::new(shape(model, 2)).unwrap();
        let sample = sampled(&graph, &[], vec![FanOut::All; 2]);
        let values = values(&network, 1);
        let (_, found) = gradients(&network, &values, input(&graph, &sample), (&[], KEPT));
        for (gradient, parameter) in found.iter().zip(network.parameters()) {
            assert_eq!(*gradient, vec![0.0; parameter.elements()], "{model} {}", parameter.name);
        }
    }
}

#[test]
fn sizes_of_nothing_are_refused() {
    let message = |shape| Network::new(shape).unwrap_err().to_string();
    let of = |model| shape(model, 2);
    assert_eq!(message(shape(Model::Gcn, 0)), "0 layers, expected at least 1");
    assert_eq!(
        message(Shape { hidden: 0, ..of(Model::Sage) }),
        "0 hidden outputs, expected at least 1"
    );
    assert_eq!(
        message(Shape { heads: 3, ..of(Model::Gat) }),
        "4 hidden outputs for 3 heads, expected a multiple"
    );
}
