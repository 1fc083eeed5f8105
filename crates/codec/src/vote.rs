//! One bit per element, and no magnitude.
//!
//! Bernstein et al., "signSGD: Compressed optimisation for non-convex problems" (2018, algorithm 1):
//! every rank sends its signs, and the sign of their sum is the vote of the majority. The owner of a
//! chunk takes the vote by encoding the sum of all decoded signs: -1 or 1, where a tie counts as 1.
//! Zero counts as positive.
//!
//! Law: scaling or permuting the ranks does not change the vote.

use crate::choice::{Entry, without_parameter};
use crate::coded::Coded;
use crate::kernel::Scale;
use crate::kernel::bits::SIGN;
use crate::kernel::codes::Code;
use crate::{Bound, Claims};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "vote",
    summary: "the sign alone, by majority, 16 bytes per 128 elements",
    examples: &["vote"],
    parse: |parameter| without_parameter("vote", parameter, Coded(Vote)),
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Vote;

impl Code for Vote {
    fn name(&self) -> String {
        "vote".to_owned()
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        1
    }

    #[inline(always)]
    fn code(&self, x: f32, _scale: Scale, _random: u32) -> u32 {
        u32::from(x < 0.0)
    }

    #[inline(always)]
    fn value(&self, code: u32, _scale: f32) -> f32 {
        f32::from_bits(1.0f32.to_bits() | code << 31 & SIGN)
    }

    fn bound(&self, _elements: usize) -> Bound {
        // A sign does not tell the size of a value.
        Bound::None
    }

    fn claims(&self) -> Claims {
        Claims { exact: false, zero: false, ..Claims::ALL }
    }

    /// Replaces values by their signs: the rank's own vote, or the vote of the majority after a
    /// gather.
    fn canonicalise(&self, values: &mut [f32]) {
        for x in values.iter_mut().filter(|x| x.is_finite()) {
            *x = if *x < 0.0 { -1.0 } else { 1.0 };
        }
    }
}
