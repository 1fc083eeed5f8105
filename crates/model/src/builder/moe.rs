//! A mixture of experts: a Llama whose feed-forward parts are chosen for every token.
//!
//! Jiang et al., "Mixtral of Experts"; places per expert as in Lepikhin et al., "GShard".

use super::llama::{self, gated};
use super::sizes::sizes;
use super::{Composer, Llama};
use crate::{Combine, Dispatch, Error, Graph, MatMul, Route, TensorId};

/// The sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moe {
    /// Everything but the experts.
    pub trunk: Llama,
    /// Experts of a block.
    pub experts: usize,
    /// Experts that each token is sent to.
    pub chosen: usize,
    /// Places of an expert over those that it needs if all get equally many tokens.
    pub capacity_factor: f64,
}

/// The model of this name.
pub fn named(name: &str) -> Option<Moe> {
    let trunk = match name {
        "moe-small" => Llama {
            layers: 8,
            hidden: 512,
            heads: 8,
            key_heads: 8,
            feed_forward: 1024,
            vocabulary: 32000,
            positions: 2048,
            base: 10_000.0,
        },
        "mixtral-8x7b" => {
            let llama = llama::named("llama2-7b")?;
            Llama { key_heads: 8, feed_forward: 14336, base: 1_000_000.0, ..llama }
        }
        _ => return None,
    };
    Some(Moe { trunk, experts: 8, chosen: 2, capacity_factor: 1.25 })
}

/// Pattern of the name of a mixture of experts of any size.
pub(super) const SPELLED: &str = "moe:layers=N,width=N,heads=N,key_heads=N,feed_forward=N,vocabulary=N,positions=N,experts=N,chosen=N";

/// The model of a name that says its sizes, as [`SPELLED`]; none if it is another sort of name.
/// Experts have a quarter more places than they need if all get equally many tokens.
pub(super) fn spelled(name: &str) -> Option<Result<Moe, Error>> {
    let names = [
        "layers",
        "width",
        "heads",
        "key_heads",
        "feed_forward",
        "vocabulary",
        "positions",
        "experts",
        "chosen",
    ];
    Some(sizes("moe", name, names)?.and_then(|[trunk @ .., experts, chosen]: [usize; 9]| {
        let trunk = llama::of_sizes(&trunk)?;
        Ok(Moe { trunk, experts, chosen, capacity_factor: 1.25 })
    }))
}

impl Moe {
    /// The graph for a micro-batch of so many sequences of so many tokens.
    ///
    /// # Errors
    /// If sizes contradict each other.
    pub fn graph(&self, batch: usize, sequence: usize) -> Result<Graph, Error> {
        self.trunk.graph_with(batch, sequence, |composer, x| self.experts(composer, x))
    }

    fn experts(&self, composer: &mut Composer, x: TensorId) -> Result<TensorId, Error> {
        let Moe { experts, chosen, trunk: Llama { hidden, feed_forward, .. }, .. } = *self;
        let sequence = composer.shape(x)[1];
        let needed = (sequence * chosen) as f64 / experts as f64;
        let capacity = ((needed * self.capacity_factor).ceil() as usize).clamp(1, sequence);
        let logits = composer.linear_without_bias("router", x, experts)?;
        let gates = composer.apply("route", Route { chosen }, &[logits])?;
        let dispatch = Dispatch { capacity, weighted: false };
        let tokens = composer.apply("dispatch", dispatch, &[x, gates])?;
        let up = composer.weight("gate_up.weight", &[experts, hidden, 2 * feed_forward]);
        let packed =
            composer.apply("gate_up", MatMul::new("beck", "ekn", "becn"), &[tokens, up])?;
        let active = gated(composer, packed)?;
        let down = composer.weight("down.weight", &[experts, feed_forward, hidden]);
        let fed = composer.apply("down", MatMul::new("beck", "ekn", "becn"), &[active, down])?;
        composer.apply("combine", Combine { weighted: true }, &[fed, gates])
    }
}
