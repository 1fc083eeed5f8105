//! Text from a model, byte by byte.
//!
//! The text so far is at the start of a row. The bytes after it do not matter, because a prediction must
//! not depend on later bytes. A test detects models whose predictions depend on later bytes, and they
//! are refused.

use thinwire_wire::random::Key;

use super::GraphModel;
use super::logits::Logits;
use crate::error::Error;
use crate::spmd::invalid;
use crate::spmd::modality::Modality;
use crate::spmd::text::Text;
use crate::{VOCABULARY, Windows};

const SAMPLE_STREAM: u32 = 0x7361_6d70;

/// Settings of [`GraphModel::sample`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Number of bytes.
    pub bytes: usize,
    /// Divisor of logits: 1 samples by the model's probabilities, 0 takes the likeliest byte.
    pub temperature: f32,
    /// The seed: the same seed gives the same text.
    pub seed: u64,
}

impl GraphModel {
    /// Returns the bytes that follow `prompt`. An empty prompt counts as the start of a new line.
    ///
    /// # Errors
    /// If a prediction of this model depends on later bytes, or it is a model of images.
    pub fn sample(
        &self,
        values: &[Vec<f32>],
        prompt: &[u8],
        options: &Sampled,
    ) -> Result<Vec<u8>, Error> {
        let key = Key { seed: options.seed, step: 0, tensor: SAMPLE_STREAM };
        let mut text = if prompt.is_empty() { vec![b'\n'] } else { prompt.to_vec() };
        let start = text.len();
        let reader = Reader::new(self, values)?;
        for index in 0..options.bytes {
            let logits = reader.last_logits(&text, 0);
            let byte = match options.temperature {
                0.0 => likeliest(&logits),
                temperature => draw(logits, temperature, key.uniform(index as u64)),
            };
            text.push(byte);
        }
        Ok(text.split_off(start))
    }
}

/// A model with the values of its parameters, and the text that it reads.
struct Reader<'a> {
    logits: Logits<'a>,
    text: &'a Text,
}

impl<'a> Reader<'a> {
    fn new(model: &'a GraphModel, values: &[Vec<f32>]) -> Result<Reader<'a>, Error> {
        let Modality::Text(text) = &model.modality else {
            return Err(invalid("a model of images, expected one of text".to_owned())
                .with_hint("such a model cannot write text"));
        };
        let reader = Reader { logits: Logits::new(model, values), text };
        let half = [b'a'].repeat(text.sizes()[1].div_ceil(2));
        match reader.last_logits(&half, 0) == reader.last_logits(&half, b'z') {
            true => Ok(reader),
            false => {
                let message =
                    "the model's prediction depends on later bytes, expected only earlier ones";
                Err(invalid(message.to_owned()).with_hint("such a model cannot write text"))
            }
        }
    }

    /// Returns the logits of the byte after a text. The model reads the end of the text; the rest of the
    /// row is filled with `rest`.
    fn last_logits(&self, text: &[u8], rest: u8) -> Vec<f32> {
        let [rows, context] = self.text.sizes();
        let seen = &text[text.len().saturating_sub(context)..];
        let mut row = seen.to_vec();
        row.resize(context + 1, rest);
        let inputs = self.text.inputs(&Windows::new(row.repeat(rows), context));
        let logits = self.logits.of(&inputs[0]);
        let width = logits.rows()[1];
        logits.floats()[(seen.len() - 1) * width..][..VOCABULARY].to_vec()
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
    use crate::Config;
    use crate::testing::{loss, start};

    fn model(name: &str) -> GraphModel {
        GraphModel::new(&thinwire_model::named(name, 2, 8).unwrap(), None).unwrap()
    }

    /// Returns a model whose predictions depend strongly on the text that it reads.
    fn opinionated() -> (GraphModel, Vec<Vec<f32>>) {
        let gpt = model(&Config { context: 8, width: 8, layers: 1, heads: 2 }.name());
        let mut values = start(&gpt, 7);
        values.iter_mut().flatten().for_each(|value| *value *= 10.0);
        (gpt, values)
    }

    fn sample(prompt: &[u8], temperature: f32, seed: u64) -> Vec<u8> {
        let (gpt, values) = opinionated();
        let options = Sampled { bytes: 12, temperature, seed };
        gpt.sample(&values, prompt, &options).unwrap()
    }

    #[test]
    fn a_seed_gives_one_text() {
        assert_eq!(sample(b"ab", 1.0, 3), sample(b"ab", 1.0, 3));
        assert_ne!(sample(b"ab", 1.0, 3), sample(b"ab", 1.0, 4));
        assert_eq!(sample(b"", 0.0, 3), sample(b"", 0.0, 4));
    }

    #[test]
    fn text_follows_from_the_end_of_what_was_written() {
        let long = sample(b"a prompt beyond the context", 1.0, 3);
        assert_eq!(long.len(), 12);
        assert_eq!(long, sample(b" context", 1.0, 3));
        assert_ne!(long, sample(b"a prompt", 1.0, 3));
        assert_eq!(sample(b"", 1.0, 3), sample(b"\n", 1.0, 3));
        assert_ne!(sample(b"", 1.0, 3), sample(b"x", 1.0, 3));
    }

    #[test]
    fn every_byte_is_drawn_by_a_number_of_its_own() {
        let drawn = sample(b"", 1e9, 3);
        assert!(drawn.iter().any(|byte| *byte != drawn[0]), "{drawn:?}");
    }

    #[test]
    fn the_next_byte_is_as_likely_as_the_loss_says() {
        let (gpt, values) = opinionated();
        let reader = Reader::new(&gpt, &values).unwrap();
        let logits = reader.last_logits(b"contexts", 0);
        let loss = |byte: u8| {
            let row = [&b"contexts"[..], &[byte]].concat();
            loss(&gpt, &values, &Windows::new(row.repeat(2), 8).into())
        };
        for byte in [b'z', b' ', 0, 255] {
            // Rows differ by what comes last, which is an eighth of the loss.
            let found = logits[usize::from(byte)] - logits[usize::from(b'a')];
            let expected = 8.0 * (loss(b'a') - loss(byte));
            assert!((found - expected).abs() < 1e-4, "{byte}: {found}, by the loss {expected}");
        }
    }

    #[test]
    fn a_model_that_sees_later_bytes_is_refused() {
        let bert = model("bert:layers=1,width=8,heads=2,vocabulary=256,positions=8");
        let options = Sampled { bytes: 1, temperature: 0.0, seed: 1 };
        let values = start(&bert, 7);
        let error = bert.sample(&values, b"a", &options).unwrap_err();
        assert!(error.to_string().contains("depends on later bytes"), "{error}");
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
