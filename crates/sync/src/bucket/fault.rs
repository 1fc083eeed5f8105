//! Descriptions of the gradients for which a step was skipped.

use std::borrow::Cow;
use std::ops::Range;

use thinwire_codec::kernel;

use crate::Parameter;
use crate::bucket::state::{BucketState, Excess};

impl BucketState {
    /// Describes why this bucket is not finite, and returns whether a gradient of this rank is the cause; `None`
    /// for a finite bucket.
    pub(crate) fn fault(&self, parameters: &[Parameter]) -> Option<(bool, String)> {
        let name = |member: usize| &parameters[self.bucket.members[member].0].name;
        let codec = &self.record.codec;
        match self.excess.get().copied() {
            _ if !self.spoilt => None,
            Some(Excess { member, found, most }) if found.is_finite() => Some((
                true,
                format!(
                    "the gradient of {} reaches {found:.3e}, codec {codec} takes at most {most:.3e}",
                    name(member)
                ),
            )),
            Some(Excess { member, .. }) => {
                Some((true, format!("the gradient of {} is not finite on this rank", name(member))))
            }
            None => Some((false, self.fault_elsewhere(parameters))),
        }
    }

    /// Describes what may be wrong with a bucket if all gradients of this rank are finite.
    fn fault_elsewhere(&self, parameters: &[Parameter]) -> String {
        let codec = &self.record.codec;
        // With feedback these values are not sums.
        let sums = if self.feedback { Cow::default() } else { self.values.to_host() };
        let is_spoilt = |range: &Range<usize>| {
            sums.get(range.clone()).is_some_and(|sums| !kernel::is_finite(sums))
        };
        match self.bucket.members.iter().find(|(_, range)| is_spoilt(range)) {
            Some((parameter, _)) => {
                let name = &parameters[*parameter].name;
                format!(
                    "the average of {name} is not finite with codec {codec} of {} gradients",
                    self.bucket.dtype
                )
            }
            None => {
                let name = self.bucket.name(parameters);
                format!(
                    "a gradient of {name} is not finite on another rank, or too large for codec {codec}"
                )
            }
        }
    }
}
