//! Memory bound: the part of the bytes of all blocks that the fullest stage must hold.
//!
//! Stage i holds its state and the activations of f(i) micro-batches, in M bytes. For any weights w(i) ≥ 0
//! of the stages, the weighted sum of their bytes is at most M · Σ w. Wherever a block is placed, it adds
//! at least min w of its state and min w·f of its activations. So every choice of weights gives a bound. The
//! tightest bound is taken from the weights max(a, 1/f(i)): with a = 1, states count fully; with a small a,
//! activations do.
//!
//! Law: every cut into stages that fit has at most the memory in these shares.

/// Parts of the bytes of all blocks together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MemoryShares {
    /// Part of parameters and their state.
    pub state: f64,
    /// Part of the activations of one micro-batch.
    pub activation: f64,
    /// Part of the activations of blocks that recompute the forward pass; a device holds those of one block
    /// at a time.
    pub scratch: f64,
}

impl MemoryShares {
    /// Returns the shares that bind most for these bytes of state and of activations, if stages have
    /// `in_flight` micro-batches and at most `blocks` blocks.
    pub fn tightest(in_flight: &[f64], blocks: f64, [state, kept]: [f64; 2]) -> MemoryShares {
        let bytes = |shares: &MemoryShares| shares.state * state + shares.activation * kept;
        let all = in_flight.iter().map(|most| MemoryShares::weighed(in_flight, blocks, 1.0 / most));
        let tightest = all.max_by(|a, b| bytes(a).total_cmp(&bytes(b)));
        tightest.expect("a pipeline has a stage")
    }

    /// Returns the shares for the weights max(`least`, 1/f(i)).
    fn weighed(in_flight: &[f64], blocks: f64, least: f64) -> MemoryShares {
        let weight = |most: &f64| least.max(1.0 / most);
        let sum: f64 = in_flight.iter().map(weight).sum();
        let state = in_flight.iter().map(weight).fold(f64::INFINITY, f64::min) / sum;
        let kept = in_flight.iter().map(|most| most * weight(most)).fold(f64::INFINITY, f64::min);
        MemoryShares { state, activation: kept / sum, scratch: state / blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn stages_that_fit_fit_in_their_shares(
            stages in proptest::collection::vec((1.0_f64..9.0, 0.0_f64..5.0, 0.0_f64..5.0), 1..7),
            total in (0.0_f64..9.0, 0.0_f64..9.0),
        ) {
            let in_flight: Vec<f64> = stages.iter().map(|(most, ..)| *most).collect();
            let bytes = |(most, state, kept): &(f64, f64, f64)| state + most * kept;
            let fullest = stages.iter().map(bytes).fold(0.0, f64::max);
            let shares = MemoryShares::tightest(&in_flight, 1.0, [total.0, total.1]);
            let state: f64 = stages.iter().map(|(_, state, _)| state).sum();
            let kept: f64 = stages.iter().map(|(.., kept)| kept).sum();
            let least = shares.state * state + shares.activation * kept;
            proptest::prop_assert!(least <= fullest * (1.0 + 1e-9), "{least} {fullest}");
        }
    }

    #[test]
    fn one_stage_has_it_all() {
        let all = MemoryShares { state: 1.0, activation: 3.0, scratch: 0.25 };
        assert_eq!(MemoryShares::tightest(&[3.0], 4.0, [1.0, 1.0]), all);
    }
}
