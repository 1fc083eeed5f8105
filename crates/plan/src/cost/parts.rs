//! Costs, part by part.

/// Declares [`Cost`] with its sums and differences from one list of parts.
macro_rules! cost {
    ($($(#[$doc:meta])* $part:ident,)*) => {
        /// Seconds and bytes of one device, and the codec error of its gradients.
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
    /// Collectives of the forward pass of one micro-batch, in seconds.
    forward_wire_s,
    /// Exposed collectives of the backward pass of one micro-batch, in seconds.
    backward_wire_s,
    /// Collectives of the backward pass of one micro-batch that overlap gradients of weights if both are
    /// computed in one pass, in seconds; not part of `backward_wire_s`.
    overlapped_s,
    /// All-gather of sharded parameters for the forward pass of one micro-batch (ZeRO 3), in seconds.
    gather_s,
    /// Recomputation of one micro-batch's forward pass in the backward pass, with its collectives, in
    /// seconds.
    recompute_s,
    /// Synchronisation of parameters' gradients once per step, during the last backward pass, in seconds.
    sync_s,
    /// Part of `sync_s` that takes the device's own time, which nothing hides.
    handling_s,
    /// All-gather of updated parameters once per step, during the next forward pass, in seconds.
    all_gather_s,
    /// Part of `all_gather_s` that takes the device's own time, which nothing hides.
    all_gather_handling_s,
    /// Optimiser, once per step, in seconds.
    optimizer_s,
    /// Parameters, gradients and optimiser state, in bytes.
    state_bytes,
    /// Activations that one micro-batch keeps for the backward pass, in bytes.
    activation_bytes,
    /// Checkpoint of one micro-batch in bytes: the block's input. If the forward pass is recomputed, nothing
    /// else is kept for the backward pass.
    checkpoint_bytes,
    /// Codec error of gradients: relative squared error times the elements of parameters.
    codec_error,
}

impl Cost {
    /// Returns the seconds of everything that happens once per step, without overlap.
    pub fn once_s(&self) -> f64 {
        self.sync_s + self.all_gather_s + self.optimizer_s
    }

    /// Returns the seconds of one micro-batch.
    pub fn micro_s(&self) -> f64 {
        self.ahead_s() + self.recompute_s + self.backward_s + self.backward_wire_s
    }

    /// Returns the seconds of one micro-batch's forward pass.
    pub fn ahead_s(&self) -> f64 {
        self.forward_s + self.forward_wire_s + self.gather_s
    }

    /// Returns the cost if the forward pass is recomputed in the backward pass, so that only the checkpoint
    /// is kept. Parameters that must be gathered are gathered once for both.
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
