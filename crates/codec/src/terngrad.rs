//! Three values, random: two bits per element.
//!
//! Wen et al., "TernGrad: Ternary gradients to reduce communication in distributed deep learning"
//! (2017, section 3): 0, or the largest magnitude of the block with the sign of the element, so often
//! that the mean is right. This is `qsgd` with one level. With `:CLIP` magnitudes above CLIP times the
//! root mean square are clipped first (section 4, 2.5 in the paper); the clipped codec is biased, so
//! it needs feedback.
//!
//! Law: the variance is `s ‖x‖₁ - ‖x‖₂²` with the largest magnitude `s`.

use crate::Error;
use crate::choice::{Choice, Entry, refused};
use crate::coded::Coded;
use crate::qsgd::{Levels, Norm};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "terngrad[:CLIP]",
    summary: "random 0 or ± the largest magnitude, 36 bytes per 128 elements",
    examples: &["terngrad", "terngrad:2.5"],
    parse,
};

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    let norm = match parameter {
        None => Norm::Max,
        Some(found) => match found.parse() {
            Ok(clip) if (1.0..=1e6).contains(&clip) => Norm::Clipped(clip),
            _ => return Err(refused("terngrad clip", parameter, "a number from 1 to 1e6")),
        },
    };
    Ok(Choice::bytes(Coded(Levels { bits: 2, norm })))
}
