//! The best choice within a limit of memory, and how far from the best it can be.
//!
//! Memory is given a price per byte. At any price, the cheapest choice costs no more than the best
//! one within the limit does, minus what the limit itself is worth: a lower bound that holds
//! whatever the price. Bisection finds the price with the best bound; of all choices seen on the
//! way, the fastest that fits is taken, and the difference to the bound is the certified gap.
//! (Everett, "Generalized Lagrange multiplier method", 1963.)
//!
//! Law: `bound <= best within the limit <= price.seconds`, and `price.bytes <= limit`.

use super::problem::Price;

/// How often the price is changed at most.
const ROUNDS: usize = 40;

/// A choice within a limit of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Within<Choice> {
    /// What it takes.
    pub price: Price,
    /// Which it is.
    pub choice: Choice,
    /// No choice within the limit takes less time.
    pub bound_s: f64,
    /// What one more byte would save, in seconds; 0 where the limit does not bind.
    pub seconds_per_byte: f64,
}

impl<Choice> Within<Choice> {
    /// The part of its time that the choice may lose to the best one.
    pub fn gap(&self) -> f64 {
        (1.0 - self.bound_s / self.price.seconds).max(0.0)
    }
}

/// The fastest choice found within `limit` bytes, or else the smallest one there is; `cheapest`
/// gives the cheapest choice at a price per byte.
///
/// # Errors
/// If nothing fits: the least bytes that any choice needs.
pub fn within<Choice>(
    limit: f64,
    mut cheapest: impl FnMut(f64) -> (Price, Choice),
) -> Result<Within<Choice>, f64> {
    let (price, choice) = cheapest(0.0);
    if price.bytes <= limit {
        let bound_s = price.seconds;
        return Ok(Within { price, choice, bound_s, seconds_per_byte: 0.0 });
    }
    let mut bound_s = price.seconds;
    let (mut low, mut high) = (0.0, price.seconds / price.bytes);
    let mut best: Option<Within<Choice>> = None;
    for _ in 0..ROUNDS {
        let middle = if best.is_none() { high } else { 0.5 * (low + high) };
        let (price, choice) = cheapest(middle);
        let bound = price.seconds + middle * (price.bytes - limit);
        if price.bytes <= limit {
            high = middle;
            if best.as_ref().is_none_or(|best| price.seconds < best.price.seconds) {
                best = Some(Within { price, choice, bound_s, seconds_per_byte: middle });
            }
        } else {
            low = middle;
            high = if best.is_none() { 8.0 * high } else { high };
            if best.is_none() && high > 1e9 {
                return Err(price.bytes);
            }
        }
        bound_s = bound_s.max(bound);
        if best.as_ref().is_some_and(|best| bound_s >= best.price.seconds * (1.0 - 1e-6)) {
            break;
        }
    }
    let (least, _) = cheapest(1e9);
    best.map(|best| Within { bound_s, ..best }).ok_or(least.bytes)
}
