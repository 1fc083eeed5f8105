//! The example `train`, run by the tests: what it shows must hold.

#[expect(dead_code, reason = "the tests start its ranks themselves")]
#[path = "../examples/train.rs"]
mod train;

use std::fs;

use thinwire_testkit::{Network, spawn};

#[test]
fn a_training_that_was_interrupted_ends_as_one_that_was_not() {
    for network in [Network::Mem, Network::Sealed] {
        let name = format!("thinwire-train-{network:?}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let run =
            |steps, folder| spawn(network, 2, |link| train::train(link, 2, steps, folder).unwrap());
        let whole = run(60, None);
        // The warm-up of 5 steps is interrupted, too.
        let parts = [3, 20, 37].map(|steps| run(steps, Some(folder.as_path())));
        for (rank, whole) in whole.iter().enumerate() {
            assert_eq!(
                *whole,
                parts.iter().flat_map(|part| part[rank].clone()).collect::<Vec<_>>()
            );
            assert!(whole[59] < whole[0] / 100.0, "it has learnt: {whole:?}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
