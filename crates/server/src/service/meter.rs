//! Rate limit of one client, in bytes per second.
//!
//! Messages are counted as they arrive; a client that exceeds its rate is held until it no longer does. Law:
//! over any interval `t`, a client that sends nothing while it is held gets at most `rate * t + burst` bytes
//! plus one message.

use std::time::Instant;

use thinwire_link::{Bandwidth, Limiter};

/// Meter of a client's bytes.
#[derive(Clone, Debug)]
pub struct Meter {
    limiter: Limiter,
    held_until: Option<Instant>,
}

impl Meter {
    /// Creates a meter that allows a burst.
    pub fn new(rate: Bandwidth, now: Instant) -> Meter {
        Meter { limiter: Limiter::new(rate, now), held_until: None }
    }

    /// Counts bytes. Returns whether the client has to be held from now on.
    pub fn count(&mut self, bytes: usize, now: Instant) -> bool {
        // The bucket is refilled for the elapsed time before bytes are taken out.
        self.limiter.grant(0, now);
        self.limiter.take(bytes);
        let delay = self.limiter.delay(1, now);
        let is_held = self.held_until.is_some();
        if !delay.is_zero() {
            self.held_until = Some(now + delay);
        }
        !is_held && self.held_until.is_some()
    }

    /// Returns the time until which the client is held.
    pub fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    /// Updates the meter to `now`. Returns whether the client is no longer held.
    pub fn release(&mut self, now: Instant) -> bool {
        self.held_until.take_if(|until| *until <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_interval_gets_more_than_the_rate_a_burst_and_a_message(
            messages in prop::collection::vec((0_u64..30_000, 1_usize..1_000_000), 1..100)
        ) {
            let rate: Bandwidth = "100mbit".parse().unwrap();
            let (begun, burst) = (Instant::now(), 5e-3 * rate.bytes_per_s());
            let (mut meter, mut now) = (Meter::new(rate, begun), begun);
            let mut taken: Vec<(Instant, usize)> = Vec::new();
            for (pause_us, bytes) in messages {
                now += Duration::from_micros(pause_us);
                if let Some(until) = meter.held_until() {
                    prop_assert!(until <= now || !meter.release(now));
                    now = now.max(until);
                    prop_assert!(meter.release(now));
                }
                let is_held = meter.count(bytes, now);
                prop_assert_eq!(is_held, meter.held_until().is_some());
                taken.push((now, bytes));
                for from in 0..taken.len() {
                    let seconds = (now - taken[from].0).as_secs_f64();
                    let before: usize = taken[from..taken.len() - 1].iter().map(|(_, it)| it).sum();
                    let most = rate.bytes_per_s() * seconds + burst + 1.0;
                    prop_assert!(before as f64 <= most, "{before} bytes and one message in {seconds} s");
                }
            }
        }
    }

    #[test]
    fn whoever_stays_below_the_rate_is_never_held() {
        let rate: Bandwidth = "80mbit".parse().unwrap();
        let mut now = Instant::now();
        let mut meter = Meter::new(rate, now);
        for _ in 0..1000 {
            assert!(!meter.count(10_000, now));
            now += Duration::from_millis(1);
        }
    }
}
