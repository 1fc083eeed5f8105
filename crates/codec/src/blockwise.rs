//! Largest elements of every block, with their values in another codec.
//!
//! Of every BLOCK elements, the K of largest magnitude are sent; of elements with equal magnitudes, the
//! first ones. A last block of `r` elements sends `ceil(K r / BLOCK)`. The positions of a block take
//! `log2 C(BLOCK, K)` bits (see `subsets`). The values of all blocks, in order, are encoded by VALUES as
//! one tensor: `none`, `bf16`, `lloyd:2`, `ecsq:0.5` and others. With K = 64, BLOCK = 4096 and two bits
//! per value, messages have the same content as in Sarfi et al., "Communication efficient LLM
//! pre-training with SparseLoCo" (2025), which sends a position in 12 bits.
//!
//! Format: if VALUES has a variable length, the length of the whole encoding (u32, little-endian); then
//! the positions of every block, in whole bytes; then the encoding of the values.
//!
//! Law: an element that is sent has the value that VALUES decodes, and its error stays in the residual;
//! an element that is not sent stays in the residual as a whole.

use std::fmt;
use std::sync::Arc;

use thinwire_wire::random::Key;

use crate::choice::{Choice, Entry};
use crate::subsets::{self, ELEMENTS_MAX, Subsets};
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write, select};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "blocktopk:K/BLOCK[:VALUES]",
    summary: "the K largest elements of every BLOCK, values by another codec",
    examples: &["blocktopk:64/4096:lloyd:2", "blocktopk:5/64", "blocktopk:1/16:ecsq:0.5"],
    parse,
};

#[derive(Debug)]
struct BlockTopK {
    count: usize,
    block: usize,
    subsets: Subsets,
    /// Bytes of the positions of a whole block.
    subset_len: usize,
    values: Arc<dyn Codec>,
}

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    let (sizes, values) = match parameter.and_then(|found| found.split_once(':')) {
        Some((sizes, values)) => (Some(sizes), values),
        None => (parameter, "none"),
    };
    let numbers = sizes.and_then(|sizes| sizes.split_once('/'));
    let numbers =
        numbers.and_then(|(count, block)| Some((count.parse().ok()?, block.parse().ok()?)));
    let Some((count, block)) =
        numbers.filter(|(count, block)| (1..=*block).contains(count) && *block <= ELEMENTS_MAX)
    else {
        let expected = format!("K/BLOCK with a K of 1..=BLOCK and a BLOCK of 1..={ELEMENTS_MAX}");
        return Err(Error::parameter("blocktopk elements", sizes, &expected));
    };
    Ok(Choice::bytes(BlockTopK {
        count,
        block,
        subsets: Subsets::new(block),
        subset_len: subsets::encoded_len(count, block),
        values: codec_of_values(values)?,
    }))
}

/// Parses a codec that encodes every element, with an error that stays below the values.
fn codec_of_values(name: &str) -> Result<Arc<dyn Codec>, Error> {
    // A slash is in the names of files, and in that of this codec, which must not hold itself.
    let is_of_table = !name.contains('/') && !name.contains(".codec");
    match is_of_table.then(|| Choice::parse(name)).transpose()? {
        Some(Choice::Bytes(codec))
            if codec.exchange() != Exchange::Gather
                && matches!(codec.bound(1), Bound::Contraction(sent) if sent > 0.0) =>
        {
            Ok(codec)
        }
        _ => {
            let expected =
                "a codec of every element whose error is bounded, such as lloyd:2 or int8";
            Err(Error::parameter("blocktopk values", Some(name), expected))
        }
    }
}

impl BlockTopK {
    /// Returns how many of the elements of a block are sent.
    fn kept(&self, elements: usize) -> usize {
        (self.count * elements).div_ceil(self.block)
    }

    /// Returns how many of all elements are sent.
    fn kept_of_all(&self, elements: usize) -> usize {
        elements / self.block * self.count + self.kept(elements % self.block)
    }

    /// Returns the bytes of the positions of a block.
    fn subset_len(&self, elements: usize) -> usize {
        match elements == self.block {
            true => self.subset_len,
            false => subsets::encoded_len(self.kept(elements), elements),
        }
    }

    fn positions_len(&self, elements: usize) -> usize {
        elements / self.block * self.subset_len + self.subset_len(elements % self.block)
    }

