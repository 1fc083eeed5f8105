//! The ranks among which the link of a job is measured, where its gradients are exchanged in groups.
//!
//! A rank of such a job has peers, which exchange its gradients with it. Other groups of peers exchange other
//! gradients at the same time, over the same network.

use thinwire_collective::broadcast_bytes;
use thinwire_wire::Rank;

use crate::measure::link::LinkSpeed;
use crate::{Channel, Error, Parameter};

/// The longest speed of a link that rank 0 may send, in bytes.
const LINK_BYTES_MAX: usize = 1 << 20;

/// The ranks that exchange all gradients with this one: those of the channel, or a group of them.
pub(crate) fn peers(channel: &Channel, parameters: &[Parameter]) -> Channel {
    let ranks = parameters.first().map_or(&[][..], |first| &first.ranks);
    let alike = parameters.iter().all(|parameter| *parameter.ranks == *ranks);
    let among = if alike && !ranks.is_empty() { channel.among(ranks) } else { None };
    among.unwrap_or_else(|| channel.clone())
}

/// What rank 0 and its peers have measured. Groups of peers measure at one time, but each finds something else,
/// and all ranks must decide alike.
///
/// # Errors
/// If a peer is lost, or what rank 0 sends is no speed.
pub(crate) fn link_of_rank_0(
    channel: &Channel,
    peers: &Channel,
    measured: LinkSpeed,
) -> Result<LinkSpeed, Error> {
    // There is no JSON for the infinite rate of a rank that exchanges with nobody.
    if peers.world().size() == channel.world().size() || peers.world().size() == 1 {
        return Ok(measured);
    }
    let json = serde_json::to_vec(&measured).expect("a link has only finite numbers");
    let json = channel.call(move |group| broadcast_bytes(group, &json, Rank(0), LINK_BYTES_MAX))?;
    serde_json::from_slice(&json)
        .map_err(|error| Error::Invalid(format!("rank 0 sent no speed of a link: {error}")))
}
