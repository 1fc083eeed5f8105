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
const ROUNDS: usize = 24;
/// Seconds per byte beside which no time counts.
const DEAR: f64 = 1e9;
/// A gap that is not worth another round.
const CLOSE: f64 = 1e-3;

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

/// Why there is no choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lack {
    /// Nothing fits: the least bytes that any choice needs.
    Bytes(f64),
    /// Nothing within the limit takes less than these seconds, and that is too much.
    Seconds(f64),
}

/// The fastest choice found within `limit` bytes; `cheapest` gives the cheapest choice at a price
/// per byte. The search ends early where nothing can take less than `enough_s` seconds.
///
/// # Errors
/// If nothing fits, or nothing is fast enough.
pub fn within<Choice>(
    limit: f64,
    enough_s: f64,
    mut cheapest: impl FnMut(f64) -> (Price, Choice),
) -> Result<Within<Choice>, Lack> {
    let (price, choice) = cheapest(0.0);
    let mut bound_s = price.seconds;
    if bound_s >= enough_s {
        return Err(Lack::Seconds(bound_s));
    }
    if price.bytes <= limit {
        return Ok(Within { price, choice, bound_s, seconds_per_byte: 0.0 });
    }
    let (least, _) = cheapest(DEAR);
    if least.bytes > limit {
        return Err(Lack::Bytes(least.bytes));
    }
    let mut rates = Rates::from(price.seconds.abs() / price.bytes);
    let mut best: Option<Within<Choice>> = None;
    for _ in 0..ROUNDS {
        let rate = rates.next;
        let (price, choice) = cheapest(rate);
        bound_s = bound_s.max(price.seconds + rate * (price.bytes - limit));
        if bound_s >= enough_s {
            return Err(Lack::Seconds(bound_s));
        }
        let fits = price.bytes <= limit;
        rates.narrow(fits);
        if fits && best.as_ref().is_none_or(|best| price.seconds < best.price.seconds) {
            best = Some(Within { price, choice, bound_s, seconds_per_byte: rate });
        }
        if best.as_ref().is_some_and(|best| bound_s >= best.price.seconds * (1.0 - CLOSE)) {
            break;
        }
    }
    let smallest = || {
        let (price, choice) = cheapest(DEAR);
        Within { price, choice, bound_s, seconds_per_byte: DEAR }
    };
    Ok(Within { bound_s, ..best.unwrap_or_else(smallest) })
}

/// The prices of what is short between which the best bound lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    low: f64,
    high: Option<f64>,
    /// The price to try next.
    pub next: f64,
}

impl Rates {
    /// Any price, this one first.
    pub fn from(next: f64) -> Rates {
        Rates { low: 0.0, high: None, next }
    }

    /// What fits at the last price is cheap enough; what does not is too dear in bytes.
    pub fn narrow(&mut self, fits: bool) {
        match fits {
            true => self.high = Some(self.next),
            false => self.low = self.next,
        }
        self.next = match self.high {
            Some(high) => 0.5 * (self.low + high),
            None => 8.0 * self.next,
        };
    }
}
