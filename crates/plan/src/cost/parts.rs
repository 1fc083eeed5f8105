//! Costs, part by part.

/// Declares [`Cost`] with its sums and differences from one list of parts.
macro_rules! cost {
    ($($(#[$doc:meta])* $part:ident,)*) => {
        /// Seconds and bytes of one device, and the error that its codecs make.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct Cost {
            $($(#[$doc])* pub $part: f64,)*
        }

        impl Cost {
            /// The cost of doing nothing.
            pub const ZERO: Cost = Cost { $($part: 0.0,)* };
        }

        impl std::ops::AddAssign for Cost {
            fn add_assign(&mut self, other: Cost) {
                $(self.$part += other.$part;)*
            }
        }

        impl std::ops::Sub for Cost {
            type Output = Cost;

            fn sub(self, other: Cost) -> Cost {
                Cost { $($part: self.$part - other.$part,)* }
            }
        }
    };
}

cost! {
    /// Forward computation of one micro-batch, in seconds.
    forward_s,
    /// Backward computation of one micro-batch, in seconds.
    backward_s,
    /// Collectives of forward of one micro-batch, in seconds.
    forward_wire_s,
    /// Exposed collectives of backward of one micro-batch, in seconds.
    backward_wire_s,
    /// Collectives of backward of one micro-batch that gradients of weights overlap where both are
    /// computed in one pass, in seconds; not part of `backward_wire_s`.
    overlapped_s,
    /// All-gather of sharded parameters for forward of one micro-batch (ZeRO 3), in seconds.
    gather_s,
    /// Recomputation of forward in backward with its collectives, of one micro-batch, in seconds.
    recompute_s,
    /// Synchronisation of parameters' gradients once a step, behind the last backward, in seconds.
    sync_s,
    /// Part of `sync_s` that takes the device's own time, which nothing hides.
    handling_s,
    /// All-gather of updated parameters once a step, behind the next forward, in seconds.
    all_gather_s,
    /// Part of `all_gather_s` that takes the device's own time, which nothing hides.
    all_gather_handling_s,
    /// Optimiser once a step, in seconds.
    optimizer_s,
    /// Parameters, gradients and optimiser state, in bytes.
    state_bytes,
    /// Activations that wait for backward, of one micro-batch, in bytes.
    activation_bytes,
    /// Checkpoint of one micro-batch in bytes: the block's input, which is all that waits for
    /// backward where forward is recomputed.
    checkpoint_bytes,
    /// Codec error of gradients: relative squared error times the elements of parameters.
    codec_error,
}

impl Cost {
    /// Returns the seconds of everything that happens once a step, with no overlap.
    pub fn once_s(&self) -> f64 {
        self.sync_s + self.all_gather_s + self.optimizer_s
    }

    /// Returns the seconds of one micro-batch.
    pub fn micro_s(&self) -> f64 {
        self.ahead_s() + self.recompute_s + self.backward_s + self.backward_wire_s
    }

    /// Returns the seconds of one micro-batch's forward.
    pub fn ahead_s(&self) -> f64 {
        self.forward_s + self.forward_wire_s + self.gather_s
    }

    /// Returns the cost with forward recomputed in backward, so that only the checkpoint waits.
    /// Parameters that are gathered are gathered once for both.
    pub fn recomputed(self) -> Cost {
        let recompute_s = self.forward_s + self.forward_wire_s;
        Cost { recompute_s, activation_bytes: self.checkpoint_bytes, ..self }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::ZERO, |mut sum, cost| {
            sum += cost;
            sum
        })
    }
}
