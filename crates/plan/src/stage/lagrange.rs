//! The best choice within a limit of memory, with a certified gap to the optimum.
//!
//! Memory is given a price per byte. At any price, the cheapest choice costs at most the cost of the best
//! choice within the limit. Subtracting the price of the whole limit gives a lower bound. The search
//! takes the price at which the last choice that fits and the last choice that does not fit cost the
//! same. If a cheaper choice exists at this price, it replaces one of the two. Otherwise, the bound at
//! this price is the best bound. The result is the fastest choice seen that fits; its difference from
//! the bound is the certified gap. (Everett, "Generalized Lagrange multiplier method", 1963.)
//!
//! Law: `bound <= best within the limit <= price.seconds`, and `price.bytes <= limit`.

use super::Price;

/// Largest number of changes of the price.
const ROUNDS: usize = 24;
/// Price in seconds per byte at which time is negligible.
pub(crate) const DEAR: f64 = 1e9;
/// Gap that is too small for another round.
const CLOSE: f64 = 1e-3;
/// Part by which another round must be able to raise the bound.
const SETTLED: f64 = 1e-5;

/// Choice within a limit of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Within<Choice> {
    /// Price of the choice.
    pub price: Price,
    /// Choice.
    pub choice: Choice,
    /// Lower bound in seconds on all choices within the limit.
    pub bound_s: f64,
    /// Seconds that one more byte of memory would save; 0 if the limit does not bind.
    pub seconds_per_byte: f64,
}

/// Reason why there is no choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lack {
    /// Nothing fits; the value is the fewest bytes of any choice.
    Bytes(f64),
    /// Nothing is fast enough; the value is a lower bound in seconds on all choices within the limit.
    Seconds(f64),
}

/// Returns the fastest choice found within `limit` bytes; `cheapest` gives the cheapest choice at a price per
/// byte. The search ends early if nothing can take less than `enough_s` seconds.
///
/// # Errors
/// Returns an error if nothing fits, or nothing is fast enough.
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
    let (least, smallest) = cheapest(DEAR);
    if least.bytes > limit {
        return Err(Lack::Bytes(least.bytes));
    }
    let (mut over, mut under) = (price, least);
    let mut best = Within { price: least, choice: smallest, bound_s, seconds_per_byte: DEAR };
    for _ in 0..ROUNDS {
        // Price at which the two choices around the limit cost alike: the intersection of their
        // lines.
        let rate = (under.seconds - over.seconds) / (over.bytes - under.bytes);
        let most_s = over.seconds + rate * (over.bytes - limit);
        let close = bound_s >= best.price.seconds * (1.0 - CLOSE);
        if close || most_s <= bound_s * (1.0 + SETTLED) {
            break;
        }
        let (price, choice) = cheapest(rate);
        bound_s = bound_s.max(price.seconds + rate * (price.bytes - limit));
        if bound_s >= enough_s {
            return Err(Lack::Seconds(bound_s));
        }
        if price.bytes > limit {
            over = price;
            continue;
        }
        under = price;
        if price.seconds < best.price.seconds {
            best = Within { price, choice, bound_s, seconds_per_byte: rate };
        }
    }
    Ok(Within { bound_s, ..best })
}

/// Bisection of a price.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    low: f64,
    high: Option<f64>,
    /// Price to try next.
    pub next: f64,
}

impl Rates {
    /// Returns a bisection of any price that begins with `next`.
    pub fn from(next: f64) -> Rates {
        Rates { low: 0.0, high: None, next }
    }

    /// Lowers the price if its choice takes no more than the budget, and raises it otherwise.
    pub fn narrow(&mut self, taken: f64, budget: f64) {
        match taken <= budget {
            true => self.high = Some(self.next),
            false => self.low = self.next,
        }
        self.next = match self.high {
            Some(high) => 0.5 * (self.low + high),
            None => 8.0 * self.next,
        };
    }
}
