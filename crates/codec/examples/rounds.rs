//! Loss of trainings by DiLoCo's rounds, under codecs of deltas.
//!
//! `cargo run --release -p thinwire-codec --example rounds -- TEXT [SEEDS]`: four simulated ranks train a network
//! of one hidden layer, which predicts a letter of a text from the eight before it. Each takes 30 steps of AdamW
//! alone, then all continue from the average of what they decode; what a codec has lost is added to the next
//! delta, times the decay. `recipe` is that of SparseLoCo as deployed, two bits in bins of 1.5 standard deviations;
//! `nesterov` has raw deltas under an outer rate of 0.7 and a momentum of 0.9, all others a rate of 1 and none.

use std::error::Error;

use thinwire_codec::{Choice, Codec, Finite, Input, Write, kernel};
use thinwire_wire::random::Key;

const RANKS: u32 = 4;
const ROUNDS: u64 = 40;
const STEPS: u64 = 30;
const BATCH: u64 = 32;
const RATE: f32 = 2e-3;
const METHODS: [(&str, f32); 9] = [
    ("none", 0.0),
    ("nesterov", 0.0),
    ("blocktopk:64/4096", 1.0),
    ("blocktopk:64/4096", 0.95),
    ("recipe", 0.95),
    ("blocktopk:64/4096:lloyd:2", 0.95),
    ("blocktopk:64/4096:lloyd:2", 1.0),
    ("blocktopk:64/4096:ecsq:0.5", 0.95),
    ("topk:0.015625", 0.95),
];

/// Letters that the network sees, numbers of each of them, units of the hidden layer.
const CONTEXT: usize = 8;
const WIDTH: usize = 16;
const HIDDEN: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let text = Text::new(&std::fs::read(arguments.next().ok_or("a text is missing")?)?);
    let seeds = arguments.next().map_or(Ok(3), |seeds| seeds.parse())?;
    for (method, decay) in METHODS {
        let losses = (0..seeds).map(|seed| train(&text, method, decay, seed));
        let losses: Vec<String> =
            losses.map(|loss| loss.map(|loss| format!("{loss:.4}"))).collect::<Result<_, _>>()?;
        println!("{method:28} decay {decay:4}: {}", losses.join(" "));
    }
    Ok(())
}

/// Letters as numbers below `letters`; the last tenth validates.
struct Text {
    codes: Vec<usize>,
    letters: usize,
}

impl Text {
    fn new(bytes: &[u8]) -> Text {
        let mut used = bytes.to_vec();
        used.sort_unstable();
        used.dedup();
        let code = |byte: &u8| used.binary_search(byte).expect("each is used");
        Text { codes: bytes.iter().map(code).collect(), letters: used.len() }
    }

    /// Returns places of the layers in all parameters: embedding, weights and bias, twice.
    fn layers(&self) -> [usize; 6] {
        let sizes = [
            self.letters * WIDTH,
            CONTEXT * WIDTH * HIDDEN,
            HIDDEN,
            HIDDEN * self.letters,
            self.letters,
        ];
        let mut places = [0; 6];
        (0..5).for_each(|layer| places[layer + 1] = places[layer] + sizes[layer]);
        places
    }

    /// Returns the loss of the letter after a place; adds its gradient, if there is one.
    fn loss(&self, at: usize, parameters: &[f32], gradient: Option<&mut [f32]>) -> f32 {
        let [embedding, first, bias, second, last, _] = self.layers();
        let (seen, wanted) = (&self.codes[at..at + CONTEXT], self.codes[at + CONTEXT]);
        let row = |start: usize, row: usize, length: usize| {
            start + row * length..start + (row + 1) * length
        };
        let given = seen.iter().flat_map(|code| &parameters[row(embedding, *code, WIDTH)]);
        let given: Vec<f32> = given.copied().collect();
        let mut hidden = parameters[bias..second].to_vec();
        for (i, x) in given.iter().enumerate() {
            kernel::add_scaled(&mut hidden, &parameters[row(first, i, HIDDEN)], *x);
        }
        hidden.iter_mut().for_each(|x| *x = x.tanh());
        let mut shares = parameters[last..].to_vec();
        for (j, x) in hidden.iter().enumerate() {
            kernel::add_scaled(&mut shares, &parameters[row(second, j, self.letters)], *x);
        }
        let largest = shares.iter().copied().fold(f32::MIN, f32::max);
        shares.iter_mut().for_each(|x| *x = (*x - largest).exp());
        let sum: f32 = shares.iter().sum();
        shares.iter_mut().for_each(|x| *x /= sum);
        let loss = -shares[wanted].max(1e-30).ln();
        let Some(gradient) = gradient else { return loss };
        shares[wanted] -= 1.0;
        kernel::add(&mut gradient[last..], &shares);
        let mut slopes = vec![0.0; HIDDEN];
        for (j, x) in hidden.iter().enumerate() {
            let range = row(second, j, self.letters);
            slopes[j] = kernel::dot(&parameters[range.clone()], &shares) * (1.0 - x * x);
            kernel::add_scaled(&mut gradient[range], &shares, *x);
        }
        kernel::add(&mut gradient[bias..second], &slopes);
        for (i, x) in given.iter().enumerate() {
            let range = row(first, i, HIDDEN);
            gradient[embedding + seen[i / WIDTH] * WIDTH + i % WIDTH] +=
                kernel::dot(&parameters[range.clone()], &slopes);
            kernel::add_scaled(&mut gradient[range], &slopes, *x);
        }
        loss
    }

