//! All rules behind one function, with their state in one buffer.

use crate::{
    AdagradOptions, AdamOptions, AdamWOptions, FtrlOptions, MomentumOptions, Step, adagrad, adam,
    adamw, ftrl, momentum, nesterov, sgd,
};

/// Optimiser rule with its settings, without the learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd,
    /// Momentum.
    Momentum(MomentumOptions),
    /// Nesterov's momentum.
    Nesterov(MomentumOptions),
    /// Adam.
    Adam(AdamOptions),
    /// Adam with decoupled weight decay.
    AdamW(AdamWOptions),
    /// Adam on rows that have a gradient; rows without one keep their moments.
    LazyAdam(AdamOptions),
    /// FTRL-Proximal.
    Ftrl(FtrlOptions),
    /// AdaGrad.
    Adagrad(AdagradOptions),
}

impl Rule {
    /// Returns all rules with their usual settings.
    pub fn all() -> [Rule; 8] {
        [
            Rule::Sgd,
            Rule::Momentum(MomentumOptions::default()),
            Rule::Nesterov(MomentumOptions::default()),
            Rule::Adam(AdamOptions::default()),
            Rule::AdamW(AdamWOptions::default()),
            Rule::LazyAdam(AdamOptions::default()),
            Rule::Ftrl(FtrlOptions::default()),
            Rule::Adagrad(AdagradOptions::default()),
        ]
    }

    /// Returns the number of `f32` of state per value; all begin as 0.
    pub fn slots(&self) -> usize {
        match self {
            Rule::Sgd => 0,
            Rule::Momentum(_) | Rule::Nesterov(_) | Rule::Adagrad(_) => 1,
            Rule::Adam(_) | Rule::AdamW(_) | Rule::LazyAdam(_) | Rule::Ftrl(_) => 2,
        }
    }

    /// Returns whether a row without a gradient may be left out of an update.
    pub fn is_lazy(&self) -> bool {
        matches!(self, Rule::Sgd | Rule::LazyAdam(_) | Rule::Ftrl(_) | Rule::Adagrad(_))
    }

    /// Updates `values` and their `state`: [`Rule::slots`] buffers of the length of `values`, one after
    /// the other.
    ///
    /// # Panics
    /// If `gradient` or `state` has another length.
    pub fn update(&self, values: &mut [f32], gradient: &[f32], state: &mut [f32], step: Step) {
        assert_eq!(gradient.len(), values.len(), "gradient of another length");
        assert_eq!(state.len(), self.slots() * values.len(), "state of another length");
        let (first, second) = state.split_at_mut(values.len().min(state.len()));
        match self {
            Rule::Sgd => sgd(values, gradient, step),
            Rule::Momentum(options) => momentum(values, gradient, first, step, options),
            Rule::Nesterov(options) => nesterov(values, gradient, first, step, options),
            Rule::Adam(options) | Rule::LazyAdam(options) => {
                adam(values, gradient, [first, second], step, options);
            }
            Rule::AdamW(options) => adamw(values, gradient, [first, second], step, options),
            Rule::Ftrl(options) => ftrl(values, gradient, [first, second], step, options),
            Rule::Adagrad(options) => adagrad(values, gradient, first, step, options),
        }
    }
}
