//! Layer norm, RMS norm and batch norm.

use thinwire_model::{
    Array, BatchNorm, BatchNormBackward, Epsilon, LayerNorm, LayerNormBackward, Moments,
    MomentsBackward, Region, RmsNorm, RmsNormBackward,
};

use super::Reference;

impl Reference for LayerNorm {
    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let (x, gain, bias) = (inputs[0], inputs[1].values(), inputs[2].values());
        let mut y = x.clone();
        for token in y.values_mut().chunks_mut(gain.len()) {
            normalise(token, self.0);
            for (value, (gain, bias)) in token.iter_mut().zip(gain.iter().zip(bias)) {
                *value = *value * gain + bias;
            }
        }
        vec![y]
    }
}

impl Reference for LayerNormBackward {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (x, gain, dy) = (inputs[0], inputs[1].values(), inputs[2]);
        let count = gain.len();
        let mut dx = x.clone();
        let mut dgain = Array::full(region.output_shape(1), 0.0);
        let mut dbias = dgain.clone();
        for (token, dy) in dx.values_mut().chunks_mut(count).zip(dy.values().chunks(count)) {
            let deviation = normalise(token, self.0.0);
            for n in 0..count {
                dgain.values_mut()[n] += dy[n] * token[n];
                dbias.values_mut()[n] += dy[n];
            }
            // The part of the scaled gradient that would move the mean or the variance is lost.
            let scaled: Vec<f64> = dy.iter().zip(gain).map(|(dy, gain)| dy * gain).collect();
            let mean = scaled.iter().sum::<f64>() / count as f64;
            let along = scaled.iter().zip(&*token).map(|(a, b)| a * b).sum::<f64>() / count as f64;
            for (value, scaled) in token.iter_mut().zip(scaled) {
                *value = (scaled - mean - *value * along) / deviation;
            }
        }
        vec![dx, dgain, dbias]
    }
}

/// Makes a token's mean zero and its variance one, and gives the deviation that it had.
fn normalise(token: &mut [f64], epsilon: Epsilon) -> f64 {
    let count = token.len() as f64;
    let mean = token.iter().sum::<f64>() / count;
    let variance = token.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    let deviation = (variance + epsilon.value).sqrt();
    token.iter_mut().for_each(|value| *value = (*value - mean) / deviation);
    deviation
}

impl Reference for RmsNorm {
    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let (x, gain) = (inputs[0], inputs[1].values());
        let mut y = x.clone();
        for token in y.values_mut().chunks_mut(gain.len()) {
            normalise_square(token, self.0);
            token.iter_mut().zip(gain).for_each(|(value, gain)| *value *= gain);
        }
        vec![y]
    }
}

impl Reference for RmsNormBackward {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (x, gain, dy) = (inputs[0], inputs[1].values(), inputs[2]);
        let count = gain.len();
        let mut dx = x.clone();
        let mut dgain = Array::full(region.output_shape(1), 0.0);
        for (token, dy) in dx.values_mut().chunks_mut(count).zip(dy.values().chunks(count)) {
            let root = normalise_square(token, self.0.0);
            for (total, (dy, value)) in dgain.values_mut().iter_mut().zip(dy.iter().zip(&*token)) {
                *total += dy * value;
            }
            // The part of the scaled gradient that would move the mean square is lost.
            let scaled: Vec<f64> = dy.iter().zip(gain).map(|(dy, gain)| dy * gain).collect();
            let along = scaled.iter().zip(&*token).map(|(a, b)| a * b).sum::<f64>() / count as f64;
            for (value, scaled) in token.iter_mut().zip(scaled) {
                *value = (scaled - *value * along) / root;
            }
        }
        vec![dx, dgain]
    }
}

/// Makes a token's mean square one, and gives the root that it had.
fn normalise_square(token: &mut [f64], epsilon: Epsilon) -> f64 {
    let square = token.iter().map(|value| value * value).sum::<f64>() / token.len() as f64;
    let root = (square + epsilon.value).sqrt();
    token.iter_mut().for_each(|value| *value /= root);
    root
}

impl Reference for Moments {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let mut sum = Array::full(region.output_shape(0), 0.0);
        let mut squares = sum.clone();
        Array::each_index(inputs[0].shape(), |at| {
            let x = inputs[0].at(at);
            sum.add(&at[1..2], x);
            squares.add(&at[1..2], x * x);
        });
        vec![sum, squares]
    }
}

impl Reference for MomentsBackward {
    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let (x, dsum, dsquares) = (inputs[0], inputs[1], inputs[2]);
        let dx = |at: &[usize]| dsum.at(&at[1..2]) + 2.0 * x.at(at) * dsquares.at(&at[1..2]);
        vec![Array::from_fn(x.shape(), dx)]
    }
}

/// Returns the number of values of a channel, their mean, and one over their standard deviation.
fn statistics(epsilon: Epsilon, region: &Region<'_>, of: [f64; 2]) -> (f64, f64, f64) {
    let [sum, squares] = of;
    let axes = region.declaration().axes.iter().filter(|axis| axis.name != 'c');
    let count = axes.map(|axis| axis.length as f64).product();
    let mean = sum / count;
    (count, mean, 1.0 / (squares / count - mean * mean + epsilon.value).sqrt())
}

impl Reference for BatchNorm {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let x = inputs[0];
        let y = Array::from_fn(x.shape(), |at| {
            let channel = |input: usize| inputs[input].at(&at[1..2]);
            let (_, mean, scale) = statistics(self.0, region, [channel(1), channel(2)]);
            (x.at(at) - mean) * scale * channel(3) + channel(4)
        });
        vec![y]
    }
}

impl Reference for BatchNormBackward {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (x, dy) = (inputs[0], inputs[4]);
        let zero = Array::full(region.output_shape(1), 0.0);
        let mut of_channels = [zero.clone(), zero.clone(), zero.clone(), zero];
        let dx = Array::from_fn(x.shape(), |at| {
            let (c, dy) = (&at[1..2], dy.at(at));
            let of = [inputs[1].at(c), inputs[2].at(c)];
            let (count, mean, scale) = statistics(self.0.0, region, of);
            let (centred, scaled) = (x.at(at) - mean, dy * inputs[3].at(c) * scale);
            let dvariance = -0.5 * scaled * centred * scale * scale;
            let dmean = -scaled - 2.0 * mean * dvariance;
            let found = [dmean / count, dvariance / count, dy * centred * scale, dy];
            of_channels.iter_mut().zip(found).for_each(|(sum, value)| sum.add(c, value));
            scaled
        });
        std::iter::once(dx).chain(of_channels).collect()
    }
}