    fn first_parameters(&self, seed: u64) -> Vec<f32> {
        let key = Key { seed, step: 0, tensor: 0 };
        let layers = self.layers();
        let scales = [1.0, (CONTEXT * WIDTH) as f32, f32::MAX, HIDDEN as f32, f32::MAX];
        let value = |at: usize| {
            let layer = layers.partition_point(|start| *start <= at) - 1;
            key.normal(at as u64) / scales[layer].sqrt()
        };
        (0..layers[5]).map(value).collect()
    }

    /// Returns the mean loss of many letters of the last tenth.
    fn validate(&self, parameters: &[f32]) -> f64 {
        let start = self.codes.len() / 10 * 9;
        let places: Vec<usize> = (start..self.codes.len() - CONTEXT).step_by(17).collect();
        let sum: f64 = places.iter().map(|at| f64::from(self.loss(*at, parameters, None))).sum();
        sum / places.len() as f64
    }
}

/// A rank's moments of AdamW, and what its deltas have lost.
struct Rank {
    mean: Vec<f32>,
    square: Vec<f32>,
    residual: Vec<f32>,
}

impl Rank {
    /// Takes the steps of a round; returns the parameters after them.
    fn round(&mut self, text: &Text, from: &[f32], key: Key) -> Vec<f32> {
        let mut parameters = from.to_vec();
        let places = (text.codes.len() / 10 * 9 - CONTEXT) as u32;
        for step in 0..STEPS {
            let mut gradient = vec![0.0; from.len()];
            for sample in 0..BATCH {
                let at = key.below(step * BATCH + sample, places) as usize;
                text.loss(at, &parameters, Some(&mut gradient));
            }
            let time = (key.step * STEPS + step + 1) as i32;
            let whole = [0.9f32, 0.99].map(|beta| 1.0 - beta.powi(time));
            for at in 0..from.len() {
                let slope = gradient[at] / BATCH as f32;
                self.mean[at] += 0.1 * (slope - self.mean[at]);
                self.square[at] += 0.01 * (slope * slope - self.square[at]);
                let step = self.mean[at] / whole[0] / ((self.square[at] / whole[1]).sqrt() + 1e-8);
                parameters[at] -= RATE * (step + 0.01 * parameters[at]);
            }
        }
        parameters
    }
}

fn train(text: &Text, method: &str, decay: f32, seed: u64) -> Result<f64, Box<dyn Error>> {
    let mut parameters = text.first_parameters(seed);
    let zeros = vec![0.0; parameters.len()];
    let rank = |_| Rank { mean: zeros.clone(), square: zeros.clone(), residual: zeros.clone() };
    let mut ranks: Vec<Rank> = (0..RANKS).map(rank).collect();
    let mut momentum = zeros.clone();
    let raw = ["none", "nesterov", "recipe"].contains(&method);
    let Choice::Bytes(codec) = Choice::parse(if raw { "none" } else { method })? else {
        return Err("a codec of bytes is expected".into());
    };
    for step in 0..ROUNDS {
        let mut sum = zeros.clone();
        for (number, rank) in (0..).zip(&mut ranks) {
            let key = Key { seed, step, tensor: 1 }.for_rank(number);
            let after = rank.round(text, &parameters, key);
            let owed = rank.residual.iter().zip(&parameters).zip(&after);
            let mut delta: Vec<f32> = owed.map(|((owed, x), y)| owed + (x - y)).collect();
            let sent =
                if method == "recipe" { recipe(&delta) } else { sent(&*codec, &delta, key)? };
            kernel::add_scaled(&mut sum, &sent, 1.0 / RANKS as f32);
            kernel::add_scaled(&mut delta, &sent, -1.0);
            rank.residual = delta.into_iter().map(|lost| decay * lost).collect();
        }
        if method == "nesterov" {
            momentum.iter_mut().zip(&sum).for_each(|(old, x)| *old = 0.9 * *old + x);
            kernel::add_scaled(&mut sum, &momentum, 0.9);
            kernel::add_scaled(&mut parameters, &sum, -0.7);
        } else {
            kernel::add_scaled(&mut parameters, &sum, -1.0);
        }
    }
    Ok(text.validate(&parameters))
}

/// Returns what the other ranks decode.
fn sent(codec: &dyn Codec, delta: &[f32], key: Key) -> Result<Vec<f32>, Box<dyn Error>> {
    let mut bytes = vec![0; codec.encoded_len(delta.len())];
    let mut sent = vec![0.0; delta.len()];
    if codec.encode(Input::Plain(delta), key, &mut bytes) == Finite::No {
        return Err("a delta is not finite".into());
    }
    codec.decode(&bytes[..codec.frame_len(&bytes)], Write::Set, &mut sent)?;
    Ok(sent)
}

/// Returns the largest of blocks in four bins with one table.
fn recipe(delta: &[f32]) -> Vec<f32> {
    let Ok(Choice::Bytes(largest)) = Choice::parse("blocktopk:64/4096") else { unreachable!() };
    let key = Key { seed: 0, step: 0, tensor: 0 };
    let mut sent = sent(&*largest, delta, key).expect("deltas are finite");
    let kept: Vec<f32> = sent.iter().copied().filter(|x| *x != 0.0).collect();
    let count = kept.len() as f32;
    let mean = kept.iter().sum::<f32>() / count;
    let bin = 1.5 * (kept.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / (count - 1.0)).sqrt();
    let code = |x: f32| ((x - mean) / bin + 2.0).round().clamp(0.0, 3.0) as usize;
    let (mut sums, mut counts) = ([0.0; 4], [0.0; 4]);
    kept.iter().for_each(|x| {
        (sums[code(*x)], counts[code(*x)]) = (sums[code(*x)] + x, counts[code(*x)] + 1.0)
    });
    sent.iter_mut().filter(|x| **x != 0.0).for_each(|x| *x = sums[code(*x)] / counts[code(*x)]);
    sent
}
