//! What something costs, part by part.

/// Seconds and bytes of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Computing forward, for one micro-batch.
    pub forward_s: f64,
    /// Computing backward, for one micro-batch.
    pub backward_s: f64,
    /// Collectives of forward, for one micro-batch.
    pub forward_wire_s: f64,
    /// Collectives of backward, for one micro-batch.
    pub backward_wire_s: f64,
    /// What of them gradients of weights hide where they are computed in the same pass, for one
    /// micro-batch. It comes on top.
    pub covered_s: f64,
    /// Gathering parameters for forward, for one micro-batch.
    pub gather_s: f64,
    /// Computing forward again in backward, with its collectives, for one micro-batch.
    pub again_s: f64,
    /// Bringing gradients of parameters together, once a step, behind the last backward.
    pub sync_s: f64,
    /// What of that takes the device's own time, so that nothing hides it.
    pub handling_s: f64,
    /// Bringing new parameters home from who updates them, once a step, behind the next forward.
    pub home_s: f64,
    /// What of that takes the device's own time.
    pub home_handling_s: f64,
    /// The optimiser, once a step.
    pub optimizer_s: f64,
    /// Parameters, gradients, optimiser state.
    pub state_bytes: f64,
    /// What waits for backward, of one micro-batch.
    pub kept_bytes: f64,
    /// What enters the block, of one micro-batch: all that waits where forward is computed again.
    pub entry_bytes: f64,
    /// What encoding gradients loses: relative squared errors, times the elements of parameters.
    pub loss: f64,
}

impl Cost {
    /// What cannot be.
    pub const NEVER: Cost = Cost { forward_s: f64::INFINITY, ..Cost::ZERO };
    /// Nothing.
    pub const ZERO: Cost = Cost {
        forward_s: 0.0,
        backward_s: 0.0,
        forward_wire_s: 0.0,
        backward_wire_s: 0.0,
        covered_s: 0.0,
        gather_s: 0.0,
        again_s: 0.0,
        sync_s: 0.0,
        handling_s: 0.0,
        home_s: 0.0,
        home_handling_s: 0.0,
        optimizer_s: 0.0,
        state_bytes: 0.0,
        kept_bytes: 0.0,
        entry_bytes: 0.0,
        loss: 0.0,
    };

    /// Seconds of what happens once a step, where nothing is hidden.
    pub fn once_s(&self) -> f64 {
        self.sync_s + self.home_s + self.optimizer_s
    }

    /// Seconds of one micro-batch.
    pub fn micro_s(&self) -> f64 {
        self.ahead_s() + self.again_s + self.backward_s + self.backward_wire_s
    }

    /// Seconds of one micro-batch forward.
    pub fn ahead_s(&self) -> f64 {
        self.forward_s + self.forward_wire_s + self.gather_s
    }

    /// The same where forward is computed again in backward, so that only what enters waits.
    /// Parameters that are gathered are so once for both.
    pub fn recomputed(self) -> Cost {
        let again_s = self.forward_s + self.forward_wire_s;
        Cost { again_s, kept_bytes: self.entry_bytes, ..self }
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.forward_s += other.forward_s;
        self.backward_s += other.backward_s;
        self.forward_wire_s += other.forward_wire_s;
        self.backward_wire_s += other.backward_wire_s;
        self.covered_s += other.covered_s;
        self.gather_s += other.gather_s;
        self.again_s += other.again_s;
        self.sync_s += other.sync_s;
        self.handling_s += other.handling_s;
        self.home_s += other.home_s;
        self.home_handling_s += other.home_handling_s;
        self.optimizer_s += other.optimizer_s;
        self.state_bytes += other.state_bytes;
        self.kept_bytes += other.kept_bytes;
        self.entry_bytes += other.entry_bytes;
        self.loss += other.loss;
    }
}

impl std::ops::Sub for Cost {
    type Output = Cost;

    fn sub(self, other: Cost) -> Cost {
        Cost {
            forward_s: self.forward_s - other.forward_s,
            backward_s: self.backward_s - other.backward_s,
            forward_wire_s: self.forward_wire_s - other.forward_wire_s,
            backward_wire_s: self.backward_wire_s - other.backward_wire_s,
            covered_s: self.covered_s - other.covered_s,
            gather_s: self.gather_s - other.gather_s,
            again_s: self.again_s - other.again_s,
            sync_s: self.sync_s - other.sync_s,
            handling_s: self.handling_s - other.handling_s,
            home_s: self.home_s - other.home_s,
            home_handling_s: self.home_handling_s - other.home_handling_s,
            optimizer_s: self.optimizer_s - other.optimizer_s,
            state_bytes: self.state_bytes - other.state_bytes,
            kept_bytes: self.kept_bytes - other.kept_bytes,
            entry_bytes: self.entry_bytes - other.entry_bytes,
            loss: self.loss - other.loss,
        }
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
