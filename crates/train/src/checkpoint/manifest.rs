//! Content of a checkpoint's manifest: the progress of the training.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thinwire_checkpoint::{MANIFEST, Record, Series};
use thinwire_wire::WORLD_SIZE_MAX;

use super::files::{MODEL, OPTIMIZER};
use crate::data::Position;

/// The highest count in a manifest: more than any training reaches, and small enough that 1 can be added.
const COUNT_MAX: u64 = 1 << 53;

/// Progress of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The next step.
    pub step: u64,
    /// Updates of the optimiser: steps that were not skipped.
    pub updates: u64,
    /// The sampler's position.
    pub position: Position,
    /// The seed of everything random.
    pub seed: u64,
    /// The number of ranks.
    pub world: u32,
    /// The corpus' fingerprint.
    pub data: String,
    /// The model's size and the settings of the training, in the caller's format.
    pub config: Value,
    /// The exchange's plan, in the exchange's format.
    pub plan: String,
}

impl Record for Progress {
    const FORMAT: u32 = 1;
    const SERIES: Series = Series::Steps;

    /// Refuses numbers that no training reaches.
    fn check(&self) -> Result<(), String> {
        let Position { pass, index } = self.position;
        let counts =
            [("step", self.step), ("updates", self.updates), ("epoch", pass), ("index", index)];
        if let Some((name, count)) = counts.into_iter().find(|(_, count)| *count > COUNT_MAX) {
            return Err(format!("{name} is {count}, expected at most {COUNT_MAX}"));
        }
        if !(1..=WORLD_SIZE_MAX).contains(&self.world) {
            return Err(format!("world is {}, expected 1 to {WORLD_SIZE_MAX}", self.world));
        }
        Ok(())
    }

    fn is_file(name: &str) -> bool {
        let of_rank = |start: &str| {
            let number = name.strip_prefix(start);
            let number = number.and_then(|rest| rest.strip_suffix(".safetensors"));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        [MANIFEST, MODEL, OPTIMIZER].contains(&name) || of_rank("exchange-") || of_rank("shard-")
    }
}
