//! Batches and checks that the tests of several modules share.

use thinwire_collective::Group;
use thinwire_wire::random::Key;

use crate::spmd::GraphModel;
use crate::{AdamW, AdamWOptions, Batch, Config, Gradients, LearningRate, Options, Trainer};

/// `rows` windows of `context + 1` random letters.
pub fn batch(rows: usize, context: usize, seed: u64) -> Batch {
    let key = Key { seed, step: 0, tensor: 0 };
    let bytes = (0..rows * (context + 1)).map(|i| b'a' + key.below(i as u64, 26) as u8).collect();
    Batch::new(bytes, context)
}

/// Small model of text: four rows of eight bytes.
pub fn model(width: usize) -> GraphModel {
    let config = Config { context: 8, width, layers: 1, heads: 1 };
    let graph = thinwire_model::named(&config.name(), 4, config.context).unwrap();
    GraphModel::new(&graph, None).unwrap()
}

/// Trainer of one rank.
pub fn alone(model: &GraphModel, options: Options, seed: u64) -> Trainer<'_> {
    in_micro_batches(model, 1, options, seed)
}

/// Trainer of one rank, whose steps have so many micro-batches.
pub fn in_micro_batches(
    model: &GraphModel,
    micro_batches: usize,
    options: Options,
    seed: u64,
) -> Trainer<'_> {
    let group = Group::new(Box::new(thinwire_link::mem::alone()));
    let (raw, options) = (thinwire_sync::Options::default(), Options { micro_batches, ..options });
    Trainer::new(model, group, raw, options, seed).unwrap()
}

/// Returns the loss and every gradient at some values, by a step that changes nothing.
pub fn gradients(model: &GraphModel, values: &[Vec<f32>], batch: &Batch) -> (f32, Vec<Vec<f32>>) {
    let rate = LearningRate { peak: 0.0, floor: 0.0, warmup_steps: 0, steps: 1 };
    let options = Options { learning_rate: rate, gradient_norm_max: None, ..options() };
    let micro_batches = batch.rows().len() / model.rows();
    let mut trainer = in_micro_batches(model, micro_batches, options, 1);
    trainer.restore(0, values, &AdamW::new(model.parameters())).unwrap();
    let loss = trainer.step(batch).unwrap().loss;
    let gradient = |index| trainer.exchange().gradient(index).to_vec();
    (loss, (0..values.len()).map(gradient).collect())
}

/// Returns the loss at some values.
pub fn loss(model: &GraphModel, values: &[Vec<f32>], batch: &Batch) -> f32 {
    let mut trainer = alone(model, options(), 1);
    trainer.restore(0, values, &AdamW::new(model.parameters())).unwrap();
    trainer.loss(std::slice::from_ref(batch)).unwrap() as f32
}

/// Moves the parameters along each gradient in turn: the loss must change by its squared norm.
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

/// A fresh folder that goes when it is dropped.
pub struct Folder(std::path::PathBuf);

impl Folder {
    /// A folder for the test called `name`.
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("thinwire-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Where it is.
    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Settings that train a small model fast.
pub fn options() -> Options {
    Options {
        micro_batches: 1,
        adamw: AdamWOptions::default(),
        learning_rate: LearningRate { peak: 2e-2, floor: 2e-3, warmup_steps: 2, steps: 60 },
        gradient_norm_max: Some(1.0),
        gradients: Gradients::F32,
    }
}
