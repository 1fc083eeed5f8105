//! Advice to use another mode, if no codec within the error budget hides the communication.

use std::fmt;

use thinwire_report::figures;

/// Part of a step that ranks must spend waiting before another mode is proposed.
const WAIT: f64 = 0.1;
/// Numbers of steps between rounds that are tried, in this order.
const EVERY: [u64; 4] = [10, 30, 100, 300];
/// Bytes per element in the codec that is proposed, int4.
const ELEMENT_BYTES: f64 = 0.5;
/// Part of the computation that rounds may take on the wire. A larger part might not be hidden.
const HIDDEN: f64 = 0.5;

/// Figures of steps once `auto` has settled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settled {
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds of a step in which ranks wait for each other.
    pub wait_s: f64,
    /// Elements of all parameters.
    pub elements: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Bandwidth of the slowest link, in bytes per second.
    pub bytes_per_s: f64,
}

/// A mode that would hide the communication.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Advice {
    seen: Settled,
    every: u64,
    step_s: f64,
}

impl Settled {
    /// Returns a mode that would hide the communication, if the present mode does not and the other mode
    /// would be faster. It assumes that a round of each fragment sends as many bytes as an all-reduce of
    /// that part of the parameters, and is sent while the next steps compute.
    pub fn advice(self) -> Option<Advice> {
        let Settled { step_s, wait_s, elements, ranks, bytes_per_s } = self;
        if ranks < 2 || wait_s <= WAIT * step_s {
            return None;
        }
        let compute_s = step_s - wait_s;
        let rounds = 2.0 * (1.0 - 1.0 / ranks as f64) * elements as f64 * ELEMENT_BYTES;
        let wire_s = |every: u64| rounds / bytes_per_s / every as f64;
        let hides = |every: &u64| wire_s(*every) <= HIDDEN * compute_s;
        let every = EVERY.into_iter().find(hides).unwrap_or(EVERY[EVERY.len() - 1]);
        let predicted_s = compute_s.max(wire_s(every));
        let advice = Advice { seen: self, every, step_s: predicted_s };
        (predicted_s < (1.0 - WAIT) * step_s).then_some(advice)
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Advice { seen: Settled { step_s, wait_s, .. }, every, .. } = *self;
        let (fragments, delay) = (every.min(4), every / 6 + 1);
        let [now, then] = [step_s, self.step_s].map(figures::seconds);
        let share = 100.0 * wait_s / step_s;
        write!(
            f,
            "no codec within the error budget hides the exchange: ranks wait for {share:.0} % of a step \
             of {now}; --mode diloco:{every},fragments={fragments},delay={delay} --codec int4 would \
             take about {then} per step, but need some more steps to reach the same loss"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Settled = Settled {
        step_s: 1.0,
        wait_s: 0.75,
        elements: 10_000_000,
        ranks: 4,
        bytes_per_s: 5e6 / 8.0,
    };

    #[test]
    fn rounds_are_proposed_where_they_hide_what_is_sent() {
        // 7.5 MB per round at 0.625 MB/s are 12 s: in 100 steps, half of the computation hides them.
        let advice = SEEN.advice().unwrap();
        assert_eq!((advice.every, advice.step_s), (100, 0.25));
        let fast = Settled { bytes_per_s: 12.5e6, ..SEEN }.advice().unwrap();
        assert_eq!(fast.every, 10);
        assert_eq!(
            fast.to_string(),
            "no codec within the error budget hides the exchange: ranks wait for 75 % of a step of 1.00 \
             s; --mode diloco:10,fragments=4,delay=2 --codec int4 would take about 250 ms per step, but \
             need some more steps to reach the same loss"
        );
    }

    #[test]
    fn nothing_is_proposed_where_it_would_not_help() {
        assert_eq!(Settled { wait_s: 0.05, ..SEEN }.advice(), None);
        assert_eq!(Settled { ranks: 1, ..SEEN }.advice(), None);
        // Not even 300 steps hide it.
        assert_eq!(Settled { bytes_per_s: 1e4, ..SEEN }.advice(), None);
    }
}
