//! Settings: what holds for all candidates.

use super::overlap::Overlap;
use crate::cluster::Cluster;
use crate::cost::{Coding, Costs, Division, Exchange, Precision, Sharding, cheapest};
use crate::pipeline::Schedule;

use super::candidate::Candidate;
use super::pin::Pin;
use super::rule::Rule;

/// What one encoding of an activation may lose, unless something else is said: `int8` and what loses
/// less is within it, `int4` is not.
pub const ACTIVATION_BUDGET: f64 = 0.01;

/// A budget within which there is no codec.
const NOTHING: f64 = -1.0;

/// What holds for all candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How numbers are kept.
    pub precision: Precision,
    /// How members of a level exchange.
    pub exchange: Exchange,
    /// What may happen at the same time.
    pub overlap: Overlap,
    /// The part of a device's memory that stays free.
    pub reserve: f64,
    /// Whether forward may be computed again in backward; or must be.
    pub recompute: Recompute,
    /// Whether devices may be left idle where their number does not divide.
    pub idle: bool,
    /// The one schedule that is allowed; any, if there is none.
    pub schedule: Option<Schedule>,
    /// Cuts that the user has chosen.
    pub pins: Vec<Pin>,
    /// What gradients may be encoded with.
    pub codings: Vec<Coding>,
    /// The part of gradients that encoding may lose: the mean over all elements of parameters of
    /// the relative squared error.
    pub error_budget: f64,
    /// What activations and their gradients may be encoded with, between stages and within them.
    pub activation_codings: Vec<Coding>,
    /// What one encoding of an activation may lose: its relative squared error. No transfer may lose
    /// more.
    pub activation_budget: f64,
}

/// Whether forward is computed again in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Never.
    Never,
    /// Where it helps.
    Free,
    /// Always.
    Always,
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
    /// For plans that our executor runs: in single precision, with exchanges that know no levels in
    /// what is not encoded, and that begin where what they carry is made.
    pub fn of_executor() -> Settings {
        let (precision, exchange) = (Precision::SINGLE, Exchange::Flat);
        let all = Settings::default();
        let overlap = Overlap { products: true, ..all.overlap };
        Settings { precision, exchange, overlap, ..all }
    }

    /// The same where one encoding of an activation may lose so much.
    pub(super) fn with_activation_budget(&self, activation_budget: f64) -> Settings {
        Settings { activation_budget, ..self.clone() }
    }

    /// The budgets, up to the one that was given, with which activations travel differently, the
    /// least first: nothing is encoded, then what loses least is, and so on. A level takes the
    /// codec that is cheapest for most of what crosses it; with fewer to choose from a plan may
    /// still be faster.
    pub(super) fn activation_budgets(&self, cluster: &Cluster) -> Vec<f64> {
        let pace = cluster.pace();
        let losses = self.activation_codings.iter().map(|coding| coding.loss);
        let mut losses: Vec<f64> = losses.filter(|loss| *loss <= self.activation_budget).collect();
        losses.sort_by(f64::total_cmp);
        let mut all: Vec<(f64, Vec<Option<Coding>>)> = Vec::new();
        for budget in std::iter::once(NOTHING).chain(losses) {
            let codings = (&self.activation_codings[..], budget);
            let chosen = cheapest((cluster, &pace), self.precision, codings);
            if all.iter().all(|(_, known)| *known != chosen) {
                all.push((budget, chosen));
            }
        }
        all.into_iter().map(|(budget, _)| budget).collect()
    }

    /// What may be divided. Where devices differ all parameters are divided alike: their parts of a
    /// batch do as many micro-batches as suits them only if they share nothing within a step.
    pub fn divisions(&self, cluster: &Cluster) -> Vec<Division> {
        match cluster.kinds.is_empty() {
            true => vec![Division::Each],
            false => self.alike().map(Division::Alike).collect(),
        }
    }

    /// How all parameters may be divided alike. To divide nothing pays only where encoded gradients
    /// are cheaper to bring together than parameters are to gather.
    pub fn alike(&self) -> impl Iterator<Item = Sharding> + use<> {
        let all = [Sharding::None, Sharding::Optimizer, Sharding::Parameters];
        all.into_iter().skip(usize::from(self.codings.is_empty()))
    }

    /// The schedules that a candidate may have, where the model has so many blocks: those together
    /// for which the same strategies are best.
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

/// A candidate's mesh. Where kinds of devices differ, a search without rules works with their mean
/// first; what each of them does is decided after the strategies.
pub fn costs<'a>(cluster: &'a Cluster, candidate: &Candidate, settings: &Settings) -> Costs<'a> {
    let mut costs = Costs::new(cluster, &candidate.mesh, settings.precision);
    costs.division = candidate.division;
    costs.exchange = settings.exchange;
    costs.side_by_side = settings.overlap.exchanges;
    costs.products = settings.overlap.products;
    costs.codings.clone_from(&settings.codings);
    let codings = (&settings.activation_codings[..], settings.activation_budget);
    let pace = cluster.pace();
    costs.activations = cheapest((cluster, &pace), settings.precision, codings);
    if candidate.rule == Rule::Free && !cluster.kinds.is_empty() {
        costs.device = cluster.mean();
    }
    costs
}