    /// Returns the bytes before the encoding of the values.
    fn head_len(&self, elements: usize) -> usize {
        let stated = if self.is_variable() { 4 } else { 0 };
        stated + self.positions_len(elements)
    }

    /// Adds the residual and writes the positions; returns the elements to send in order.
    fn choose(&self, input: &mut Input<'_>, mut positions: &mut [u8]) -> Chosen {
        let count = self.kept_of_all(input.len());
        let mut chosen =
            Chosen { places: Vec::with_capacity(count), values: Vec::with_capacity(count) };
        input.for_chunks(self.block, |first, mut block| {
            let (elements, count) = (block.len(), self.kept(block.len()));
            let found = select::largest(&mut block, count);
            let (own, rest) =
                std::mem::take(&mut positions).split_at_mut(self.subset_len(elements));
            positions = rest;
            self.subsets.write(found.iter().map(|one| one.index), count, elements, own);
            chosen.places.extend(found.iter().map(|one| first + one.index as usize));
            chosen.values.extend(found.iter().map(|one| f32::from_bits(one.bits)));
        });
        chosen
    }
}

/// Elements to send.
struct Chosen {
    places: Vec<usize>,
    values: Vec<f32>,
}

impl fmt::Display for BlockTopK {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocktopk:{}/{}", self.count, self.block)?;
        if self.values.is_raw() { Ok(()) } else { write!(f, ":{}", self.values) }
    }
}

impl Codec for BlockTopK {
    fn exchange(&self) -> Exchange {
        Exchange::Gather
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn bound(&self, elements: usize) -> Bound {
        let share = self.count as f64 / self.block as f64;
        match self.values.bound(self.kept_of_all(elements)) {
            Bound::Contraction(sent) => Bound::Contraction(share * sent),
            _ => Bound::None,
        }
    }

    fn claims(&self) -> Claims {
        let Claims { exact, zero, .. } = self.values.claims();
        Claims { idempotent: false, exact, nearest: false, separable: false, zero }
    }

    fn block(&self) -> usize {
        self.block
    }

    fn encoded_len(&self, elements: usize) -> usize {
        self.head_len(elements) + self.values.encoded_len(self.kept_of_all(elements))
    }

    fn is_variable(&self) -> bool {
        self.values.is_variable()
    }

    fn expected_len(&self, elements: usize) -> usize {
        self.head_len(elements) + self.values.expected_len(self.kept_of_all(elements))
    }

    fn encode(&self, mut input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        let (head, place) = output.split_at_mut(self.head_len(input.len()));
        let (stated, positions) = head.split_at_mut(if self.is_variable() { 4 } else { 0 });
        let mut chosen = self.choose(&mut input, positions);
        // Minus zero changes no bit of a sum.
        let residual = vec![-0.0; chosen.values.len()];
        let of_values = Input::Feedback { values: &mut chosen.values, residual: &residual };
        let finite = self.values.encode(of_values, key, place);
        if self.is_variable() {
            let length = stated.len() + positions.len() + self.values.frame_len(place);
            stated.copy_from_slice(&(length as u32).to_le_bytes());
        }
        if let Input::Feedback { values, .. } = input {
            let left = chosen.places.into_iter().zip(chosen.values);
            left.for_each(|(place, left)| values[place] = left);
        }
        finite
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        let (elements, head_len) = (values.len(), self.head_len(values.len()));
        if self.is_variable() {
            Error::check_stated(self, encoded, head_len, elements)?;
        } else {
            Error::check_length(self, encoded, self.encoded_len(elements), elements)?;
        }
        let (head, of_values) = encoded
            .split_at_checked(head_len)
            .ok_or_else(|| Error::no_encoding(self, encoded, elements))?;
        let mut sent = vec![0.0; self.kept_of_all(elements)];
        self.values.decode(of_values, Write::Set, &mut sent)?;
        let (mut sent, mut positions) =
            (sent.into_iter(), &head[head.len() - self.positions_len(elements)..]);
        for block in values.chunks_mut(self.block) {
            if write == Write::Set {
                block.fill(0.0);
            }
            let count = self.kept(block.len());
            let (own, rest) = positions.split_at(self.subset_len(block.len()));
            positions = rest;
            self.subsets.read(own, count, block.len(), |index| {
                block[index] += sent.next().expect("as many values as positions");
            });
        }
        Ok(())
    }
}
