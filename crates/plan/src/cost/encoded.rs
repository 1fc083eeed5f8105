//! Codecs of activations and their gradients, and the cost of encoded transfers.
//!
//! A transfer (a message between stages, an all-gather, or an all-to-all) uses the codec of the outermost
//! level that it crosses. Sums are formed raw within the units of that level, and encoded between them. With
//! n elements on each device and f members of the encoded level:
//!
//! | transfer | bytes sent | encoded, decoded |
//! |---|---|---|
//! | message | len(n) | n, n |
//! | all-gather of n elements together | (f−1) · len(n/f) | n/f, n |
//! | all-to-all | (f−1) · len(n/f) | n, n |
//! | sums | as for gradients | |
//!
//! No transfer may exceed the budget in one encoding, so the cheapest codec within the budget suits all
//! transfers that cross a level. Codecs are compared on a number of elements that makes latency negligible.

use thinwire_model::{Collective, Reduction, Sides, Step};

use super::transport::F32_BYTES;
use super::{Coding, Costs, Group, Hop, Precision, Sharding, message_s};
use crate::Cluster;
use crate::cluster::Device;

/// Number of elements on which codecs are compared.
const MANY: f64 = (1_u64 << 20) as f64;

/// Message from a stage to the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Message {
    /// Length without the header, in bytes.
    pub bytes: f64,
    /// Time from the sender to the receiver, in seconds.
    pub seconds: f64,
    /// Device time at either end, in seconds.
    pub handling_s: f64,
}

/// Returns, for every level, the cheapest coding within the budget for transfers whose outermost level
/// this is; `None` for a level on which raw numbers are cheaper.
pub fn cheapest(
    cluster: &Cluster,
    device: &Device,
    precision: Precision,
    codings: &[Coding],
    budget: f64,
) -> Vec<Option<Coding>> {
    let mut devices = 1.0;
    let mut level = |level: &crate::cluster::Level| {
        let byte_s = devices / level.bytes_per_s + device.handling.byte_s;
        devices *= level.size as f64;
        let coded_s = |coding: &Coding| {
            coding.bytes(MANY) * byte_s + 2.0 * MANY * F32_BYTES / device.codec_bytes_per_s
        };
        let raw_s = MANY * precision.element * byte_s;
        let allowed = codings.iter().filter(|coding| coding.loss <= budget);
        let cheaper = allowed.filter(|coding| coded_s(coding) < raw_s);
        cheaper.min_by(|a, b| coded_s(a).total_cmp(&coded_s(b))).cloned()
    };
    cluster.levels.iter().map(&mut level).collect()
}

impl Costs<'_> {
    /// Returns the message of a tensor that leaves a stage in this layout.
    pub fn message(&self, shape: &[usize], sides: &Sides, hop: &Hop) -> Message {
        let elements = self.local(shape, &sides.value);
        let coding = self.activations.get(hop.level).and_then(Option::as_ref);
        let coding = coding.filter(|_| encodes(shape));
        let bytes = coding.map_or(elements * self.precision.element, |one| one.bytes(elements));
        let codec_s = coding.map_or(0.0, |_| self.codec_s(elements));
        let handling_s = self.message_handling_s(bytes) + codec_s;
        Message { bytes, seconds: message_s(hop, bytes), handling_s }
    }

    /// Returns the coding of a collective, if a tensor of this shape may be encoded. Reductions other than
    /// sums stay raw.
    pub(super) fn coding_of(&self, shape: &[usize], step: &Step) -> Option<&Coding> {
        let sums = match step.collective {
            Collective::ReduceScatter { reduction, .. } | Collective::AllReduce { reduction } => {
                reduction == Reduction::Sum
            }
            _ => true,
        };
        let outermost = self.groups[step.mesh_dim].hops.last().filter(|_| sums && encodes(shape));
        outermost.and_then(|hop| self.activations.get(hop.level)?.as_ref())
    }

    /// Returns the seconds of an encoded collective.
    pub(super) fn encoded_s(&self, step: &Step, coding: &Coding) -> f64 {
        let (group, n) = (&self.groups[step.mesh_dim], step.elements as f64);
        let f = group.size as f64;
        match step.collective {
            Collective::Slice { .. } | Collective::Pad { .. } => 0.0,
            Collective::AllReduce { .. } => self.sum_s(coding, Sharding::None, group, n),
            Collective::ReduceScatter { .. } => self.sum_s(coding, Sharding::Gradients, group, n),
            Collective::AllGather { .. } => {
                let wire_s = self.exchange.scatter_s(group, f * coding.bytes(n / f));
                wire_s + self.codec_s(n + n / f)
            }
            Collective::AllToAll { .. } => {
                let wire_s = self.exchange.all_to_all_s(group, f * coding.bytes(n / f / f));
                wire_s + self.codec_s(2.0 * n / f)
            }
        }
    }

    /// Returns the seconds of a sum that is encoded between the units of the outermost level.
    fn sum_s(&self, coding: &Coding, sharding: Sharding, group: &Group, n: f64) -> f64 {
        let Some(last) = group.hops.last() else { return 0.0 };
        let times = if sharding == Sharding::None { 2.0 } else { 1.0 };
        let bytes = n * self.precision.element;
        let inner_s = times * self.exchange.scatter_s(&within(group), bytes);
        let coded = self.on_hops(coding, sharding, std::slice::from_ref(last), n / last.inside);
        inner_s + coded.wire_s + coded.codec_s
    }

    fn codec_s(&self, elements: f64) -> f64 {
        elements * F32_BYTES / self.device.codec_bytes_per_s
    }
}

/// Returns whether a tensor of this shape may be encoded: only matrices are.
pub(super) fn encodes(shape: &[usize]) -> bool {
    shape.len() >= 2
}

/// Returns the part of a group that lies within a unit of its outermost level.
fn within(group: &Group) -> Group {
    let hops = group.hops[..group.hops.len().saturating_sub(1)].to_vec();
    Group { size: group.hops.last().map_or(1, |hop| hop.inside as usize), hops }
}
