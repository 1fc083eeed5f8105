//! Signs, and magnitudes at the centroids that fit a block best.
//!
//! The sorted magnitudes of each 128 elements are divided into 2^(BITS - 1) cells. At first, all cells
//! are repeatedly cut in two where the squared error becomes least. Then Lloyd's algorithm moves cuts to
//! the middle between centroids, and centroids to the mean of their cells (Lloyd, "Least squares
//! quantization in PCM", 1982). Such centroids fit values without small ones among them, such as the
//! largest of many, better than levels at equal distances.
//!
//! Format of a block: the centroids in order, bf16, little-endian; then the codes as planes of bits (see
//! `kernel::group`). The highest bit of a code is the sign, the others are the number of the centroid.
//!
//! Law: every magnitude becomes the nearest of the block's centroids.

use std::fmt;
use std::ops::Range;

use thinwire_wire::random::Key;

use crate::choice::{Choice, Entry};
use crate::kernel::bits::{INFINITY, SIGN};
use crate::kernel::group::Layout;
use crate::kernel::{self, BF16, Format, GROUP};
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "lloyd:BITS",
    summary: "signs and centroids of each 128 elements, BITS of 1 to 4",
    examples: &["lloyd:2", "lloyd:1", "lloyd:4"],
    parse,
};

/// Largest number of centroids, those of four bits.
const CENTROIDS_MAX: usize = 8;

/// Rounds of Lloyd's algorithm, after which cuts hardly move.
const ROUNDS: usize = 8;

type Centroids = [f32; CENTROIDS_MAX];

/// Quantiser of this many bits.
#[derive(Clone, Copy, Debug)]
struct Lloyd {
    bits: usize,
}

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    match parameter.and_then(|found| found.parse().ok()) {
        Some(bits @ 1..=4) => Ok(Choice::bytes(Lloyd { bits })),
        _ => Err(Error::parameter("lloyd bits", parameter, "1..=4")),
    }
}

impl fmt::Display for Lloyd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lloyd:{}", self.bits)
    }
}

/// Magnitudes of a block in order, and the sums of the first of them.
struct Sorted {
    magnitudes: [f32; GROUP],
    sums: [f64; GROUP + 1],
    length: usize,
}

impl Sorted {
    fn new(values: &[f32]) -> Sorted {
        let mut bits = [0; GROUP];
        let bits = &mut bits[..values.len()];
        bits.iter_mut().zip(values).for_each(|(bits, x)| *bits = x.to_bits() & !SIGN);
        bits.sort_unstable();
        let (mut magnitudes, mut sums) = ([0.0; GROUP], [0.0; GROUP + 1]);
        for (at, bits) in bits.iter().enumerate() {
            magnitudes[at] = f32::from_bits(*bits);
            sums[at + 1] = sums[at] + f64::from(magnitudes[at]);
        }
        Sorted { magnitudes, sums, length: values.len() }
    }

    /// Returns the part of the squared length of a cell that its centroid has.
    fn sent(&self, cell: Range<usize>) -> f64 {
        let sum = self.sums[cell.end] - self.sums[cell.start];
        sum * sum / cell.len().max(1) as f64
    }

    /// Returns where to cut a cell, so that two centroids have most of its squared length.
    fn cut(&self, cell: Range<usize>) -> usize {
        let (mut best, mut most) = (cell.end, self.sent(cell.clone()));
        for at in cell.start + 1..cell.end {
            let sent = self.sent(cell.start..at) + self.sent(at..cell.end);
            if sent > most {
                (best, most) = (at, sent);
            }
        }
        best
    }

    /// Returns the means of cells with these ends; an empty cell has the mean of the cell below.
    fn means(&self, ends: &[usize]) -> [f64; CENTROIDS_MAX] {
        let (mut means, mut start, mut last) = ([0.0; CENTROIDS_MAX], 0, 0.0);
        for (mean, &end) in means.iter_mut().zip(ends) {
            if end > start {
                last = (self.sums[end] - self.sums[start]) / (end - start) as f64;
            }
            (*mean, start) = (last, end);
        }
        means
    }

    /// Returns as many centroids as there are cells, in order.
    fn centroids(&self, cells: usize) -> [f64; CENTROIDS_MAX] {
        let mut ends = [self.length; CENTROIDS_MAX];
        let mut count = 1;
        while count < cells {
            for cell in (0..count).rev() {
                let start = if cell == 0 { 0 } else { ends[cell - 1] };
                let end = ends[cell];
                (ends[2 * cell], ends[2 * cell + 1]) = (self.cut(start..end), end);
            }
            count *= 2;
        }
        let magnitudes = &self.magnitudes[..self.length];
        let mut means = self.means(&ends[..cells]);
        for _ in 0..ROUNDS {
            let before = ends;
            for cell in 1..cells {
                let middle = (means[cell - 1] + means[cell]) / 2.0;
                ends[cell - 1] = magnitudes.partition_point(|x| f64::from(*x) <= middle);
            }
            if ends == before {
                break;
            }
            means = self.means(&ends[..cells]);
        }
        means
    }
}

impl Lloyd {
    fn cells(self) -> usize {
        1 << (self.bits - 1)
    }

    fn block_len(self, elements: usize) -> usize {
        2 * self.cells() + Layout::Planes.len(elements, self.bits)
    }

