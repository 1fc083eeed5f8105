//! Buckets that are not finite, in words.

use std::ops::Range;

use thinwire_codec::kernel;

use crate::Parameter;
use crate::bucket::state::BucketState;

impl BucketState {
    /// Returns whether this rank has given what is not finite or too large, and says in words what it knows of
    /// a bucket that is not finite; none of one that is.
    pub(crate) fn fault(&self, parameters: &[Parameter]) -> Option<(bool, String)> {
        let name = |member: usize| &parameters[self.bucket.members[member].0].name;
        let codec = &self.record.codec;
        match self.excess {
            _ if !self.spoilt => None,
            Some((member, [found, most])) if found.is_finite() => Some((
                true,
                format!(
                    "the gradient of {} reaches {found:.3e}, codec {codec} takes at most {most:.3e}",
                    name(member)
                ),
            )),
            Some((member, _)) => {
                Some((true, format!("the gradient of {} is not finite on this rank", name(member))))
            }
            None => Some((false, self.fault_elsewhere(parameters))),
        }
    }

    /// Says in words what may be wrong with a bucket where this rank's gradients are in order.
    fn fault_elsewhere(&self, parameters: &[Parameter]) -> String {
        let codec = &self.record.codec;
        let is_spoilt = |range: &Range<usize>| {
            // With feedback the values are no sums.
            let sums = if self.feedback { None } else { self.values.as_ref().get(range.clone()) };
            sums.is_some_and(|sums| !kernel::is_finite(sums))
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
