//! Number, rate and scale of an update.

/// Number, rate and scale of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Number of this update of these values, from 1.
    pub number: u64,
    /// Learning rate.
    pub learning_rate: f32,
    /// Factor of each gradient before the update, for instance for clipping.
    pub gradient_scale: f32,
}
