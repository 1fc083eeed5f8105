//! Forms of Adam for several ranks. They differ in the values that ranks send each other.
//!
//! - **1-bit Adam** (Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
//!   Convergence Speed", algorithm 1): in a warm-up, ranks exchange raw gradients, and steps equal
//!   AdamW's bit for bit. After the warm-up, each rank updates the momentum by its own gradient, ranks
//!   average the momenta through a codec with error feedback, and the variance no longer changes.
//! - **0/1 Adam** (Lu et al., "Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam",
//!   algorithm 1): in fewer and fewer steps, ranks exchange raw gradients, which change the variance; in
//!   the other steps, they exchange momenta. Once the variance has settled, ranks take more and more
//!   *local* steps between two exchanges. In a local step ranks exchange nothing; the next exchange
//!   averages the momenta of all steps since the last one.
//!
//! Law: after every step with an exchange, all ranks have the same parameters and moments, bit for bit.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thinwire_update::{MomentumStep, is_settled, settling_updates};

use crate::checkpoint::Tensors;

/// Form of Adam for several ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Adam {
    /// AdamW: ranks exchange gradients.
    #[default]
    AdamW,
    /// 1-bit Adam: ranks exchange momenta after a warm-up.
    OneBit,
    /// 0/1 Adam: in each step, ranks exchange either momenta or gradients; later, they exchange nothing
    /// in most steps.
    ZeroOne,
}

impl Adam {
    /// All forms.
    pub const ALL: [Adam; 3] = [Adam::AdamW, Adam::OneBit, Adam::ZeroOne];
}

impl fmt::Display for Adam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Adam::AdamW => "adamw",
            Adam::OneBit => "onebit-adam",
            Adam::ZeroOne => "zero-one-adam",
        })
    }
}

impl FromStr for Adam {
    type Err = String;

    fn from_str(text: &str) -> Result<Adam, String> {
        let found = Adam::ALL.into_iter().find(|adam| adam.to_string() == text);
        found.ok_or_else(|| {
            let names = Adam::ALL.map(|adam| adam.to_string()).join(", ");
            format!("unknown optimizer '{text}', expected one of {names}")
        })
    }
}

impl From<Adam> for String {
    fn from(adam: Adam) -> String {
        adam.to_string()
    }
}

impl TryFrom<String> for Adam {
    type Error = String;

    fn try_from(text: String) -> Result<Adam, String> {
        text.parse()
    }
}

/// The values that travel in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Travel {
    /// Gradients, which change the variance.
    #[default]
    Gradients,
    /// Momenta.
    Momenta,
    /// Nothing.
    Nothing,
}

/// The values that a rank hands over in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sending {
    /// The values that travel.
    pub travel: Travel,
    /// Factor of the means in new momenta.
    pub beta1: f32,
    /// Rate of the step, with its bias correction.
    pub rate: f32,
}

/// Number of updates of the variance after which the interval between two of them doubles: κ of 0/1 Adam.
const DOUBLED_AFTER: u64 = 16;
/// Largest number of steps from one exchange of momenta to the next: H of 0/1 Adam.
const STEPS_MAX: u64 = 16;

/// Returns whether update `update`, counted from 0, changes the variance under 0/1 Adam. This holds until
/// the variance is fixed.
pub(crate) fn changes_variance(update: u64) -> bool {
    variance_updates(update + 1) > variance_updates(update)
}

/// Returns how many of 0/1 Adam's first `updates` updates have changed the variance: 16 at an interval of 1, 16 at an
/// interval of 2, and so on.
pub(crate) fn variance_updates(updates: u64) -> u64 {
    let doublings = (updates / DOUBLED_AFTER + 1).ilog2();
    let before = DOUBLED_AFTER * ((1 << doublings) - 1);
    DOUBLED_AFTER * u64::from(doublings) + (updates - before).div_ceil(1 << doublings)
}

/// Returns the number of steps from one exchange of momenta to the next. It doubles whenever the learning
/// rate has halved since its peak, so that ranks do not move further apart.
pub(crate) fn steps_between(peak: f32, rate: f32) -> u64 {
    let mut steps = 1;
    while steps < STEPS_MAX && rate * (2 * steps) as f32 <= peak {
        steps *= 2;
    }
    steps
}