    /// Writes a block; returns its decoded values, or `None` if one is not finite.
    fn encode_block(self, values: &[f32], bytes: &mut [u8]) -> Option<[f32; GROUP]> {
        let (head, packed) = bytes.split_at_mut(2 * self.cells());
        let sorted = Sorted::new(values);
        let means = if kernel::max_magnitude(values) < INFINITY {
            sorted.centroids(self.cells())
        } else {
            [f64::NAN; CENTROIDS_MAX]
        };
        for (place, mean) in head.chunks_exact_mut(2).zip(means) {
            BF16::put(mean as f32, place);
        }
        let centroids = self.centroids(head);
        let mut codes = [0; GROUP];
        for (code, x) in codes.iter_mut().zip(values) {
            *code = self.code(*x, &centroids);
        }
        Layout::Planes.pack(&codes, values.len(), self.bits, packed);
        let finite = centroids.iter().all(|centroid| centroid.is_finite());
        finite.then(|| codes.map(|code| self.value(code, &centroids)))
    }

    /// Reads the centroids at the beginning of a block; others are zero.
    fn centroids(self, head: &[u8]) -> Centroids {
        let mut centroids = [0.0; CENTROIDS_MAX];
        let places = head.chunks_exact(2).take(self.cells());
        centroids.iter_mut().zip(places).for_each(|(own, bytes)| *own = BF16::get(bytes));
        centroids
    }

    /// Returns the code of the nearest of the centroids.
    fn code(self, x: f32, centroids: &Centroids) -> u32 {
        let pairs = centroids[..self.cells()].windows(2);
        let above = pairs.filter(|pair| x.abs() > 0.5 * pair[0] + 0.5 * pair[1]);
        above.count() as u32 | x.to_bits() >> 31 << (self.bits - 1)
    }

    fn value(self, code: u32, centroids: &Centroids) -> f32 {
        let centroid = centroids[code as usize & (self.cells() - 1)];
        f32::from_bits(centroid.to_bits() ^ code >> (self.bits - 1) << 31)
    }
}

impl Codec for Lloyd {
    fn exchange(&self) -> Exchange {
        Exchange::TwoShot
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    /// One centroid has `‖x‖₁² / n` of the squared length, minus the rounding to bf16; this is smallest
    /// if only one element is not zero. More centroids have more.
    fn bound(&self, elements: usize) -> Bound {
        Bound::Contraction((1.0 - 2.0f64.powi(-16)) / elements.clamp(1, GROUP) as f64)
    }

    fn claims(&self) -> Claims {
        Claims { idempotent: false, exact: false, ..Claims::ALL }
    }

    fn block(&self) -> usize {
        GROUP
    }

    fn encoded_len(&self, elements: usize) -> usize {
        let (blocks, rest) = (elements / GROUP, elements % GROUP);
        let rest = if rest == 0 { 0 } else { self.block_len(rest) };
        blocks * self.block_len(GROUP) + rest
    }

    fn encode(&self, mut input: Input<'_>, _key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        let mut finite = Finite::Yes;
        let mut places = output.chunks_mut(self.block_len(GROUP));
        input.for_chunks(GROUP, |_, mut block| {
            if let Input::Feedback { values, residual } = &mut block {
                kernel::add(values, residual);
            }
            let bytes = places.next().expect("every block has a place");
            match (self.encode_block(block.values(), bytes), block) {
                (None, _) => finite = Finite::No,
                (Some(sent), Input::Feedback { values, .. }) => {
                    values.iter_mut().zip(sent).for_each(|(x, sent)| *x -= sent);
                }
                _ => {}
            }
        });
        finite
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        let blocks = encoded.chunks(self.block_len(GROUP));
        for (values, bytes) in values.chunks_mut(GROUP).zip(blocks) {
            let (head, packed) = bytes.split_at(2 * self.cells());
            let centroids = self.centroids(head);
            let codes = Layout::Planes.unpack(packed, values.len(), self.bits);
            for (x, code) in values.iter_mut().zip(codes) {
                let sent = self.value(code, &centroids);
                *x = if write == Write::Set { sent } else { *x + sent };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Distortion;

    const KEY: Key = Key { seed: 1, step: 2, tensor: 3 };

    #[test]
    fn as_many_magnitudes_as_centroids_are_found() {
        for bits in 2..=4 {
            let codec = Lloyd { bits };
            let magnitude = |at: usize| (1 + at % codec.cells()) as f32;
            let sign = |at: usize| if at.is_multiple_of(3) { -1.0 } else { 1.0 };
            let values: Vec<f32> = (0..300).map(|at| sign(at) * magnitude(at)).collect();
            assert_eq!(Distortion::of(&codec, &values, KEY).error, 0.0, "{bits}");
        }
    }

    /// Table 1 of Max, "Quantizing for minimum distortion" (1960), has 0.363, 0.117, 0.035 and 0.0095 for many
    /// values; centroids of 128 fit these better.
    #[test]
    fn normal_values_have_the_least_error() {
        let values: Vec<f32> = (0..1 << 16).map(|at| KEY.normal(at)).collect();
        for (bits, expected) in [(1, 0.363), (2, 0.117), (3, 0.035), (4, 0.0095)] {
            let Distortion { error, excess, .. } = Distortion::of(&Lloyd { bits }, &values, KEY);
            assert!((0.7 * expected..1.02 * expected).contains(&error), "{bits}: {error}");
            assert!(excess.abs() < 0.1 * error, "{bits}: {excess}");
        }
    }
}
