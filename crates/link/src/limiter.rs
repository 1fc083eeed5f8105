//! A token bucket: an emulated link of a given rate.
//!
//! Time is passed in. Law: over any interval `t` it grants at most `rate * t + burst` bytes, and a
//! caller that always asks gets `rate * t`.

use std::time::{Duration, Instant};

use crate::Bandwidth;

/// The bucket holds the bytes of this time at the given rate: 62.5 kB at 100 Mbit/s. The driving thread
/// may oversleep by this time without losing bandwidth.
const BURST_S: f64 = 5e-3;
const BURST_BYTES_MIN: f64 = 4096.0;
/// One grant is at most the bytes of this time, so that traffic is smooth, and no fewer while more are
/// wanted, so that system calls stay few: 6.25 kB at 100 Mbit/s.
const QUANTUM_S: f64 = 5e-4;
const QUANTUM_BYTES_MIN: f64 = 1500.0;

/// Grants bytes at a bounded rate.
#[derive(Clone, Debug)]
pub struct Limiter {
    bytes_per_s: f64,
    burst: f64,
    quantum: f64,
    tokens: f64,
    filled: Instant,
}

impl Limiter {
    /// Returns a full bucket.
    pub fn new(rate: Bandwidth, now: Instant) -> Limiter {
        let bytes_per_s = rate.bytes_per_s();
        let burst = (bytes_per_s * BURST_S).max(BURST_BYTES_MIN);
        let quantum = (bytes_per_s * QUANTUM_S).max(QUANTUM_BYTES_MIN);
        Limiter { bytes_per_s, burst, quantum, tokens: burst, filled: now }
    }

    /// Returns how many of the `wanted` bytes may move now: none, or up to one quantum.
    pub fn grant(&mut self, wanted: usize, now: Instant) -> usize {
        self.fill(now);
        let most = (wanted as f64).min(self.quantum);
        if self.tokens < most { 0 } else { most as usize }
    }

    /// Subtracts `bytes` that were moved, at most as many as were granted.
    pub fn take(&mut self, bytes: usize) {
        self.tokens -= bytes as f64;
    }

    /// Returns the time until [`Limiter::grant`] lets some of the `wanted` bytes move.
    pub fn delay(&mut self, wanted: usize, now: Instant) -> Duration {
        self.fill(now);
        let missing = (wanted as f64).min(self.quantum) - self.tokens;
        if missing <= 0.0 {
            return Duration::ZERO;
        }
        // A nanosecond more, so that rounding does not wake the caller just too early.
        Duration::from_nanos((missing / self.bytes_per_s * 1e9).ceil() as u64 + 1)
    }

    fn fill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled);
        self.tokens = (self.tokens + elapsed.as_secs_f64() * self.bytes_per_s).min(self.burst);
        self.filled = self.filled.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rates() -> impl Strategy<Value = Bandwidth> {
        prop_oneof![Just("1mbit"), Just("100mbit"), Just("1gbit"), Just("10gbit")]
            .prop_map(|rate| rate.parse().unwrap())
    }

    proptest! {
        /// Asks at arbitrary times for arbitrary amounts.
        #[test]
        fn no_interval_gets_more_than_rate_and_burst(
            rate in rates(),
            asks in prop::collection::vec((0u64..20_000, 1usize..200_000), 1..200),
        ) {
            let start = Instant::now();
            let mut limiter = Limiter::new(rate, start);
            let mut now = start;
            let mut grants = Vec::new();
            for (pause_us, wanted) in asks {
                now += Duration::from_micros(pause_us);
                let granted = limiter.grant(wanted, now);
                prop_assert!(granted <= wanted);
                limiter.take(granted);
                grants.push((now, granted));
            }
            for first in 0..grants.len() {
                let mut sum = 0;
                for &(then, granted) in &grants[first..] {
                    sum += granted;
                    let seconds = (then - grants[first].0).as_secs_f64();
                    let most = rate.bytes_per_s() * seconds + limiter.burst + 1.0;
                    prop_assert!(sum as f64 <= most, "{sum} bytes in {seconds} s, at most {most}");
                }
            }
        }

        /// Sleeps for the delay it is told and a little longer, as operating systems do.
        #[test]
        fn whoever_always_asks_gets_the_rate_in_every_window(rate in rates(), late_us in 0u64..1000) {
            let start = Instant::now();
            let mut limiter = Limiter::new(rate, start);
            let (mut now, mut total) = (start, 0.0);
            let mut window = (start, limiter.burst);
            while now < start + Duration::from_millis(500) {
                let granted = limiter.grant(usize::MAX, now);
                limiter.take(granted);
                total += granted as f64;
                let delay = limiter.delay(usize::MAX, now);
                if !delay.is_zero() {
                    now += delay + Duration::from_micros(late_us);
                }
                let seconds = (now - window.0).as_secs_f64();
                if seconds >= 0.1 {
                    let due = rate.bytes_per_s() * seconds;
                    // What one edge of the window may shift into the next one.
                    let edge = limiter.quantum + rate.bytes_per_s() * late_us as f64 * 1e-6;
                    let got = total - window.1;
                    prop_assert!((got - due).abs() <= 2.0 * edge + 2.0, "{got} of {due}");
                    window = (now, total);
                }
            }
            let due = rate.bytes_per_s() * (now - start).as_secs_f64();
            prop_assert!(total >= 0.97 * due, "{total} of {due}");
        }

        #[test]
        fn the_delay_it_tells_is_enough(rate in rates(), wanted in 1usize..1_000_000, taken in 0usize..100) {
            let start = Instant::now();
            let mut limiter = Limiter::new(rate, start);
            for _ in 0..taken {
                let granted = limiter.grant(usize::MAX, start);
                limiter.take(granted);
            }
            let delay = limiter.delay(wanted, start);
            prop_assert!(limiter.grant(wanted, start + delay) > 0);
        }
    }
}