/// Progress of a variance until it is fixed, and state that is needed after that.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Variance {
    /// Number of updates that have changed the variance; `None` until the variance is fixed.
    pub fixed: Option<u64>,
    /// Highest learning rate since the variance was fixed, for [`steps_between`].
    pub peak: f32,
    /// Learning rate that is applied to the last momenta that were sent, and so also to their residuals;
    /// 0 if this is not tracked.
    pub sent_rate: f32,
    /// Sums of the variance after the last updates that changed it, rounded as a state keeps them.
    sums: VecDeque<f32>,
}

/// Name of the tensor in a state. Names of a parameter's tensors contain a dot, so this one does not.
const NAME: &str = "variance";

impl Variance {
    /// Records the sum of the means of squares after an update that changed them. Returns whether these
    /// means have settled.
    pub fn settles(&mut self, sum: f64, beta2: f32) -> bool {
        self.sums.push_back(sum as f32);
        if self.sums.len() <= settling_updates(f64::from(beta2)) {
            return false;
        }
        let before = self.sums.pop_front().unwrap_or_default();
        is_settled(f64::from(before), f64::from(sum as f32))
    }

    /// Fixes the variance after `updates` updates that have changed it, unless it is fixed already.
    pub fn fix(&mut self, updates: u64) {
        self.sums.clear();
        self.fixed.get_or_insert(updates.max(1));
    }

    /// Adds to a state the values that are equal on all ranks. Adds nothing for a variance that changes
    /// in every update.
    pub fn save(&self, tensors: &mut Tensors) {
        if *self != Variance::default() {
            let fixed = self.fixed.unwrap_or(0) as f32;
            let mut values = vec![fixed, self.peak, self.sent_rate];
            values.extend(&self.sums);
            tensors.insert(NAME.to_owned(), (vec![values.len()], values));
        }
    }

    /// Continues from a state.
    pub fn load(tensors: &Tensors) -> Variance {
        match tensors.get(NAME).map(|(_, values)| &values[..]) {
            Some([fixed, peak, sent_rate, sums @ ..]) => Variance {
                fixed: (*fixed > 0.0).then_some(*fixed as u64),
                peak: *peak,
                sent_rate: *sent_rate,
                sums: sums.iter().copied().collect(),
            },
            _ => Variance::default(),
        }
    }
}

/// State of a rank's local steps since momenta were last exchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Local {
    /// Number of steps.
    pub steps: u64,
    /// Sums of the rank's momenta, each multiplied by the rate of its step, by parameter.
    pub sums: Vec<Vec<f32>>,
    /// Sum of the rates of the local steps.
    pub rate: f32,
    /// Numbers of the last step.
    pub last: Option<MomentumStep>,
}

impl Local {
    /// Takes a local step by this rank's momentum of a parameter.
    pub fn add(&mut self, index: usize, momentum: &[f32], step: MomentumStep) {
        if self.sums.len() <= index {
            self.sums.resize(index + 1, Vec::new());
        }
        let sums = &mut self.sums[index];
        sums.resize(momentum.len(), 0.0);
        sums.iter_mut().zip(momentum).for_each(|(sum, momentum)| *sum += step.rate * momentum);
        self.last = Some(step);
    }

    /// Replaces the momentum of a step with this rate by the mean of all momenta since the last exchange.
    pub fn average(&self, index: usize, momentum: &mut [f32], rate: f32) {
        let whole = self.rate + rate;
        let Some(sums) = self.sums.get(index).filter(|_| whole > 0.0) else { return };
        let all = momentum.iter_mut().zip(sums);
        all.for_each(|(momentum, sum)| *momentum = (sum + rate * *momentum) / whole);
    }

    /// Returns the values with which this rank computes, given the values that are equal on all ranks.
    pub fn shown<'v>(&self, index: usize, values: &'v [f32], squares: &[f32]) -> Cow<'v, [f32]> {
        let (Some(sums), Some(step)) = (self.sums.get(index), self.last) else {
            return Cow::Borrowed(values);
        };
        let moved = values.iter().zip(sums).zip(squares);
        moved.map(|((value, sum), square)| value - sum / step.denominator(*square)).collect()
    }
}

#[cfg(test)]
mod tests;
