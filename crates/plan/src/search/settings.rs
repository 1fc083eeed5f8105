//! Settings: options that hold for all candidates.

use super::{Candidate, Overlap, Pin, Rule};
use crate::Cluster;
use crate::cost::{Coding, Cost, Costs, Division, Exchange, Precision, Sharding, cheapest};
use crate::pipeline::Schedule;

/// Default for the largest relative squared error of one encoding of an activation: `int8` is
/// within it, `int4` is not.
pub const ACTIVATION_BUDGET: f64 = 0.01;

/// Budget that is too small for any codec.
const NOTHING: f64 = -1.0;

/// Options that hold for all candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Sizes of numbers, in bytes.
    pub precision: Precision,
    /// Collective algorithm within a level.
    pub exchange: Exchange,
    /// Computation and communication that may overlap.
    pub overlap: Overlap,
    /// Fraction of a device's memory that stays free.
    pub reserve: f64,
    /// Whether the forward pass may or must be recomputed in the backward pass.
    pub recompute: Recompute,
    /// Whether devices may be left idle if the batch cannot be divided among all of them.
    pub idle: bool,
    /// The only schedule allowed; `None` allows any.
    pub schedule: Option<Schedule>,
    /// Cuts that the user has chosen.
    pub pins: Vec<Pin>,
    /// Codecs for gradients.
    pub codings: Vec<Coding>,
    /// Codec error allowed for gradients: the mean of the relative squared error over all elements
    /// of parameters.
    pub error_budget: f64,
    /// Codecs for activations and their gradients, between stages and within them.
    pub activation_codings: Vec<Coding>,
    /// Largest relative squared error of one encoding of an activation; it holds for every transfer.
    pub activation_budget: f64,
}

/// Recomputation of the forward pass in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// No block recomputes its forward pass.
    Never,
    /// A block recomputes its forward pass where this helps.
    Free,
    /// All blocks recompute their forward passes.
    Always,
}

impl Recompute {
    /// Returns the cost of a block before blocks are chosen to recompute: without recomputation, unless all
    /// blocks recompute.
    pub(super) fn of_all(self, cost: Cost) -> Cost {
        if self == Recompute::Always { cost.recomputed() } else { cost }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            precision: Precision::MIXED,
            exchange: Exchange::Direct,
            overlap: Overlap {
                sync: 1.0,
                all_gather: 1.0,
                messages: true,
                exchanges: true,
                products: false,
            },
            reserve: 0.1,
            recompute: Recompute::Free,
            idle: true,
            schedule: None,
            pins: Vec::new(),
            codings: Vec::new(),
            error_budget: 0.1,
            activation_codings: Vec::new(),
            activation_budget: ACTIVATION_BUDGET,
        }
    }
}

impl Settings {
    /// Returns settings for plans that `thinwire train` runs: single precision, flat exchanges of
    /// raw data, and collectives that begin where their input is computed.
    pub fn of_executor() -> Settings {
        let (precision, exchange) = (Precision::SINGLE, Exchange::Flat);
        let all = Settings::default();
        let overlap = Overlap { products: true, ..all.overlap };
        Settings { precision, exchange, overlap, ..all }
    }

    /// Returns the settings with another activation budget.
    pub(super) fn with_activation_budget(&self, activation_budget: f64) -> Settings {
        Settings { activation_budget, ..self.clone() }
    }

    /// Returns the activation budgets, up to the given one, that lead to different codecs. The least comes
    /// first.
    ///
    /// The least budget encodes nothing, the next allows the codec with the least error, and so on. A level
    /// uses the codec that is cheapest for most of its traffic, so with fewer codecs to choose from, a plan
    /// may still be faster.
    pub(super) fn activation_budgets(&self, cluster: &Cluster) -> Vec<f64> {
        let pace = cluster.pace();
        let losses = self.activation_codings.iter().map(|coding| coding.loss);
        let mut losses: Vec<f64> = losses.filter(|loss| *loss <= self.activation_budget).collect();
        losses.sort_by(f64::total_cmp);
        let mut all: Vec<(f64, Vec<Option<Coding>>)> = Vec::new();
        for budget in std::iter::once(NOTHING).chain(losses) {
            let chosen = cheapest(cluster, &pace, self.precision, &self.activation_codings, budget);
            if all.iter().all(|(_, known)| *known != chosen) {
                all.push((budget, chosen));
            }
        }
        all.into_iter().map(|(budget, _)| budget).collect()
    }

    /// Returns the divisions to try. If devices differ, all parameters are sharded alike: parts of a batch
    /// may have different numbers of micro-batches only if they share nothing within a step.
    pub fn divisions(&self, cluster: &Cluster) -> Vec<Division> {
        match cluster.kinds.is_empty() {
            true => vec![Division::Each],
            false => self.alike().map(Division::Alike).collect(),
        }
    }

    /// Returns the ways to shard all parameters alike. Leaving parameters unsharded pays only if encoded
    /// gradients are cheaper to synchronise than parameters are to gather.
    pub fn alike(&self) -> impl Iterator<Item = Sharding> + use<> {
        let all = [Sharding::None, Sharding::Optimizer, Sharding::Parameters];
        all.into_iter().skip(usize::from(self.codings.is_empty()))
    }

    /// Returns the schedules of a candidate for a model of `blocks` blocks, in families that share
    /// their best strategies.
    pub fn schedules(&self, candidate: &Candidate, blocks: usize) -> Vec<Vec<Schedule>> {
        let mut turns = vec![Schedule::OneForwardOneBackward];
        let Candidate { stages, micro_batches, .. } = *candidate;
        if stages == 1 {
            return vec![turns];
        }
        if let Some(schedule) = self.schedule {
            return vec![vec![schedule]];
        }
        let chunks = [2, 4]
            .into_iter()
            .filter(|chunks| micro_batches.is_multiple_of(stages) && blocks >= chunks * stages);
        turns.extend(chunks.map(|chunks| Schedule::Interleaved { chunks }));
        vec![turns, vec![Schedule::ZeroBubble]]
    }
}

/// Returns the costs of a candidate's mesh. If kinds of devices differ, a search without rules first uses
/// their mean, and balances the load after choosing strategies.
pub fn costs<'a>(cluster: &'a Cluster, candidate: &Candidate, settings: &Settings) -> Costs<'a> {
    let mut costs = Costs::new(cluster, &candidate.mesh, settings.precision);
    costs.division = candidate.division;
    costs.exchange = settings.exchange;
    costs.side_by_side = settings.overlap.exchanges;
    costs.products = settings.overlap.products;
    costs.codings.clone_from(&settings.codings);
    let (codings, budget) = (&settings.activation_codings, settings.activation_budget);
    costs.activations = cheapest(cluster, &cluster.pace(), settings.precision, codings, budget);
    if candidate.rule == Rule::Free && !cluster.kinds.is_empty() {
        costs.device = cluster.mean(candidate.devices());
    }
    costs
}
