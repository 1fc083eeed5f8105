//! Slides: the movement of windows over an image in one direction.

use serde::{Deserialize, Deserializer};

use crate::{Error, Kind};

/// Windows in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slide {
    /// Distance between neighbouring windows.
    pub stride: usize,
    /// Distance between neighbouring pixels of a window.
    pub dilation: usize,
    /// Pixels of padding before and after an image.
    pub padding: [usize; 2],
}

impl Slide {
    /// Returns the number of windows of a size that fit into a length.
    pub fn windows(&self, length: usize, size: usize) -> Result<usize, Error> {
        let Slide { stride, dilation, padding: [before, after] } = *self;
        let padded = length.saturating_add(before).saturating_add(after);
        let reach = size.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
        match padded.checked_sub(reach).and_then(|rest| rest.checked_div(stride)) {
            Some(steps) if size > 0 && dilation > 0 && padded < usize::MAX => Ok(steps + 1),
            _ => {
                let message =
                    format!("{padded} pixels have no window of {reach} with stride {stride}");
                Err(Error::new(Kind::Operands, message))
            }
        }
    }
}

/// Returns two slides, vertical and horizontal, from strides, dilations, and the padding at the top, on the
/// left, at the bottom and on the right.
pub(super) fn slides(stride: [usize; 2], dilation: [usize; 2], padding: [usize; 4]) -> [Slide; 2] {
    [0, 1].map(|dim| Slide {
        stride: stride[dim],
        dilation: dilation[dim],
        padding: [padding[dim], padding[dim + 2]],
    })
}

/// One number for all directions, or one for each.
#[derive(Deserialize)]
#[serde(untagged)]
enum Given<const N: usize>
where
    [usize; N]: for<'a> Deserialize<'a>,
{
    Same(usize),
    Each([usize; N]),
}

/// Reads one number for all directions, or one for each.
pub(super) fn each<'de, D: Deserializer<'de>, const N: usize>(
    from: D,
) -> Result<[usize; N], D::Error>
where
    [usize; N]: for<'a> Deserialize<'a>,
{
    Ok(match Given::deserialize(from)? {
        Given::Same(number) => [number; N],
        Given::Each(numbers) => numbers,
    })
}
