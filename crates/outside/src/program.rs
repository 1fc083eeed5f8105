//! Law of plans as programs of ranks.

use std::sync::LazyLock;

use thinwire_model::{Training, backward};
use thinwire_program::{Plan, program};
use thinwire_wire::Rank;

use crate::plan::{GRAPH, read};

/// Largest number of ranks whose programs are derived.
const RANKS: usize = 2;

static TRAINING: LazyLock<Training> =
    LazyLock::new(|| backward(&GRAPH).expect("the model has a loss"));

/// Checks that any plan file gives every rank a program, or is refused with an error of one line.
pub fn run(bytes: &[u8]) {
    let Some(file) = read(bytes) else { return };
    let outcome = Plan::of_file(&file, &GRAPH).and_then(|plan| {
        (0..plan.ranks().min(RANKS))
            .try_for_each(|rank| program(&TRAINING, &plan, Rank(rank as u32)).map(|_| ()))
    });
    if let Err(error) = outcome {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}
