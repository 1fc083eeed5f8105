//! Error feedback: the ways to correct codec errors in later steps.
//!
//! `C` encodes and decodes, `g` is a rank's gradient, `c` the sum over ranks of the decoded values.
//!
//! - **classic**: send `C(g + e)`, keep `e = (g + e) − C(g + e)`. Law: results plus residuals are
//!   gradients plus the residuals before. Karimireddy et al., "Error feedback fixes SignSGD and other
//!   gradient compression schemes", algorithm 2.
//! - **average**: as classic, but the residual is a moving average of codec errors:
//!   `e = β e + (1 − β) ((g + e) − C(g + e))`. Steadier where codecs are coarse; errors that it forgets
//!   are lost. With β = 0 it is classic, bit for bit. Xie et al., "LoCo: low-bit communication adaptor
//!   for large-scale model training", section 3.
//! - **decay**: as classic, but only a part of the codec error is kept: `e = f ((g + e) − C(g + e))`.
//!   What a sparse codec has not sent for many steps counts less and less. With f = 1 it is classic,
//!   bit for bit. Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", section 3.
//! - **ef21**: send `C(g − s)` where `s` is the gradient that the other ranks assume for this rank,
//!   and then set `s = s + C(g − s)`. All ranks keep the same running value, add `c` to it in every
//!   step, and take it as the result. There is no residual: if a gradient stays the same, `s`
//!   approaches it. Law: the sum over ranks of `s` is the result. Richtárik et al., "EF21: a new,
//!   simpler, theoretically better, and practically faster error feedback", algorithm 2.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::buffer::Tensor;

/// The kind of error feedback, for codecs that need it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Feedback {
    /// The codec error of a step is added to the next gradient.
    #[default]
    Classic,
    /// Each rank sends the difference between its gradient and the gradient that the others assume
    /// for it.
    Ef21,
    /// The codec error is averaged over steps.
    Average {
        /// The share of the old residual in the new one, from 0 to below 1.
        beta: f32,
    },
    /// A part of the codec error of a step is added to the next gradient.
    Decay {
        /// The part, from 0 to 1.
        factor: f32,
    },
}

impl fmt::Display for Feedback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Feedback::Classic => f.write_str("classic"),
            Feedback::Ef21 => f.write_str("ef21"),
            Feedback::Average { beta } => write!(f, "average:{beta}"),
            Feedback::Decay { factor } => write!(f, "decay:{factor}"),
        }
    }
}

/// A name that no kind of error feedback has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown feedback '{0}', expected classic, ef21, average:BETA with a BETA from 0 to below 1, or \
     decay:FACTOR with a FACTOR from 0 to 1"
)]
pub struct UnknownFeedback(String);

impl FromStr for Feedback {
    type Err = UnknownFeedback;

    fn from_str(name: &str) -> Result<Feedback, UnknownFeedback> {
        let (kind, number) = name.split_once(':').unwrap_or((name, ""));
        let found = match (kind, number.parse().ok()) {
            ("classic", None) if kind == name => Some(Feedback::Classic),
            ("ef21", None) if kind == name => Some(Feedback::Ef21),
            ("average", Some(beta)) if (0.0..1.0).contains(&beta) => {
                Some(Feedback::Average { beta })
            }
            ("decay", Some(factor)) if (0.0..=1.0).contains(&factor) => {
                Some(Feedback::Decay { factor })
            }
            _ => None,
        };
        found.ok_or_else(|| UnknownFeedback(name.to_owned()))
    }
}

/// The memory of one bucket's feedback in addition to the residual.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    kind: Feedback,
    /// With `average` the residual before the step, with `ef21` the gradient of the step.
    begun: Vec<f32>,
    /// With `ef21`, the gradient that the others assume for this rank; empty for zeros.
    shift: Vec<f32>,
    /// With `ef21`, the sum over ranks of the shifts: the same on all of them.
    mean: Vec<f32>,
}

impl Memory {
    pub(crate) fn new(kind: Feedback) -> Memory {
        Memory { kind, ..Memory::default() }
    }

