//! Gradient transports: ways to shard a parameter and to transport its gradient.
//!
//! A gradient may be encoded on all levels that its group spans, or only on the outer ones, where links are
//! slow; on the inner levels it is then summed raw. On an encoded level with f members and n elements on
//! each:
//!
//! | exchange | bytes sent | encoded, decoded | encodings on the way |
//! |---|---|---|--:|
//! | two-shot, all-reduce | 2 (f−1) · len(n/f) | n + n/f, 2n | 2 |
//! | two-shot, reduce-scatter | (f−1) · len(n/f) | n, n | 1 |
//! | gather of all encodings | (f−1) · len(n) | n, f·n | 1 |
//!
//! With ZeRO, gradients are scattered, and parameters are sent raw. Codec error counts once for each
//! encoding that a value passes through, since ranks' errors add up as their gradients do. A codec with
//! feedback keeps a residual of its input. It also keeps the previous residual until the step is certain
//! to take effect.

use thinwire_model::Sides;
use thinwire_wire::HEADER_BYTES;

use super::{Coding, Cost, Costs, Division, Exchange, Group, Hop, Sharding};

/// Bytes of a residual's elements, and of a codec's input.
pub(super) const F32_BYTES: f64 = 4.0;

/// Number of residuals that are kept: in addition to the new one, the residual from before a step, until the
/// step is certain to take effect.
const RESIDUALS: f64 = 2.0;

/// Way to shard a parameter and to transport its gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientTransport {
    /// Sharding.
    pub sharding: Sharding,
    /// Index of the coding, and the innermost level of the cluster on which it is used; `None` if the
    /// gradient is sent raw.
    pub coding: Option<(usize, usize)>,
    /// Change of the cost, compared with the usual transport.
    pub change: Cost,
}

/// Cost of an exchange on some levels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coded {
    pub wire_s: f64,
    pub handling_s: f64,
    pub codec_s: f64,
    encodings: f64,
    residual_bytes: f64,
}

