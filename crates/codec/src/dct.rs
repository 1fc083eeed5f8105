//! Largest coefficients of a cosine transform.
//!
//! Peng, Quesnelle and Kingma, "DeMo: Decoupled momentum optimization" (2024, section 3.2): 4096
//! elements, as 64 rows of 64, become the coefficients of an orthonormal DCT-II of rows and columns (see
//! `cosine`). The K largest of each such chunk are sent: indices (see `indices`), then values as bf16.
//! The last chunk may have fewer rows, the last of them padded with zeros; it then sends proportionally
//! fewer coefficients.
//!
//! Law: the transform keeps lengths, so at least K/4096 of the squared length is sent.

use std::fmt;

use thinwire_wire::random::Key;

use crate::choice::{Choice, Entry};
use crate::cosine::{ROW, cosines};
use crate::indices::Indices;
use crate::kernel::{self, BF16, Candidate, Format};
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "dct:K",
    summary: "the K largest cosine coefficients of 4096, about 3 bytes each",
    examples: &["dct:32", "dct:256", "dct:4096"],
    parse,
};

const CHUNK: usize = ROW * ROW;
/// Limit of coefficients, below which all sums are finite.
const LIMIT: f32 = 1e30;

#[derive(Debug)]
struct Dct {
    count: usize,
}

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    match parameter.and_then(|found| found.parse().ok()) {
        Some(count @ 1..=CHUNK) => Ok(Choice::bytes(Dct { count })),
        _ => Err(Error::parameter("dct coefficients", parameter, &format!("1..={CHUNK}"))),
    }
}

impl fmt::Display for Dct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dct:{}", self.count)
    }
}

impl Dct {
    /// Returns the layout of the indices of a chunk of `elements`.
    fn indices(&self, elements: usize) -> Indices {
        let rows = elements.div_ceil(ROW);
        Indices::new((self.count * rows).div_ceil(ROW), rows * ROW)
    }

    fn chunk_len(&self, elements: usize) -> usize {
        let indices = self.indices(elements);
        indices.encoded_len() + 2 * indices.count()
    }

    /// Writes the largest coefficients of a chunk; returns whether all are finite.
    fn encode_chunk(&self, values: &[f32], bytes: &mut [u8]) -> Finite {
        let indices = self.indices(values.len());
        let mut coefficients = padded(values);
        cosines(values.len()).forward(&mut coefficients);
        let all = (0..).zip(&coefficients);
        let all = all.map(|(index, x)| Candidate { index, bits: x.to_bits() }).collect();
        let (index_bytes, value_bytes) = bytes.split_at_mut(indices.encoded_len());
        let mut writer = indices.writer(index_bytes);
        let mut finite = true;
        let chosen = crate::select::largest_of(all, indices.count());
        for (candidate, bytes) in chosen.into_iter().zip(value_bytes.chunks_exact_mut(2)) {
            writer.push(candidate.index);
            BF16::put(f32::from_bits(candidate.bits), bytes);
            finite &= BF16::get(bytes).abs() < LIMIT;
        }
        Finite::from(finite)
    }

    /// Returns the values of a chunk of `elements`, and some zeros behind them.
    fn decode_chunk(&self, bytes: &[u8], elements: usize) -> Result<Vec<f32>, Error> {
        let indices = self.indices(elements);
        let (index_bytes, value_bytes) = bytes.split_at(indices.encoded_len());
        let mut values = vec![0.0; elements.next_multiple_of(ROW)];
        for (index, bytes) in indices.read(index_bytes).zip(value_bytes.chunks_exact(2)) {
            values[index? as usize] = BF16::get(bytes);
        }
        cosines(elements).inverse(&mut values);
        Ok(values)
    }
}

/// Returns the values of a chunk, and zeros to the end of the last row.
fn padded(values: &[f32]) -> Vec<f32> {
    let mut all = values.to_vec();
    all.resize(values.len().next_multiple_of(ROW), 0.0);
    all
}

impl Codec for Dct {
    fn exchange(&self) -> Exchange {
        Exchange::Gather
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn bound(&self, elements: usize) -> Bound {
        // The largest coefficients have at least their share of the squared length, less the rounding
        // to bf16.
        let part = |elements: usize| {
            let count = self.indices(elements).count();
            count as f64 / elements.next_multiple_of(ROW).max(1) as f64
        };
        let min = match elements % CHUNK {
            0 => part(elements.min(CHUNK)),
            rest => part(rest).min(part(elements.min(CHUNK))),
        };
        Bound::Contraction(min * (1.0 - 2.0f64.powi(-16)))
    }

    fn claims(&self) -> Claims {
        Claims { idempotent: false, exact: false, nearest: false, ..Claims::ALL }
    }

    fn block(&self) -> usize {
        CHUNK
    }

    fn encoded_len(&self, elements: usize) -> usize {
        let (chunks, rest) = (elements / CHUNK, elements % CHUNK);
        let rest = if rest == 0 { 0 } else { self.chunk_len(rest) };
        chunks * self.chunk_len(CHUNK) + rest
    }

    fn encode(&self, input: Input<'_>, _key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        let mut finite = Finite::Yes;
        let places = output.chunks_mut(self.chunk_len(CHUNK));
        match input {
            Input::Plain(values) => {
                for (values, bytes) in values.chunks(CHUNK).zip(places) {
                    finite = finite.and(self.encode_chunk(values, bytes));
                }
            }
            Input::Feedback { values, residual } => {
                kernel::add(values, residual);
                for (values, bytes) in values.chunks_mut(CHUNK).zip(places) {
                    finite = finite.and(self.encode_chunk(values, bytes));
                    let sent = self.decode_chunk(bytes, values.len()).expect("own bytes");
                    values.iter_mut().zip(sent).for_each(|(x, sent)| *x -= sent);
                }
            }
        }
        finite
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        let chunks = encoded.chunks(self.chunk_len(CHUNK));
        for (values, bytes) in values.chunks_mut(CHUNK).zip(chunks) {
            let sent = self.decode_chunk(bytes, values.len())?;
            match write {
                Write::Set => values.copy_from_slice(&sent[..values.len()]),
                Write::Add => kernel::add(values, &sent[..values.len()]),
            }
        }
        Ok(())
    }
}
