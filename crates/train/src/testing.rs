//! Batches and checks that the tests of several modules share.

use thinwire_wire::random::Key;

use crate::{AdamWOptions, Batch, Gradients, LearningRate, Model, Options};

/// `rows` windows of `context + 1` random letters.
pub fn batch(rows: usize, context: usize, seed: u64) -> Batch {
    let key = Key { seed, step: 0, tensor: 0 };
    let bytes = (0..rows * (context + 1)).map(|i| b'a' + key.below(i as u64, 26) as u8).collect();
    Batch::new(bytes, context)
}

/// The loss and every gradient.
pub fn gradients(model: &dyn Model, values: &[Vec<f32>], batch: &Batch) -> (f32, Vec<Vec<f32>>) {
    let mut gradients = Vec::new();
    let loss = model
        .loss_and_gradients(values, batch, &mut |index, gradient| {
            assert_eq!(index, gradients.len(), "gradients out of order");
            gradients.push(gradient.to_vec());
            Ok(())
        })
        .unwrap();
    (loss, gradients)
}

/// Moves the parameters along each gradient in turn: the loss must change by its squared norm.
pub fn assert_differences_agree(
    model: &dyn Model,
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
            model.loss(&values, batch)
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
        adamw: AdamWOptions::default(),
        learning_rate: LearningRate { peak: 2e-2, floor: 2e-3, warmup_steps: 2, steps: 60 },
        gradient_norm_max: Some(1.0),
        gradients: Gradients::F32,
    }
}