    /// Returns the kind of feedback; the classic one has no memory but the residual.
    pub(crate) fn kind(&self) -> Feedback {
        self.kind
    }

    /// Prepares a bucket that leaves by a codec with feedback.
    pub(crate) fn depart(&mut self, values: &mut Tensor, residual: &Tensor) {
        match self.kind {
            Feedback::Classic | Feedback::Decay { .. } => {}
            Feedback::Average { .. } => copy(&mut self.begun, residual.as_ref()),
            Feedback::Ef21 => {
                let (values, residual) = (values.as_mut(), residual.as_ref());
                copy(&mut self.begun, values);
                thinwire_codec::kernel::add(&mut self.begun, residual);
                self.shift.resize(values.len(), 0.0);
                self.mean.resize(values.len(), 0.0);
                values.iter_mut().zip(&self.shift).for_each(|(value, shift)| *value -= shift);
            }
        }
    }

    /// Ends a step that all ranks have kept: the sent values become the result, and the codec error the
    /// new residual.
    pub(crate) fn settle(&mut self, result: &mut Tensor, residual: &mut Tensor) {
        match self.kind {
            Feedback::Classic => {}
            Feedback::Average { beta } => {
                for (lost, begun) in residual.as_mut().iter_mut().zip(&self.begun) {
                    *lost = beta * begun + (1.0 - beta) * *lost;
                }
            }
            Feedback::Decay { factor } => {
                residual.as_mut().iter_mut().for_each(|lost| *lost *= factor);
            }
            Feedback::Ef21 => {
                let (result, residual) = (result.as_mut(), residual.as_mut());
                let known = self.shift.iter_mut().zip(&self.begun).zip(residual.iter());
                known.for_each(|((shift, begun), lost)| *shift = begun - lost);
                thinwire_codec::kernel::add(&mut self.mean, result);
                result.copy_from_slice(&self.mean);
                residual.fill(0.0);
            }
        }
    }

    /// Forgets everything, since the bucket has travelled raw.
    pub(crate) fn forget(&mut self) {
        (self.shift, self.mean) = (Vec::new(), Vec::new());
    }

    /// Returns the bytes that it holds in addition to the gradients.
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.begun.len() + self.shift.len() + self.mean.len())
    }

    /// Returns the memory of some elements for a checkpoint, by prefix of its name.
    pub(crate) fn save(&self, range: &Range<usize>) -> Vec<(&'static str, Vec<f32>)> {
        let kept = [(SHIFT, &self.shift), (MEAN, &self.mean)].into_iter();
        let kept = kept.filter(|(_, values)| !values.is_empty());
        kept.map(|(prefix, values)| (prefix, values[range.clone()].to_vec())).collect()
    }

    /// Returns the place of tensors with a prefix from a checkpoint, in a bucket of `elements`
    /// elements.
    pub(crate) fn place(&mut self, prefix: &str, elements: usize) -> Option<&mut Vec<f32>> {
        let place = match (self.kind, prefix) {
            (Feedback::Ef21, SHIFT) => &mut self.shift,
            (Feedback::Ef21, MEAN) => &mut self.mean,
            _ => return None,
        };
        place.resize(elements, 0.0);
        Some(place)
    }
}

pub(crate) const SHIFT: &str = "shift";
pub(crate) const MEAN: &str = "mean";

fn copy(target: &mut Vec<f32>, source: &[f32]) {
    target.clear();
    target.extend_from_slice(source);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for name in ["classic", "ef21", "average:0.9", "average:0", "decay:0.95", "decay:1"] {
            assert_eq!(name.parse::<Feedback>().unwrap().to_string(), name);
        }
        let averages = ["", "average", "average:1", "average:-0.1", "average:NaN", "ef22", "ef21:"];
        for name in averages.into_iter().chain(["decay", "decay:1.1", "decay:-1", "decay:NaN"]) {
            let error = name.parse::<Feedback>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("unknown feedback '{name}', expected classic")));
        }
    }
}
