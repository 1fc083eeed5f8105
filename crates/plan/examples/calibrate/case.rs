//! A measured step as a plan of ours: the same grid, with everything computed again in backward.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use thinwire_model::{AttentionKind, Gpt};
use thinwire_plan::Cluster;
use thinwire_plan::cost::{Costs, Division, Exchange, Sharding};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::search::{
    Candidate, Chain, Evaluated, Given, Overlap, Prepared, Recompute, Rule, Settings, best_of,
    costs,
};
use thinwire_plan::stage::Weights;

use crate::row::Row;

/// The vocabulary of all of them.
const VOCABULARY: usize = 51_200;

/// A row, ready to be priced under any constants.
pub struct Case {
    pub row: Row,
    prepared: Arc<Prepared>,
    candidate: Candidate,
    settings: Settings,
    given: Given,
}

/// Models that were built.
pub type Models = HashMap<[usize; 5], Arc<Prepared>>;

impl Case {
    /// The strategies that are best within the grid, on some cluster.
    pub fn new(row: &Row, models: &mut Models, cluster: &Cluster) -> Result<Case, Box<dyn Error>> {
        let prepared = prepared(row, models)?;
        let mesh = if row.tensor == 1 { vec![row.data] } else { vec![row.data, row.tensor] };
        let candidate = Candidate {
            stages: row.stages,
            mesh,
            micro_batches: row.batch / row.data / row.micro,
            division: Division::Alike(Sharding::None),
            rule: Rule::PlainGrid,
        };
        let settings = settings(row);
        let costs = costs(cluster, &candidate, &settings);
        let chain = Chain::new(&prepared, &costs, candidate.rule)?;
        let rounds = candidate.micro_batches as f64;
        let weights = Weights {
            forward: 2.0 * rounds,
            forward_wire: 2.0 * rounds,
            backward: rounds,
            backward_wire: rounds,
            ..Weights::ONCE
        };
        let (_, choice) = chain.solve(&weights, 0.0);
        let given = chain.given(&choice);
        Ok(Case { row: row.clone(), prepared, candidate, settings, given })
    }

    /// Seconds of a step on a cluster.
    pub fn seconds(&self, cluster: &Cluster) -> f64 {
        let costs: Costs<'_> = costs(cluster, &self.candidate, &self.settings);
        let chain = Chain::given_by(&self.prepared, &costs, self.candidate.rule, &self.given);
        let chain = chain.expect("the same chain was built before");
        match best_of(&chain, &costs, &self.candidate, &self.settings, &|| f64::INFINITY) {
            Evaluated::Found(outcome) => outcome.seconds,
            _ => f64::INFINITY,
        }
    }
}

fn prepared(row: &Row, models: &mut Models) -> Result<Arc<Prepared>, Box<dyn Error>> {
    let batch = row.micro * row.data;
    let key = [row.layers, row.hidden, row.heads, row.sequence, batch];
    if let Some(known) = models.get(&key) {
        return Ok(known.clone());
    }
    let gpt = Gpt {
        layers: row.layers,
        hidden: row.hidden,
        heads: row.heads,
        feed_forward: 4 * row.hidden,
        vocabulary: VOCABULARY,
        positions: row.sequence,
        attention: AttentionKind::Plain,
        dropout: 0.1,
    };
    let prepared = Arc::new(Prepared::new(gpt.graph(batch, row.sequence)?)?);
    models.insert(key, prepared.clone());
    Ok(prepared)
}

/// As these trainers do: rings, gradients sent during backward, messages between stages not.
fn settings(row: &Row) -> Settings {
    let schedule = match row.chunks {
        1 => Schedule::OneForwardOneBackward,
        chunks => Schedule::Interleaved { chunks },
    };
    Settings {
        exchange: Exchange::Ring,
        overlap: Overlap {
            sync: 1.0,
            all_gather: 1.0,
            messages: false,
            exchanges: false,
            products: false,
        },
        recompute: Recompute::Always,
        schedule: Some(schedule),
        ..Settings::default()
    }
}
