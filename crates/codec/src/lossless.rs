//! Casts whose exponents are entropy-coded: the values of `none` and `bf16`, in fewer bytes.
//!
//! Most gradients of a message have one of few exponents, so [rANS](crate::kernel::rans) codes the eight
//! bits of an exponent in about three. Signs and mantissas are nearly uniformly random, and travel as they
//! are.
//!
//! Format, little-endian: length of the encoding (u32), 1 if exponents are entropy-coded, else 0 (u32),
//! mantissas in planes of one byte per element (one plane of bf16, three of f32; the last has the sign in
//! its highest bit), then the exponents, [entropy-coded](crate::entropy) or one byte each.

use std::fmt;

use thinwire_wire::random::Key;

use crate::choice::{Choice, Entry};
use crate::entropy::with_scratch;
use crate::kernel::rans::histogram;
use crate::kernel::{Work, imp, round_to_bf16};
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write, entropy};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "lossless[:bf16]",
    summary: "f32 or bf16 with entropy-coded exponents, about 3.4 or 1.4 bytes",
    examples: &["lossless", "lossless:bf16"],
    parse,
};

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    match parameter {
        None => Ok(Choice::bytes(Lossless::<3>)),
        Some("bf16") => Ok(Choice::bytes(Lossless::<1>)),
        _ => Err(Error::parameter("lossless format", parameter, "'bf16', or nothing for f32")),
    }
}

/// The codec of a format with this many mantissa planes: 3 for f32, 1 for bf16.
#[derive(Clone, Copy, Debug)]
struct Lossless<const PLANES: usize>;

/// Bytes before the planes.
const HEAD: usize = 8;

impl<const PLANES: usize> fmt::Display for Lossless<PLANES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if PLANES == 3 { "lossless" } else { "lossless:bf16" })
    }
}

impl<const PLANES: usize> Codec for Lossless<PLANES> {
    fn exchange(&self) -> Exchange {
        Exchange::TwoShot
    }

    fn needs_feedback(&self) -> bool {
        false
    }

    fn bound(&self, _elements: usize) -> Bound {
        Bound::Contraction(if PLANES == 3 { 1.0 } else { 1.0 - 2.0f64.powi(-16) })
    }

    fn claims(&self) -> Claims {
        Claims { separable: false, ..Claims::ALL }
    }

    fn is_variable(&self) -> bool {
        true
    }

    fn encoded_len(&self, elements: usize) -> usize {
        HEAD + PLANES * elements + entropy::overhead_max(elements) + elements
    }

    fn expected_len(&self, elements: usize) -> usize {
        // The exponents of normal values have 2.4 bits of entropy.
        HEAD + PLANES * elements + entropy::overhead_max(elements) + (elements * 3).div_ceil(10)
    }

    fn encode(&self, mut input: Input<'_>, _key: Key, output: &mut [u8]) -> Finite {
        let elements = input.len();
        assert_eq!(output.len(), self.encoded_len(elements), "output of {self}");
        if let Input::Feedback { values, residual } = &mut input {
            crate::kernel::add(values, residual);
        }
        let (head, rest) = output.split_at_mut(HEAD);
        let (planes, coded) = rest.split_at_mut(PLANES * elements);
        let values = input.values();
        let (counts, length) = with_scratch(elements, |exponents| {
            imp().run(Split::<PLANES> { values, planes, exponents });
            let counts = histogram(exponents);
            let length = entropy::encode(exponents, &counts, coded);
            if length.is_none() {
                coded[..elements].copy_from_slice(exponents);
            }
            (counts, length)
        });
        let total = HEAD + planes.len() + length.unwrap_or(elements);
        head[..4].copy_from_slice(&(total as u32).to_le_bytes());
        head[4..].copy_from_slice(&u32::from(length.is_some()).to_le_bytes());
        if let Input::Feedback { values, .. } = input {
            let lost = |x: &mut f32| *x -= if PLANES == 3 { *x } else { round_to_bf16(*x) };
            values.iter_mut().for_each(lost);
        }
        Finite::from(counts[usize::from(u8::MAX)] == 0)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_stated(self, encoded, HEAD, values.len())?;
        let restored = restore::<PLANES>(encoded, write, values);
        restored.ok_or_else(|| Error::no_encoding(self, encoded, values.len()))
    }
}

/// Decodes values; `None` if the bytes are not a valid encoding.
fn restore<const PLANES: usize>(encoded: &[u8], write: Write, values: &mut [f32]) -> Option<()> {
    let (head, rest) = encoded.split_at_checked(HEAD)?;
    let (planes, coded) = rest.split_at_checked(PLANES * values.len())?;
    with_scratch(values.len(), |exponents| {
        match head[4..] {
            [1, 0, 0, 0] => entropy::decode(coded, exponents)?,
            [0, 0, 0, 0] if coded.len() == exponents.len() => exponents.copy_from_slice(coded),
            _ => return None,
        }
        imp().run(Join::<PLANES> { planes, exponents, write, values });
        Some(())
    })
}

/// Splits values into planes and exponents.
struct Split<'a, const PLANES: usize> {
    values: &'a [f32],
    planes: &'a mut [u8],
    exponents: &'a mut [u8],
}

impl<const PLANES: usize> Work for Split<'_, PLANES> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let bits = |x: &f32| if PLANES == 3 { x.to_bits() } else { round_to_bf16(*x).to_bits() };
        let exponents = self.exponents.iter_mut().zip(self.values);
        exponents.for_each(|(exponent, x)| *exponent = (bits(x) >> 23) as u8);
        let length = self.values.len().max(1);
        for (plane, bytes) in self.planes.chunks_exact_mut(length).enumerate() {
            let bytes = bytes.iter_mut().zip(self.values);
            match plane + 1 == PLANES {
                true => bytes.for_each(|(byte, x)| {
                    *byte = (bits(x) >> 16 & 0x7f | bits(x) >> 24 & 0x80) as u8;
                }),
                false => bytes.for_each(|(byte, x)| *byte = (bits(x) >> (8 * plane)) as u8),
            }
        }
    }
}

/// Joins planes and exponents to values.
struct Join<'a, const PLANES: usize> {
    planes: &'a [u8],
    exponents: &'a [u8],
    write: Write,
    values: &'a mut [f32],
}

impl<const PLANES: usize> Work for Join<'_, PLANES> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let length = self.values.len();
        let plane = |plane: usize| &self.planes[plane * length..][..length];
        let (lower, middle, upper) = (plane(0), plane(PLANES / 2), plane(PLANES - 1));
        for (at, x) in self.values.iter_mut().enumerate() {
            let mantissa = match PLANES {
                3 => u32::from(lower[at]) | u32::from(middle[at]) << 8,
                _ => 0,
            };
            let upper = u32::from(upper[at]);
            let exponent = u32::from(self.exponents[at]) << 23;
            let value =
                f32::from_bits(mantissa | (upper & 0x7f) << 16 | exponent | upper >> 7 << 31);
            *x = if self.write == Write::Set { value } else { *x + value };
        }
    }
}
