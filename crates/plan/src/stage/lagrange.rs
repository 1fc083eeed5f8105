//! The best choice within a limit of memory, and how far from the best it can be.
//!
//! Memory is given a price per byte. At any price, the cheapest choice costs no more than the best
//! one within the limit does, minus what the limit itself is worth: a lower bound that holds
//! whatever the price. At the price where the last choice that fits and the last one that does not
//! cost alike lies either a cheaper choice, which takes the place of one of them, or the best bound.
//! Of all choices seen on the way, the fastest that fits is taken, and the difference to the bound
//! is the certified gap. (Everett, "Generalized Lagrange multiplier method", 1963.)
//!
//! Law: `bound <= best within the limit <= price.seconds`, and `price.bytes <= limit`.

use super::problem::Price;

/// How often the price is changed at most.
const ROUNDS: usize = 24;
/// Seconds per byte beside which no time counts.
pub(crate) const DEAR: f64 = 1e9;
/// A gap that is not worth another round.
const CLOSE: f64 = 1e-3;
/// What is left for the bound to gain where no round is worth it.
const SETTLED: f64 = 1e-5;

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
    let (least, smallest) = cheapest(DEAR);
    if least.bytes > limit {
        return Err(Lack::Bytes(least.bytes));
    }
    let (mut over, mut under) = (price, least);
    let mut best = Within { price: least, choice: smallest, bound_s, seconds_per_byte: DEAR };
    for _ in 0..ROUNDS {
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
