//! A mixture of experts: a Llama in which each token goes to some of many feed-forward parts.
//!
//! Jiang et al., "Mixtral of Experts"; places per expert as in Lepikhin et al., "GShard".

use super::llama::{self, gated};
use super::sizes::sizes;
use super::{Composer, Llama};
use crate::{Combine, Dispatch, Error, Graph, MatMul, Route, TensorId};

/// The sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moe {
    /// The model without its experts.
    pub trunk: Llama,
    /// Experts of a block.
    pub experts: usize,
    /// Number of experts to which each token is sent.
    pub chosen: usize,
    /// Number of an expert's places, divided by the number that it would need if all experts got the
    /// same number of tokens.
    pub capacity_factor: f64,
}

/// Returns the model with this name.
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

/// Returns the model of a name that contains its sizes, as [`SPELLED`]; `None` if the name has another form.
/// Experts have a quarter more places than they would need if all got the same number of tokens.
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
    /// Returns the graph for a micro-batch of `batch` sequences of `sequence` tokens.
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
