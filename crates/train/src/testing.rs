//! Batches and checks that the tests of several modules share.

use thinwire_collective::Group;
use thinwire_link::Link;
use thinwire_model::Part;
use thinwire_wire::random::Key;

use crate::spmd::{ExchangeOptions, Executor, GraphModel, initial};
use crate::{AdamWOptions, Batch, Config, Gradients, LearningRate, Pace, Parameter, Windows};

/// Returns `rows` windows of `context + 1` random letters.
pub fn batch(rows: usize, context: usize, seed: u64) -> Batch {
    let key = Key { seed, step: 0, tensor: 0 };
    let bytes = (0..rows * (context + 1)).map(|i| b'a' + key.below(i as u64, 26) as u8).collect();
    Windows::new(bytes, context).into()
}

/// Returns a small model of text: four rows of eight bytes.
pub fn model(width: usize) -> GraphModel {
    let config = Config { context: 8, width, layers: 1, heads: 1 };
    let graph = thinwire_model::named(&config.name(), 4, config.context).unwrap();
    GraphModel::new(&graph, None).unwrap()
}

/// Returns the parameters of a model before the first step, in its order.
pub fn start(model: &GraphModel, seed: u64) -> Vec<Vec<f32>> {
    values(model, &mut alone(model, None, seed))
}

/// Returns the parameters of an executor with the whole model, in the model's order.
pub fn values(model: &GraphModel, executor: &mut Executor<'_>) -> Vec<Vec<f32>> {
    let mut all = executor.whole().unwrap().unwrap();
    model.parameters().iter().map(|parameter| all.remove(&parameter.name).unwrap()).collect()
}

/// Returns an executor of one rank that starts at these values, or at those of a seed.
pub fn alone<'a>(model: &'a GraphModel, values: Option<&[Vec<f32>]>, seed: u64) -> Executor<'a> {
    let link = thinwire_link::mem::alone();
    executor(model, link, (values, seed), (1, Gradients::F32))
}

/// Returns an executor of a rank of replicas, whose steps have this many micro-batches.
pub fn executor<'a>(
    model: &'a GraphModel,
    link: Link,
    (values, seed): (Option<&[Vec<f32>]>, u64),
    (micro_batches, gradients): (usize, Gradients),
) -> Executor<'a> {
    let graph = &model.training().graph;
    let first = initial(graph, seed);
    let start = |id: usize, parts: &[Part]| match values {
        None => first(id, parts),
        Some(values) => {
            let named = |parameter: &Parameter| parameter.name == graph.tensors[id].name;
            values[model.parameters().iter().position(named).unwrap()].clone()
        }
    };
    let exchange = ExchangeOptions { gradients, ..ExchangeOptions::default() };
    let plan = model.plan(micro_batches);
    let executor =
        Executor::new(model.training(), &plan, Group::new(link), &start, exchange).unwrap();
    executor.with_gradient_norm_max(Some(1.0))
}

/// Takes a step that trains a small model fast; returns the loss.
pub fn step(model: &GraphModel, executor: &mut Executor<'_>, batch: &Batch) -> f32 {
    let rate = LearningRate { peak: 2e-2, floor: 2e-3, warmup_steps: 2, steps: 60 };
    let pace = Pace { learning_rate: rate.at(executor.next_step()), gradient_scale: 1.0 };
    executor.step(&model.micro_batches(batch), pace, &AdamWOptions::default()).unwrap();
    executor.agreed().loss as f32
}

/// Returns the loss and every gradient at some values.
pub fn gradients(model: &GraphModel, values: &[Vec<f32>], batch: &Batch) -> (f32, Vec<Vec<f32>>) {
    let link = thinwire_link::mem::alone();
    let micro_batches = batch.rows() / model.rows();
    let options = (micro_batches, Gradients::F32);
    let mut executor = executor(model, link, (Some(values), 1), options);
    let loss = step(model, &mut executor, batch);
    let gradient = |index| executor.sync().gradient(index).to_vec();
    (loss, (0..values.len()).map(gradient).collect())
}

/// Returns the loss at some values.
pub fn loss(model: &GraphModel, values: &[Vec<f32>], batch: &Batch) -> f32 {
    alone(model, Some(values), 1).evaluate(&model.micro_batches(batch)).unwrap() as f32
}

/// Checks each gradient by moving its parameter along it: the slope of the loss must equal the
/// gradient's norm.
pub fn assert_differences_agree(
    model: &GraphModel,
    values: &[Vec<f32>],
    batch: &Batch,
    tolerance: f32,
) {
    let (_, gradients) = gradients(model, values, batch);
    assert_eq!(gradients.len(), model.parameters().len());
    for (index, gradient) in gradients.iter().enumerate() {
        let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
        let step = 1e-2;
        let shifted = |direction: f32| {
            let mut values = values.to_vec();
            let scale = direction * step / norm;
            values[index].iter_mut().zip(gradient).for_each(|(v, g)| *v += scale * g);
            loss(model, &values, batch)
        };
        let slope = (shifted(1.0) - shifted(-1.0)) / (2.0 * step);
        let name = &model.parameters()[index].name;
        assert!((slope - norm).abs() <= tolerance * (1.0 + norm), "{name}: {slope} and {norm}");
    }
}

/// A new folder that is removed when this is dropped.
pub struct Folder(tempfile::TempDir);

impl Folder {
    /// Creates a folder for the test with this name.
    pub fn new(name: &str) -> Folder {
        Folder(tempfile::TempDir::with_prefix(format!("thinwire-{name}-")).unwrap())
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &std::path::Path {
        self.0.path()
    }
}
