//! The models of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
//! table 3, under Megatron's cuts, as plans of ours.

mod keeping;
mod layer;

pub use keeping::Keeping;
use layer::{Keep, Layer, Pipeline};
use thinwire_model::{AttentionKind, Gpt};
use thinwire_plan::Cluster;
use thinwire_plan::cost::{Costs, Precision};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::search::{Chain, Pin, Prepared, Rule};
use thinwire_plan::stage::Weights;

const VOCABULARY: usize = 51_200;
const SEQUENCE: usize = 2048;
/// Devices of tensor parallelism.
const TENSOR: usize = 8;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    pub name: &'static str,
    pub heads: usize,
    pub hidden: usize,
    pub layers: usize,
    pub stages: usize,
    pub chunks: usize,
    /// Sequences of a micro-batch, and of a step.
    pub batch: [usize; 2],
}

/// The four models.
pub const MODELS: [Published; 4] = [
    published("22B", [64, 6144, 48], [1, 1], [4, 4]),
    published("175B", [96, 12288, 96], [8, 3], [1, 64]),
    published("530B", [128, 20480, 105], [35, 3], [1, 280]),
    published("1T", [160, 25600, 128], [64, 1], [1, 512]),
];

/// What is kept, and whether sequences are cut.
pub const WAYS: [(&str, Keep, bool); 6] = [
    ("everything", Keep::All, false),
    ("everything, sequences cut", Keep::All, true),
    ("no scores", Keep::Selected, false),
    ("no scores, sequences cut", Keep::Selected, true),
    ("what enters", Keep::Input, false),
    ("what enters, sequences cut", Keep::Input, true),
];

/// Bytes of one device.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Of a layer, for one micro-batch.
    pub layer: f64,
    /// Of the first stage, for all micro-batches that wait.
    pub stage: f64,
}

const fn published(
    name: &'static str,
    [heads, hidden, layers]: [usize; 3],
    [stages, chunks]: [usize; 2],
    batch: [usize; 2],
) -> Published {
    Published { name, heads, hidden, layers, stages, chunks, batch }
}

impl Published {
    /// What the paper's formulas say.
    pub fn formula(&self, keep: Keep, sequences: bool) -> Kept {
        let layer = Layer {
            sequence: SEQUENCE as f64,
            batch: self.batch[0] as f64,
            hidden: self.hidden as f64,
            heads: self.heads as f64,
            tensor: TENSOR as f64,
        };
        let pipeline = Pipeline {
            layers: self.layers as f64,
            stages: self.stages as f64,
            chunks: self.chunks as f64,
            vocabulary: VOCABULARY as f64,
        };
        let stage = layer.first_stage_bytes(&pipeline, keep, sequences);
        Kept { layer: layer.activation_bytes(keep, sequences), stage }
    }

    /// What our graph keeps, where a program keeps so.
    pub fn ours(&self, keep: Keep, sequences: bool, keeping: Keeping) -> Kept {
        let attention = if keep == Keep::All { AttentionKind::Plain } else { AttentionKind::Fused };
        let (prepared, cluster) = (self.prepared(attention, sequences), cluster());
        let (mesh, precision) = ([1, TENSOR], Precision::MIXED);
        let costs = Costs::new(&cluster, &mesh, precision);
        let chain = Chain::new(&prepared, &costs, Rule::Grid).unwrap();
        let (_, choice) = chain.solve(&Weights::ONCE, 1.0);
        let kept = |block: usize| {
            let strategies = chain.strategies(&choice, choice.of_block[block]);
            let class = &prepared.classes[prepared.of_block[block]];
            let of = (&prepared.graph, class);
            keeping.bytes(of, &strategies.into_iter().collect(), &mesh, precision.element)
        };
        let layer = match keep {
            Keep::Input => chain.costs(&choice)[2].checkpoint_bytes,
            Keep::All | Keep::Selected => kept(2),
        };
        // The embedding and the head are not computed again.
        let end = if self.stages == 1 { kept(4) } else { 0.0 };
        let once = kept(0) + (self.layers / self.stages) as f64 * layer + end;
        let rounds = self.batch[1] / self.batch[0];
        Kept { layer, stage: once * self.schedule().in_flight(0, self.stages, rounds) }
    }

    fn schedule(&self) -> Schedule {
        match self.chunks {
            1 => Schedule::OneForwardOneBackward,
            chunks => Schedule::Interleaved { chunks },
        }
    }

    /// Three layers of it: all others are as the second.
    fn prepared(&self, attention: AttentionKind, sequences: bool) -> Prepared {
        let model = Gpt {
            layers: 3,
            hidden: self.hidden,
            heads: self.heads,
            feed_forward: 4 * self.hidden,
            vocabulary: VOCABULARY,
            positions: SEQUENCE,
            attention,
            dropout: 0.1,
        };
        let graph = model.graph(self.batch[0], SEQUENCE).unwrap();
        Prepared::pinned(graph, &pins(attention, sequences)).unwrap()
    }
}

/// Megatron's cuts. Where sequences are not cut, everything between products is whole.
fn pins(attention: AttentionKind, sequences: bool) -> Vec<Pin> {
    let between = if sequences { 's' } else { '-' };
    let whole =
        ["embedding.dropout", "block.*.norm", "block.*.dropout", "block.*.add", "head.norm"];
    let products = ["*.qkv: n", "*.projection: k", "*.up: n", "*.down: k"];
    let ends = ["embedding.token: v", "head.logits: v"];
    let scores: &[&str] = match attention {
        AttentionKind::Fused => &["*.attention.attention: g"],
        // Heads are the second dimension of scores.
        AttentionKind::Plain => &["*.scores: g", "*.softmax: s", "*.values: g"],
    };
    let whole = whole.iter().map(|nodes| format!("{nodes}: {between}"));
    let cut = products.iter().chain(scores).chain(&ends).map(|pin| pin.to_string());
    whole.chain(cut).map(|pin| format!("{pin}=tensor").parse().unwrap()).collect()
}

/// Eight devices; what they can do does not matter here.
fn cluster() -> Cluster {
    let text = "[[device]]\nname = \"a100\"\ntflops = 312\nmemory_gib = 80\n\
        memory_gbyte_per_s = 2039\n[[level]]\nname = \"node\"\nsize = 8\n\
        latency_us = 5\ngbit = 2400\n";
    Cluster::parse(text).unwrap()
}
