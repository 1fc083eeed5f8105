//! Clusters, models and planners that several tests use.

use thinwire_model::{AttentionKind, Gpt};
use thinwire_plan::search::{Planner, Settings};
use thinwire_plan::{Cluster, Error};

/// Nodes of `devices` A100 with so much memory, and so thick links between nodes.
pub fn cluster(nodes: usize, devices: usize, gbit: f64, memory_gib: f64) -> Cluster {
    let text = format!(
        "[[device]]\nname = \"a100\"\ntflops = 312\nmemory_gib = {memory_gib}\n\
         memory_gbyte_per_s = 2039\nmemory_efficiency = 0.7\noverhead_us = 10\n\
         efficiency = [[0.1, 0.01], [10, 0.4], [1000, 0.8]]\n\
         [[level]]\nname = \"node\"\nsize = {devices}\nlatency_us = 5\ngbit = 2400\n\
         [[level]]\nname = \"pod\"\nsize = {nodes}\nlatency_us = 10\ngbit = {gbit}\n"
    );
    Cluster::parse(&text).unwrap()
}

/// A GPT with features of 64 per head, and 8192 tokens.
pub fn gpt(layers: usize, hidden: usize, positions: usize) -> Gpt {
    Gpt {
        layers,
        hidden,
        heads: hidden / 64,
        feed_forward: 4 * hidden,
        vocabulary: 8192,
        positions,
        attention: AttentionKind::Fused,
        dropout: 0.0,
    }
}

/// A planner of steps of so many sequences, as long as the model has positions.
#[allow(dead_code, reason = "not every test of this module plans")]
pub fn planner(model: Gpt, batch: usize, settings: Settings) -> Planner {
    Planner::new(batch, settings, move |batch| {
        model.graph(batch, model.positions).map_err(|error| Error::from_model(&error))
    })
}
