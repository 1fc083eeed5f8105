//! Closed forms of collectives on a group, level by level.
//!
//! A reduce-scatter goes from the innermost level outwards, and each level sends the part that the
//! levels within have left. If a unit has g devices of the group, each of them exchanges about 1/g of
//! the bytes with other units. An all-gather goes the other way; an all-reduce is a reduce-scatter and
//! an all-gather. Each level has a closed form of crate `schedule`, whose tests prove it equal to the
//! schedules.
//!
//! | n bytes, f members of a level | steps | bytes sent |
//! |---|---|---|
//! | reduce-scatter, all-gather: direct | 1 | (f−1)/f · n |
//! | reduce-scatter, all-gather: ring | f−1 | (f−1)/f · n |
//! | all-to-all of n bytes on each device | 1 | (f−1)/f · n |
//!
//! The executor of `thinwire train` does not use levels for raw exchanges. A reduce-scatter is then flat, and
//! sends as an all-to-all does: if a unit has g devices of the group, each of them exchanges all of its bytes
//! with other units, except the part of its own unit.

use thinwire_schedule::closed_form::Rounds;

use super::{Group, Hop};
use crate::cluster::Handling;

/// Algorithm of collectives between the members of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Every member sends to every other member at once, level by level.
    Direct,
    /// Every member sends to every other member at once, across all levels.
    Flat,
    /// Members send around a ring, step by step, on links that are all alike.
    Ring,
}

impl Exchange {
    /// Returns the seconds of a reduce-scatter of `bytes` on each device, or of an all-gather to that many
    /// bytes.
    pub fn scatter_s(self, group: &Group, bytes: f64) -> f64 {
        match self {
            Exchange::Flat => self.all_to_all_s(group, bytes),
            _ => group.hops.iter().map(|hop| self.hop_s(hop, bytes / hop.inside)).sum(),
        }
    }

    /// Returns the part of its bytes that a device sends over a hop in a reduce-scatter: (p−1)/p
    /// over all hops together.
    pub(super) fn scattered(self, group: &Group, hop: &Hop) -> f64 {
        match self {
            Exchange::Flat => hop.inside * (hop.members - 1.0) / group.size as f64,
            _ => (hop.members - 1.0) / hop.members / hop.inside,
        }
    }

    /// Returns the device time of a reduce-scatter of `bytes`, or of an all-gather to that many bytes, in
    /// seconds.
    pub(super) fn scatter_handling_s(self, group: &Group, bytes: f64, handling: &Handling) -> f64 {
        let hop = |hop: &Hop| match self {
            Exchange::Flat => flat(group, hop, bytes),
            _ => self.rounds(hop, bytes / hop.inside),
        };
        let seconds = |rounds: Rounds| handling.seconds(rounds.messages, rounds.wire_bytes());
        group.hops.iter().map(|of| seconds(hop(of))).sum()
    }

    /// Returns the seconds of an all-to-all of `bytes` on each device.
    pub fn all_to_all_s(self, group: &Group, bytes: f64) -> f64 {
        let hop = |hop: &Hop| flat(group, hop, bytes).seconds(hop.latency_s, hop.bytes_per_s);
        group.hops.iter().map(hop).sum()
    }

    /// Returns the seconds of a reduce-scatter of `bytes` on each member of one level.
    fn hop_s(self, hop: &Hop, bytes: f64) -> f64 {
        self.rounds(hop, bytes).seconds(hop.latency_s, hop.bytes_per_s)
    }

    /// Returns the messages of a reduce-scatter of `bytes` on each member of one level.
    fn rounds(self, hop: &Hop, bytes: f64) -> Rounds {
        let (others, part) = (hop.members - 1.0, bytes / hop.members);
        match self {
            Exchange::Direct | Exchange::Flat => Rounds::direct(others, part),
            Exchange::Ring => Rounds::ring(others, part),
        }
    }
}

/// Returns the messages of a device over one hop if it sends every other device its part of `bytes`.
fn flat(group: &Group, hop: &Hop, bytes: f64) -> Rounds {
    Rounds::direct(hop.inside * (hop.members - 1.0), bytes / group.size as f64)
}

/// Returns the seconds of one message.
pub fn message_s(hop: &Hop, bytes: f64) -> f64 {
    Rounds::direct(1.0, bytes).seconds(hop.latency_s, hop.bytes_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(members: f64, inside: f64, bytes_per_s: f64) -> Hop {
        Hop { level: 0, members, inside, latency_s: 0.0, bytes_per_s }
    }

    /// Returns a group over four nodes of eight devices.
    fn nodes() -> Group {
        Group { size: 32, hops: vec![hop(8.0, 1.0, 1e12), hop(4.0, 8.0, 1e9)] }
    }

    #[test]
    fn flat_exchanges_send_as_much_but_more_of_it_far_away() {
        let one = Group { size: 4, hops: vec![Hop { latency_s: 1e-4, ..hop(4.0, 1.0, 1e8) }] };
        let [flat, direct] =
            [Exchange::Flat, Exchange::Direct].map(|one_s| one_s.scatter_s(&one, 1e6));
        assert!((flat / direct - 1.0).abs() < 1e-12, "{flat} {direct}");
        let two = nodes();
        for exchange in [Exchange::Flat, Exchange::Direct] {
            let parts: Vec<f64> =
                two.hops.iter().map(|hop| exchange.scattered(&two, hop)).collect();
            assert!((parts.iter().sum::<f64>() - 31.0 / 32.0).abs() < 1e-12, "{parts:?}");
        }
        let expected = 24.0 / 32.0 * 1e9 / 1e9;
        let found = Exchange::Flat.scatter_s(&two, 1e9);
        assert!((found / expected - 1.0).abs() < 1e-2, "{found}, expected {expected}");
    }

    #[test]
    fn outer_levels_carry_what_inner_ones_leave() {
        let expected = 7.0 / 8.0 * 1e9 / 1e12 + 3.0 / 4.0 * 1e9 / 8.0 / 1e9;
        assert!((Exchange::Direct.scatter_s(&nodes(), 1e9) / expected - 1.0).abs() < 1e-5);
    }
}