impl Costs<'_> {
    /// Returns the transports of a parameter other than the usual one. Gradients of vectors are always
    /// sent raw.
    pub fn transports(&self, shape: &[usize], sides: &Sides) -> Vec<GradientTransport> {
        let group = self.sharing(sides);
        if group.size == 1 {
            return Vec::new();
        }
        let elements = self.local(shape, &sides.value);
        let whole: usize = shape.iter().product();
        let usual = self.division.usual();
        let cost = self.divided(usual, elements, &group);
        let mut ways = Vec::new();
        for sharding in std::iter::once(usual).chain(self.others().iter().copied()) {
            let change = self.divided(sharding, elements, &group) - cost;
            if sharding != usual {
                ways.push(GradientTransport { sharding, coding: None, change });
            }
            if shape.len() >= 2 {
                ways.extend(self.encoded(sharding, change, &group, [elements, whole as f64]));
            }
        }
        ways
    }

    /// Returns the shardings other than the usual one. Leaving parameters unsharded pays only if encoded
    /// gradients are cheaper to synchronise than parameters are to gather.
    pub(super) fn others(&self) -> &'static [Sharding] {
        const ALL: &[Sharding] = &[Sharding::Gradients, Sharding::Parameters, Sharding::None];
        match self.division {
            Division::Alike(_) => &[],
            Division::Each if self.codings.is_empty() => &ALL[..2],
            Division::Each => ALL,
        }
    }

    /// Returns all encoded transports under a sharding, given the change that the sharding makes.
    fn encoded(
        &self,
        sharding: Sharding,
        change: Cost,
        group: &Group,
        [elements, whole]: [f64; 2],
    ) -> Vec<GradientTransport> {
        let group = self.under_way(sharding, group);
        let mut ways = Vec::new();
        for (index, coding) in self.codings.iter().enumerate() {
            for (first, hop) in group.hops.iter().enumerate() {
                let coded = self.coded(coding, sharding, &group.hops[first..], elements);
                let raw = self.raw(sharding, &group, first, elements);
                let codec_error = coding.loss * coded.encodings * whole;
                let mut change = change;
                change += saved(sharding, &coded, &raw, codec_error);
                ways.push(GradientTransport { sharding, coding: Some((index, hop.level)), change });
            }
        }
        ways
    }

    /// Returns the cost of the same levels with raw gradients: the cost of all levels minus the cost of
    /// the levels within.
    fn raw(&self, sharding: Sharding, group: &Group, first: usize, elements: f64) -> Coded {
        let bytes = elements * self.precision.element;
        let times = if sharding == Sharding::None { 2.0 } else { 1.0 };
        let handling = &self.device.handling;
        let size = group.hops[first].inside as usize;
        let within = Group { size, hops: group.hops[..first].to_vec() };
        let wire_s = |group| times * self.exchange.scatter_s(group, bytes);
        let own_s = |group| times * self.exchange.scatter_handling_s(group, bytes, handling);
        let wire_s = wire_s(group) - wire_s(&within);
        let handling_s = own_s(group) - own_s(&within);
        Coded { wire_s, handling_s, ..Coded::default() }
    }

    /// Returns the cost of encoding on some levels: level by level, or across all levels at once.
    fn coded(&self, coding: &Coding, sharding: Sharding, hops: &[Hop], elements: f64) -> Coded {
        let together = if self.exchange == Exchange::Flat { hops.len() } else { 1 };
        hops.chunks(together.max(1)).fold(Coded::default(), |sum, hops| {
            let one = self.on_hops(coding, sharding, hops, elements / hops[0].inside);
            Coded {
                wire_s: sum.wire_s + one.wire_s,
                handling_s: sum.handling_s + one.handling_s,
                codec_s: sum.codec_s + one.codec_s,
                encodings: sum.encodings + one.encodings,
                residual_bytes: sum.residual_bytes + one.residual_bytes,
            }
        })
    }

    /// Returns the cost of one encoded exchange of units over some levels.
    pub(super) fn on_hops(
        &self,
        coding: &Coding,
        sharding: Sharding,
        hops: &[Hop],
        elements: f64,
    ) -> Coded {
        let members: f64 = hops.iter().map(|hop| hop.members).product();
        let part = elements / members;
        let send = |elements: f64, times: f64| {
            let message = coding.bytes(elements) + HEADER_BYTES as f64;
            hops.iter().fold([0.0; 2], |[wire_s, handling_s], hop| {
                let others = hop.inside / hops[0].inside * (hop.members - 1.0);
                let bytes = others * message;
                let own_s = self.device.handling.seconds(others, bytes);
                let sent_s = hop.latency_s + bytes / hop.bytes_per_s;
                [wire_s + times * sent_s, handling_s + times * own_s]
            })
        };
        let whole = sharding == Sharding::None;
        let ([wire_s, handling_s], touched, encodings, encoded) = match (whole, coding.gathers()) {
            (true, true) => (send(elements, 1.0), elements * (1.0 + members), 1.0, elements),
            (true, false) => (send(part, 2.0), 3.0 * elements + part, 2.0, elements + part),
            (false, _) => (send(part, 1.0), 2.0 * elements, 1.0, elements),
        };
        let feedback = if coding.codec().needs_feedback() { RESIDUALS * F32_BYTES } else { 0.0 };
        Coded {
            wire_s,
            handling_s,
            codec_s: touched * F32_BYTES / self.device.codec_bytes_per_s,
            encodings,
            residual_bytes: feedback * encoded,
        }
    }
}

/// Returns the change that encoding makes: once per step, or with every micro-batch if gradients are
/// scattered that often.
fn saved(sharding: Sharding, coded: &Coded, raw: &Coded, codec_error: f64) -> Cost {
    let (wire_s, state_bytes) = (coded.wire_s - raw.wire_s, coded.residual_bytes);
    let handling_s = coded.handling_s - raw.handling_s;
    let kept = Cost { state_bytes, codec_error, ..Cost::ZERO };
    match sharding {
        Sharding::None | Sharding::Optimizer => {
            Cost { sync_s: wire_s, handling_s, optimizer_s: coded.codec_s, ..kept }
        }
        Sharding::Gradients | Sharding::Parameters => {
            Cost { backward_wire_s: wire_s, backward_s: coded.codec_s, ..kept }
        }
    }
}

/// Returns the convex hull of the transports of a parameter. From `at`, it takes the transport with the
/// highest `rate`, continues from that transport in the same way, and ends when no transport has a rate.
/// Each transport is returned with its change from the previous one. Of transports with equal rates, the
/// last one is taken.
pub fn hull<'a>(
    transports: impl Iterator<Item = &'a GradientTransport> + Clone,
    mut at: Cost,
    rate: impl Fn(&Cost, &GradientTransport) -> Option<f64>,
) -> Vec<(GradientTransport, Cost)> {
    let mut found = Vec::new();
    loop {
        let rated =
            transports.clone().filter_map(|transport| Some((rate(&at, transport)?, transport)));
        let Some((_, next)) = rated.max_by(|a, b| a.0.total_cmp(&b.0)) else { return found };
        found.push((*next, next.change - at));
        at = next.change;
    }
}
