//! Optimiser rules on flat `f32` buffers.
//!
//! Each rule is a function over slices that updates every element from its own gradient and its own
//! state, and from nothing else. Trainer and parameter servers run the same functions, so a parameter
//! may move from one to the other. There are no threads, no clock, no allocation. Laws:
//!
//! - a rule is the formula of its paper, element by element;
//! - updating a slice in parts gives the bits of updating it at once, whatever the parts;
//! - [`Optimizer::update_rows`] touches only the rows that it is given;
//! - `Optimizer::parse(&optimizer.to_string()) == Ok(optimizer)`.
//!
//! | rule | state | zero gradient | from |
//! |---|--:|---|---|
//! | `sgd` | 0 | changes nothing | Robbins and Monro, "A Stochastic Approximation Method" |
//! | `momentum` | 1 | moves | Polyak, "Some methods of speeding up the convergence of iteration methods" |
//! | `nesterov` | 1 | moves | Sutskever et al., "On the importance of initialization and momentum in deep learning" |
//! | `adam` | 2 | moves | Kingma and Ba, "Adam: A Method for Stochastic Optimization" |
//! | `adamw` | 2 | moves | Loshchilov and Hutter, "Decoupled Weight Decay Regularization" |
//! | `lazyadam` | 2 | changes nothing | Adam on the rows that have a gradient |
//! | `ftrl` | 2 | changes nothing | McMahan et al., "Ad Click Prediction: a View from the Trenches" |
//! | `adagrad` | 1 | changes nothing | Duchi et al., "Adaptive Subgradient Methods for Online Learning" |
//!
//! ```
//! use thinwire_update::{Optimizer, Step};
//!
//! let optimizer = Optimizer::parse("momentum:lr=0.5,factor=0.9")?;
//! let (mut values, mut state) = ([1.0, 2.0], vec![0.0; 2 * optimizer.rule.slots()]);
//! for number in 1..=2 {
//!     let step = Step { number, learning_rate: optimizer.learning_rate, gradient_scale: 1.0 };
//!     optimizer.rule.update(&mut values, &[1.0, 0.0], &mut state, step);
//! }
//! assert_eq!(values, [1.0 - 0.5 * 1.0 - 0.5 * 1.9, 2.0]);
//! # Ok::<(), thinwire_update::Error>(())
//! ```
#![forbid(unsafe_code)]

mod adagrad;
mod adam;
mod adamw;
mod error;
mod fixed_variance;
mod ftrl;
mod momentum;
mod nesterov;
mod optimizer;
mod rows;
mod rule;
mod sgd;
mod step;

pub use adagrad::{AdagradOptions, adagrad};
pub use adam::{AdamOptions, adam};
pub use adamw::{AdamWOptions, adamw};
pub use error::{Error, Kind};
pub use fixed_variance::{MomentumStep, adamw_by_momentum, is_settled, settling_updates};
pub use ftrl::{FtrlOptions, ftrl};
pub use momentum::{MomentumOptions, momentum};
pub use nesterov::nesterov;
pub use optimizer::Optimizer;
pub use rows::Rows;
pub use rule::Rule;
pub use sgd::sgd;
pub use step::Step;
