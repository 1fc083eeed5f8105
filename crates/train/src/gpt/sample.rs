//! Text from a model, byte by byte.

use burn_tensor::{Tensor, TensorData};
use thinwire_wire::random::Key;

use super::leaves::Leaves;
use super::{Gpt, VOCABULARY};

const SAMPLE_STREAM: u32 = 0x7361_6d70;

/// How to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// How many bytes.
    pub bytes: usize,
    /// What logits are divided by: 1 samples as the model predicts, 0 takes the likeliest byte.
    pub temperature: f32,
    /// The seed: the same seed gives the same text.
    pub seed: u64,
}

impl Gpt {
    /// The bytes that follow `prompt`. An empty prompt starts as a new line does.
    pub fn sample(&self, values: &[Vec<f32>], prompt: &[u8], options: &Sampled) -> Vec<u8> {
        let key = Key { seed: options.seed, step: 0, tensor: SAMPLE_STREAM };
        let mut text = if prompt.is_empty() { vec![b'\n'] } else { prompt.to_vec() };
        let start = text.len();
        let segments = self.constants(values);
        for index in 0..options.bytes {
            let seen = &text[text.len().saturating_sub(self.config.context)..];
            let logits = self.last_logits(&segments, seen);
            let byte = match options.temperature {
                0.0 => likeliest(&logits),
                temperature => draw(logits, temperature, key.uniform(index as u64)),
            };
            text.push(byte);
        }
        text.split_off(start)
    }

    fn last_logits(&self, segments: &[Leaves], seen: &[u8]) -> Vec<f32> {
        let tokens: Vec<i32> = seen.iter().map(|byte| i32::from(*byte)).collect();
        let tokens = Tensor::from_data(TensorData::new(tokens, [seen.len()]), &self.device);
        let last = self.trunk(segments, tokens, seen.len()).narrow(0, seen.len() - 1, 1);
        self.logits(last, &segments[self.head()])
            .into_data()
            .try_into_vec()
            .expect("logits are f32")
    }
}

fn likeliest(logits: &[f32]) -> u8 {
    let better = |best: usize, next: usize| if logits[next] > logits[best] { next } else { best };
    (0..VOCABULARY).fold(0, better) as u8
}

fn draw(mut weights: Vec<f32>, temperature: f32, uniform: f32) -> u8 {
    let greatest = weights.iter().copied().fold(f32::MIN, f32::max);
    weights.iter_mut().for_each(|w| *w = ((*w - greatest) / temperature).exp());
    let mut left = uniform * weights.iter().sum::<f32>();
    let passed = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    passed.map_or_else(|| likeliest(&weights), |byte| byte as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpt::Config;
    use crate::model::{Model, initial_values};

    fn sample(prompt: &[u8], temperature: f32, seed: u64) -> Vec<u8> {
        let gpt = Gpt::new(Config { context: 8, width: 8, layers: 1, heads: 2 }).unwrap();
        let values = initial_values(gpt.parameters(), 7);
        gpt.sample(&values, prompt, &Sampled { bytes: 12, temperature, seed })
    }

    #[test]
    fn a_seed_gives_one_text() {
        assert_eq!(sample(b"ab", 1.0, 3), sample(b"ab", 1.0, 3));
        assert_ne!(sample(b"ab", 1.0, 3), sample(b"ab", 1.0, 4));
        assert_eq!(sample(b"", 0.0, 3), sample(b"", 0.0, 4));
        assert_eq!(sample(b"a prompt beyond the context", 1.0, 3).len(), 12);
    }

    #[test]
    fn bytes_are_drawn_as_often_as_they_are_likely() {
        let mut logits = vec![f32::NEG_INFINITY; VOCABULARY];
        (logits[65], logits[66]) = (0.0, 3_f32.ln());
        let key = Key { seed: 1, step: 0, tensor: 0 };
        let count = |temperature| {
            let drawn = (0..4000).map(|i| draw(logits.clone(), temperature, key.uniform(i)));
            drawn.filter(|byte| *byte == 66).count()
        };
        assert!(count(1.0).abs_diff(3000) < 120);
        assert!(count(0.5).abs_diff(3600) < 100);
        assert_eq!(likeliest(&logits), 66);
    }
}
