//! Published parameters of a rank, which its partners average with their own while it trains.
//!
//! Two ranks exchange their published parameters, and each moves its own by half of the distance
//! towards the other. Neither waits: the rank that asks continues to train, and the other's
//! communication thread answers. Between two steps, training takes up the movement of the published
//! parameters, and publishes the result.
//!
//! A rank takes part in one exchange at a time; meanwhile, others that ask it for one wait. Each
//! exchange therefore begins where the one before has ended. So no exchange moves a rank beyond its
//! partner, even if a slow rank meets many fast ones, or is asked by the rank that it asks. Only the
//! higher rank of two is asked, so ranks never wait for each other in a circle.
//!
//! Laws: an exchange that has ended on both sides does not change the sum of both ranks' parameters,
//! whatever they have learnt meanwhile; one that is lost on both sides leaves no trace. No call waits.

/// The side of an exchange that a rank is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// It has asked its partner.
    Asking,
    /// It was asked.
    Answering,
}

/// Exchanges that have ended since the rank last took up their movement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    /// Number of these exchanges.
    pub exchanges: u32,
    /// Number of these exchanges that moved nothing, because one of the two ranks had a value that is not
    /// finite.
    pub skipped: u32,
}

/// Parameters of a rank as its partners see them.
#[derive(Debug)]
pub(super) struct Published {
    /// The parameters that this rank has published.
    base: Vec<f32>,
    /// The published parameters, as exchanges have moved them since.
    current: Vec<f32>,
    /// The side of the exchange that is under way.
    underway: Option<Side>,
    ended: Ended,
}

impl Published {
    /// Publishes parameters.
    pub(super) fn new(values: Vec<f32>) -> Published {
        let (base, current) = (values.clone(), values);
        Published { base, current, underway: None, ended: Ended::default() }
    }

    /// Returns the same parameters for exchanges among other ranks; the exchange under way is dropped.
    pub(super) fn renewed(&self) -> Published {
        let (base, current) = (self.base.clone(), self.current.clone());
        Published { base, current, underway: None, ended: self.ended }
    }

    /// Begins an exchange, and returns the parameters for the partner; `None` while another exchange is
    /// under way.
    pub(super) fn begin(&mut self, side: Side) -> Option<Vec<f32>> {
        if self.underway.is_some() {
            return None;
        }
        self.underway = Some(side);
        Some(self.current.clone())
    }

    /// Ends the exchange, in which this rank gave `mine` and both together have `sum`.
    pub(super) fn end(&mut self, mine: &[f32], sum: &[f32]) {
        self.underway = None;
        self.ended.exchanges += 1;
        if !sum.iter().all(|value| value.is_finite()) {
            self.ended.skipped += 1;
            return;
        }
        for ((value, mine), sum) in self.current.iter_mut().zip(mine).zip(sum) {
            let mean = sum * 0.5;
            // Both have the same bits afterwards where they have learnt nothing meanwhile.
            *value = if value == mine { mean } else { *value + (mean - mine) };
        }
    }

    /// Forgets the exchange, which is lost.
    pub(super) fn lose(&mut self) {
        self.underway = None;
    }

    /// Returns whether this rank answers another one.
    pub(super) fn is_answering(&self) -> bool {
        self.underway == Some(Side::Answering)
    }

    /// Returns whether any exchange has ended since the last [`Published::take_up`].
    pub(super) fn has_ended(&self) -> bool {
        self.ended.exchanges > 0
    }

    /// Publishes other parameters, and applies to them the movement of the previous ones.
    pub(super) fn replace(&mut self, values: Vec<f32>) {
        let moves = self.base.iter().zip(&mut self.current);
        for (value, (base, current)) in values.iter().zip(moves) {
            *current = if current == base { *value } else { *value + (*current - base) };
        }
        self.base = values;
    }

    /// Applies the movement of the published parameters to the rank's own, and publishes the result.
    pub(super) fn take_up(&mut self, values: &mut [f32]) -> Ended {
        if self.ended.exchanges > self.ended.skipped {
            let moves = self.base.iter().zip(&self.current);
            for (value, (base, current)) in values.iter_mut().zip(moves) {
                *value = if value == base { *current } else { *value + (current - base) };
            }
        }
        self.base.copy_from_slice(values);
        self.current.copy_from_slice(values);
        std::mem::take(&mut self.ended)
    }
}

#[cfg(test)]
mod tests;
