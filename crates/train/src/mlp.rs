//! A byte predictor with its backward pass by hand.
//!
//! The smallest model that learns: a byte's row of a table, one hidden layer, logits of the next
//! byte. It needs no tensor library, so that tests of everything around a model run in
//! milliseconds. Gradients by the chain rule; a test compares them with differences.

use crate::{Batch, Error, Initial, Model, Parameter, Sink};

const BYTES: usize = 256;

/// `logits = tanh(table[byte] hidden + a) head + b`.
#[derive(Clone, Debug)]
pub struct Mlp {
    width: usize,
    parameters: Vec<Parameter>,
}

impl Mlp {
    /// A model with `width` hidden units.
    pub fn new(width: usize) -> Mlp {
        let parameter = |name: &str, shape: &[usize], initial| Parameter {
            name: name.to_owned(),
            shape: shape.to_vec(),
            initial,
        };
        let deviation = Initial::Normal((width as f32).powf(-0.5));
        let parameters = vec![
            parameter("head.weight", &[width, BYTES], deviation),
            parameter("head.bias", &[BYTES], Initial::Zeros),
            parameter("hidden.weight", &[width, width], deviation),
            parameter("hidden.bias", &[width], Initial::Zeros),
            parameter("table", &[BYTES, width], Initial::Normal(1.0)),
        ];
        Mlp { width, parameters }
    }

    fn hidden(&self, values: &[Vec<f32>], byte: u8) -> Vec<f32> {
        let row = &values[4][usize::from(byte) * self.width..][..self.width];
        let mut hidden = values[3].clone();
        for (x, weights) in row.iter().zip(values[2].chunks_exact(self.width)) {
            add_scaled(&mut hidden, *x, weights);
        }
        hidden.iter_mut().for_each(|h| *h = h.tanh());
        hidden
    }

    /// Softmax of the logits for the byte after `hidden`.
    fn probabilities(&self, values: &[Vec<f32>], hidden: &[f32]) -> Vec<f32> {
        let mut logits = values[1].clone();
        for (h, weights) in hidden.iter().zip(values[0].chunks_exact(BYTES)) {
            add_scaled(&mut logits, *h, weights);
        }
        let shift = logits.iter().copied().fold(f32::MIN, f32::max);
        logits.iter_mut().for_each(|x| *x = (*x - shift).exp());
        let total: f32 = logits.iter().sum();
        logits.iter_mut().for_each(|x| *x /= total);
        logits
    }

    /// Adds the gradient of one prediction's loss times `scale`; returns the loss.
    fn accumulate(
        &self,
        values: &[Vec<f32>],
        (byte, target): (u8, u8),
        scale: f32,
        gradients: &mut [Vec<f32>],
    ) -> f32 {
        let hidden = self.hidden(values, byte);
        let mut error = self.probabilities(values, &hidden);
        let loss = -error[usize::from(target)].max(f32::MIN_POSITIVE).ln();
        error[usize::from(target)] -= 1.0;
        error.iter_mut().for_each(|e| *e *= scale);

        let mut upstream = vec![0.0; self.width];
        for (i, h) in hidden.iter().enumerate() {
            add_scaled(&mut gradients[0][i * BYTES..][..BYTES], *h, &error);
            upstream[i] = dot(&values[0][i * BYTES..][..BYTES], &error) * (1.0 - h * h);
        }
        add_scaled(&mut gradients[1], 1.0, &error);
        add_scaled(&mut gradients[3], 1.0, &upstream);
        let start = usize::from(byte) * self.width;
        for i in 0..self.width {
            let row = i * self.width..(i + 1) * self.width;
            add_scaled(&mut gradients[2][row.clone()], values[4][start + i], &upstream);
            gradients[4][start + i] += dot(&values[2][row], &upstream);
        }
        loss
    }
}

impl Model for Mlp {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn loss_and_gradients(
        &self,
        values: &[Vec<f32>],
        batch: &Batch,
        sink: &mut Sink<'_>,
    ) -> Result<f32, Error> {
        let mut gradients: Vec<Vec<f32>> = values.iter().map(|v| vec![0.0; v.len()]).collect();
        let scale = 1.0 / batch.predictions() as f32;
        let losses =
            batch.pairs().map(|pair| self.accumulate(values, pair, scale, &mut gradients) * scale);
        let loss = losses.sum();
        for (index, gradient) in gradients.iter_mut().enumerate() {
            sink(index, gradient)?;
        }
        Ok(loss)
    }

    fn loss(&self, values: &[Vec<f32>], batch: &Batch) -> f32 {
        let loss = |(byte, target): (u8, u8)| {
            let hidden = self.hidden(values, byte);
            -self.probabilities(values, &hidden)[usize::from(target)].max(f32::MIN_POSITIVE).ln()
        };
        batch.pairs().map(loss).sum::<f32>() / batch.predictions() as f32
    }
}

fn add_scaled(sum: &mut [f32], scale: f32, values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += scale * value);
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::initial_values;
    use crate::testing::{assert_differences_agree, batch};

    #[test]
    fn gradients_equal_differences() {
        let model = Mlp::new(8);
        let values = initial_values(model.parameters(), 3);
        assert_differences_agree(&model, &values, &batch(3, 6, 1), 2e-3);
    }

    #[test]
    fn loss_is_the_same_with_and_without_gradients() {
        let model = Mlp::new(8);
        let values = initial_values(model.parameters(), 3);
        let batch = batch(2, 5, 9);
        let loss = model.loss_and_gradients(&values, &batch, &mut |_, _| Ok(())).unwrap();
        assert!((loss - model.loss(&values, &batch)).abs() < 1e-6);
    }
}
