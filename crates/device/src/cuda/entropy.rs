//! Kernels of codecs whose symbols are entropy-coded, and the order in which they run.

use thinwire_codec::Codec;

use super::arguments;
use super::kernel::{Grid, Kernel, RANS, blocks};

/// Parameters in the name of `ecsq` or `lossless`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Symbols {
    /// Step of `ecsq`, over the root mean square.
    pub(super) step: f32,
    /// Planes of bytes of `lossless`; 0 is `ecsq`.
    pub(super) planes: u32,
}

/// Kernels of `ecsq` and `lossless` on a number of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rans {
    symbols: Symbols,
    length: usize,
    room: u32,
}

/// One launch of a sequence of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Kernel to launch.
    pub kernel: Kernel,
    /// Its threads.
    pub grid: Grid,
}

/// Elements of a stream, a chunk and a section, as in rans.hpp.
const STREAM: usize = 1 << 14;
const CHUNK: usize = 4096;
const SECTION: usize = 1 << 16;

const ONE_WARP: Grid = Grid { blocks: 1, threads: 32 };
const ONE_BLOCK: Grid = Grid { blocks: 1, threads: 256 };

const fn stage(name: &'static str, grid: Grid) -> Stage {
    Stage { kernel: Kernel { source: RANS, name }, grid }
}

impl Symbols {
    /// Returns the kernels for `length` elements.
    ///
    /// # Panics
    /// If an encoding may have 2^32 bytes, more than its head can hold.
    pub fn of(self, codec: &dyn Codec, length: usize) -> Rans {
        let room = codec.encoded_len(length).try_into().expect("fewer than 2^32 bytes");
        Rans { symbols: self, length, room }
    }
}

impl Rans {
    /// Returns the arguments without addresses.
    pub fn arguments(&self) -> arguments::Rans {
        let (length, Symbols { step, planes }) = (self.length as u64, self.symbols);
        arguments::Rans { length, room: self.room, planes, step, ..arguments::Rans::default() }
    }

    /// Returns the launches of encoding, in order.
    pub fn encoding(&self) -> impl Iterator<Item = Stage> {
        let chunked = Grid { blocks: blocks(self.length, CHUNK as u32), threads: 256 };
        let sections = Grid { blocks: blocks(self.length, 32 * SECTION as u32), threads: 32 };
        let quantised = [
            stage("ecsq_squares", chunked),
            stage("ecsq_steps", sections),
            stage("ecsq_quantise", chunked),
            stage("ecsq_levels", ONE_BLOCK),
        ];
        let split = [stage("lossless_split", self.all()), stage("lossless_table", ONE_BLOCK)];
        let is_split = self.symbols.planes > 0;
        let symbols = quantised.into_iter().filter(move |_| !is_split);
        let symbols = symbols.chain(split.into_iter().filter(move |_| is_split));
        let streams = self.length.div_ceil(STREAM).max(1) as u32;
        let finish = match is_split {
            true => stage("lossless_finish", self.all()),
            false => stage("ecsq_finish", self.warps(CHUNK)),
        };
        let coded = [
            stage("rans_encode", self.warps(STREAM)),
            stage("rans_layout", ONE_WARP),
            stage("rans_gather", Grid { blocks: streams, threads: 256 }),
            finish,
            stage("rans_deliver", self.bytes()),
        ];
        [stage("rans_clear", ONE_BLOCK)].into_iter().chain(symbols).chain(coded)
    }

    /// Returns the launches of decoding, in order.
    pub fn decoding(&self) -> impl Iterator<Item = Stage> {
        let decode = stage("rans_decode", self.warps(STREAM));
        let of_levels = [
            stage("ecsq_open", ONE_BLOCK),
            decode,
            stage("ecsq_places", ONE_WARP),
            stage("ecsq_restore", self.warps(CHUNK)),
        ];
        let of_planes =
            [stage("lossless_open", ONE_BLOCK), decode, stage("lossless_join", self.all())];
        let is_split = self.symbols.planes > 0;
        let rest = of_levels.into_iter().filter(move |_| !is_split);
        let rest = rest.chain(of_planes.into_iter().filter(move |_| is_split));
        [stage("rans_stage", self.bytes())].into_iter().chain(rest)
    }

    /// Returns the number of words in `scratch`, which begins at a multiple of 8 bytes.
    pub fn scratch_len(&self) -> usize {
        let [streams, chunks, sections] =
            [STREAM, CHUNK, SECTION].map(|part| self.length.div_ceil(part));
        // Sums of f64; numbers of the message, histogram, frequencies and table; streams with their slots.
        let head = 8 * chunks + 16 + 2 * 256 + 4096;
        let slots = (2 + (STREAM + 64) / 2) * streams;
        let symbols = self.length.div_ceil(4) + (self.room as usize).div_ceil(4);
        head + slots + chunks + 4 * sections + symbols
    }

    /// Returns a warp for `each` elements.
    fn warps(&self, each: usize) -> Grid {
        Grid { blocks: blocks(self.length, 4 * each as u32).max(1), threads: 4 * 32 }
    }

    fn all(&self) -> Grid {
        Grid { blocks: blocks(self.length, 256 * 8).clamp(1, 1024), threads: 256 }
    }

    /// Returns the threads that copy an encoding.
    fn bytes(&self) -> Grid {
        Grid { blocks: blocks(self.room as usize, 256 * 16).clamp(1, 1024), threads: 256 }
    }
}
