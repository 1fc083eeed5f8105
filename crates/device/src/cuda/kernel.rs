//! Table of kernels: the kernels of each codec, and the number of threads that run them.
//!
//! Law: the geometry of a launch depends only on the length.

use thinwire_codec::language::Cuda;
use thinwire_codec::{Codec, Write};
use thinwire_wire::random::Key;

use super::arguments::{self, Parameters};
use super::entropy::Symbols;

/// File of kernels, which is compiled as one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Name of the file.
    pub name: &'static str,
    /// CUDA C.
    pub text: &'static str,
}

macro_rules! source {
    ($name:literal) => {
        Source { name: $name, text: include_str!(concat!("../../kernels/", $name)) }
    };
}

const CASTS: Source = source!("casts.cu");
const INTS: Source = source!("ints.cu");
const SIGNS: Source = source!("signs.cu");
const LEVELS: Source = source!("levels.cu");
const FLOAT8: Source = source!("float8.cu");
const POWERSGD: Source = source!("powersgd.cu");
const SPARSE: Source = source!("sparse.cu");
pub(super) const RANS: Source = source!("rans.cu");

/// All files of kernels.
pub const SOURCES: [Source; 8] = [CASTS, INTS, SIGNS, LEVELS, FLOAT8, POWERSGD, SPARSE, RANS];

/// Files that the kernels include.
pub const HEADERS: [Source; 8] = [
    source!("device.hpp"),
    source!("random.hpp"),
    source!("codes.hpp"),
    source!("formats.hpp"),
    source!("language.hpp"),
    source!("rans.hpp"),
    source!("ecsq.hpp"),
    source!("lossless.hpp"),
];

/// Kernel in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// File that contains it.
    pub source: Source,
    /// Name of its function.
    pub name: &'static str,
}

/// Threads of a launch; with 0 blocks there is nothing to launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks of threads.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
}

/// Kernels of a cast.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    /// Writes elements in the format.
    pub encode: Kernel,
    /// Reads elements in the format.
    pub decode: Kernel,
    /// Reads elements in the format, times a factor.
    pub pack: Kernel,
    /// Bits of the smallest magnitude that is not finite in the format.
    pub limit: u32,
}

/// Kernels of codes of a fixed width, and their parameters.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// Writes blocks of codes.
    pub encode: Kernel,
    /// Reads blocks of codes.
    pub decode: Kernel,
    /// Kernel of [`Codec::canonicalise`], if that changes anything; it runs on the grid of
    /// [`Code::grid`].
    pub canonicalise: Option<Kernel>,
    /// Elements of a block.
    pub block: u32,
    /// Threads that encode a block: a warp, or all threads of a block of threads.
    pub threads: u32,
    /// Numbers in the name of the codec.
    pub parameters: Parameters,
}

/// Kernels of a codec.
#[derive(Clone, Copy, Debug)]
pub enum Kernels {
    /// Every element becomes one of another format.
    Cast(Cast),
    /// Blocks of codes.
    Code(Code),
    /// Some elements with their indices, in several launches.
    Sparse(Selection),
    /// Entropy-coded symbols, in several launches.
    Rans(Symbols),
}

const fn cast(encode: &'static str, decode: &'static str, pack: &'static str, limit: u32) -> Cast {
    let (encode, decode) =
        (Kernel { source: CASTS, name: encode }, Kernel { source: CASTS, name: decode });
    Cast { encode, decode, pack: Kernel { source: CASTS, name: pack }, limit }
}

/// Threads of a warp.
const WARP: u32 = 32;

impl Cast {
    /// Kernels of raw f32.
    pub const RAW: Cast = cast("encode_none", "decode_none", "pack_none", 0x7f80_0000);

    /// Returns the threads for `length` elements.
    pub fn grid(&self, length: usize) -> Grid {
        const THREADS: u32 = 256;
        /// Elements of a thread, if there are blocks for all processors.
        const EACH: u32 = 4;
        const BLOCKS_MAX: u32 = 4096;
        Grid { blocks: blocks(length, THREADS * EACH).min(BLOCKS_MAX), threads: THREADS }
    }
}

impl Code {
    /// Returns the threads for `length` elements.
    pub fn grid(&self, length: usize) -> Grid {
        /// Warps of a block of threads, as in codes.hpp.
        const WARPS: u32 = 4;
        match self.threads {
            WARP => Grid { blocks: blocks(length, self.block * WARPS), threads: WARPS * WARP },
            threads => Grid { blocks: blocks(length, self.block), threads },
        }
    }

    fn emitted(cuda: Cuda) -> Code {
        let source = Source { name: cuda.file, text: cuda.text };
        let kernel = |name| Kernel { source, name };
        Code {
            encode: kernel(cuda.encode),
            decode: kernel(cuda.decode),
            canonicalise: None,
            block: cuda.block,
            threads: cuda.threads,
            parameters: Parameters::default(),
        }
    }
}

/// Kernels of PowerSGD on a matrix of this shape; the arguments are [`Power`](super::arguments::Power).
#[derive(Clone, Copy, Debug)]
pub struct PowerSgd {
    /// Number of rows.
    pub rows: u32,
    /// Number of columns.
    pub columns: u32,
    /// Number of vectors of a factor.
    pub low_rank: u32,
}

impl PowerSgd {
    /// Writes `q`, each vector times a power of two, to `partial`.
    pub const BALANCE: Kernel = powersgd("powersgd_balance");
    /// Adds the residual to the matrix M, and writes `p = M q`.
    pub const PROJECT: Kernel = powersgd("powersgd_project");
    /// Adds the residual to the matrix M, and writes partial sums of `Mᵀ p` to `partial`: one for every
    /// 128 rows of M.
    pub const PROJECT_BACK: Kernel = powersgd("powersgd_project_back");
    /// Writes `q`, the sums of the numbers in `partial`.
    pub const SUM: Kernel = powersgd("powersgd_sum");
    /// Writes `sign p qᵀ` to the matrix, or adds it.
    pub const PRODUCT: Kernel = powersgd("powersgd_product");
    /// Makes the vectors of `length` numbers at `p` orthonormal.
    pub const ORTHONORMALISE: Kernel = powersgd("powersgd_orthonormalise");

    /// Threads for [`PowerSgd::ORTHONORMALISE`], whose steps run in sequence.
    pub const ONE_BLOCK: Grid = Grid { blocks: 1, threads: 1024 };

    /// Returns the threads for [`PowerSgd::BALANCE`].
    pub fn balance(&self) -> Grid {
        Grid { blocks: self.low_rank, threads: 256 }
    }

    /// Returns the threads for [`PowerSgd::PROJECT`]: a warp for four rows.
    pub fn project(&self) -> Grid {
        Grid { blocks: self.rows.div_ceil(4 * 4), threads: 4 * 32 }
    }

    /// Returns the threads for [`PowerSgd::PROJECT_BACK`].
    pub fn project_back(&self) -> Grid {
        let tiles = self.columns.div_ceil(128);
        Grid { blocks: self.rows.div_ceil(SUMMED_ROWS) * tiles, threads: 128 }
    }

    /// Returns the threads for [`PowerSgd::SUM`].
    pub fn sum(&self) -> Grid {
        Grid { blocks: (self.low_rank * self.columns).div_ceil(256), threads: 256 }
    }

    /// Returns the threads for [`PowerSgd::PRODUCT`].
    pub fn product(&self) -> Grid {
        Grid { blocks: self.rows * self.columns.div_ceil(256), threads: 256 }
    }

    /// Returns the number of numbers in `partial`.
    pub fn partial_len(&self) -> usize {
        let sums = self.rows.div_ceil(SUMMED_ROWS) as usize;
        sums * self.low_rank as usize * self.columns as usize
    }
}

/// Choice of some elements: their fraction, and the way in which they are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selection {
    ratio: f64,
    crowd: Crowd,
}

/// Choice among elements that reach the threshold of a sample, as in sparse.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowd {
    /// No threshold: the largest of all, `topk`.
    None,
    /// The first ones from a given element on, `graddrop`.
    First,
    /// The largest, `dgc`.
    Largest,
}

/// Kernels of `topk`, `graddrop` and `dgc` on a number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sparse {
    length: u32,
    count: u32,
    low_bits: u32,
    samples: u32,
    rank: u32,
    crowd: Crowd,
}

/// One launch of a sequence of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Kernel to launch.
    pub kernel: Kernel,
    /// Its threads.
    pub grid: Grid,
    digit: u32,
    in_sample: u32,
}

impl Selection {
    /// Returns the kernels for `length` elements, as `codec::sparse` counts them; `None` from 2^32 on.
    pub fn of(self, length: usize) -> Option<Sparse> {
        const SAMPLES: usize = 1 << 13;
        let count = ((self.ratio * length as f64 - 1e-6).ceil() as usize).max(1).min(length);
        let low_bits = (length / count.max(1)).max(1).ilog2();
        let samples = if self.crowd == Crowd::None { 0 } else { SAMPLES.min(length) };
        // As in select::sampled_threshold, with the deviations of sparse::Sparse::choose.
        let deviations = if self.crowd == Crowd::Largest { 3.0 } else { 0.0 };
        let expected = count as f64 * samples as f64 / length.max(1) as f64;
        let rank = (expected + deviations * (expected.sqrt() + 1.0)) as usize;
        let rank = rank.min(samples.saturating_sub(1)) as u32 + 1;
        let (length, count) = (u32::try_from(length).ok()?, u32::try_from(count).ok()?);
        Some(Sparse { length, count, low_bits, samples: samples as u32, rank, crowd: self.crowd })
    }
}

impl Step {
    /// Returns the arguments of this step.
    pub fn arguments(&self, all: &arguments::Sparse) -> arguments::Sparse {
        arguments::Sparse { digit: self.digit, in_sample: self.in_sample, ..*all }
    }
}

impl Sparse {
    /// Returns the arguments without addresses. Only encoding uses the key.
    pub fn arguments(&self, key: Key) -> arguments::Sparse {
        arguments::Sparse {
            length: self.length.into(),
            count: self.count,
            low_bits: self.low_bits,
            samples: self.samples,
            stride: self.length.checked_div(self.samples).unwrap_or(1),
            rank: self.rank,
            crowd: self.crowd as u32,
            start: key.below(0, self.length.max(1)),
            ..arguments::Sparse::default()
        }
    }

    /// Returns the launches of encoding, in order.
    pub fn encoding(&self) -> impl Iterator<Item = Step> {
        let tiled = self.tiled();
        let sample = Grid { blocks: blocks(self.samples as usize, 256), threads: 256 };
        let sampled = [step("sparse_sample", sample)]
            .into_iter()
            .chain(find(1, sample))
            .chain([step("sparse_pass", self.all())]);
        let has_cut = self.crowd != Crowd::First;
        let bytes = self.low_len() + self.high_len() + 4 * self.count as usize;
        let rest = [
            step("sparse_count", tiled),
            step("sparse_scan", ONE_WARP),
            step("sparse_start", ONE_WARP),
            step("sparse_gather", tiled),
            step("sparse_write", Grid { blocks: blocks(bytes, 256), threads: 256 }),
        ];
        let steps = sampled.filter(|_| self.crowd != Crowd::None);
        let steps = steps.chain(find(0, self.all()).filter(move |_| has_cut)).chain(rest);
        steps.filter(|_| self.length > 0)
    }

    /// Returns the launches of decoding, in order.
    pub fn decoding(&self, write: Write) -> impl Iterator<Item = Step> {
        let start = (write == Write::Set).then(|| step("sparse_zero", self.all()));
        let rest = [
            step("sparse_ones", self.tiled()),
            step("sparse_scan", ONE_WARP),
            step("sparse_scatter", self.tiled()),
        ];
        start.into_iter().chain(rest).filter(|_| self.length > 0)
    }

    /// Returns the number of words in `scratch`.
    pub fn scratch_len(&self) -> usize {
        3 * 2048 + 8192 + 6 + 2 * self.tiles() as usize + 2 * self.count as usize
    }

    fn low_len(&self) -> usize {
        (self.count as usize * self.low_bits as usize).div_ceil(8)
    }

    fn high_len(&self) -> usize {
        let last = self.length.saturating_sub(1) as usize;
        if self.count == 0 {
            return 0;
        }
        ((last >> self.low_bits) + self.count as usize).div_ceil(8)
    }

    /// Returns the number of tiles of 4,096 elements, or of 4,096 bytes of upper bits.
    fn tiles(&self) -> u32 {
        blocks((self.length as usize).max(self.high_len()), 4096)
    }

    fn tiled(&self) -> Grid {
        Grid { blocks: self.tiles().div_ceil(4), threads: 4 * 32 }
    }

    fn all(&self) -> Grid {
        Grid { blocks: blocks(self.length as usize, 256 * 8).min(1024), threads: 256 }
    }
}

const ONE_WARP: Grid = Grid { blocks: 1, threads: 32 };

const fn step(name: &'static str, grid: Grid) -> Step {
    Step { kernel: Kernel { source: SPARSE, name }, grid, digit: 0, in_sample: 0 }
}

/// Returns the launches that find the magnitude with a given rank, digit by digit.
fn find(in_sample: u32, all: Grid) -> impl Iterator<Item = Step> {
    let digits = (0..3).flat_map(move |digit| {
        [step("sparse_histogram", all), step("sparse_digit", ONE_WARP)]
            .map(|step| Step { digit, ..step })
    });
    let start = step("sparse_clear", Grid { blocks: 1, threads: 256 });
    [start].into_iter().chain(digits).map(move |step| Step { in_sample, ..step })
}

/// Rows whose products are summed first, as in powersgd.cu.
const SUMMED_ROWS: u32 = 128;

const fn powersgd(name: &'static str) -> Kernel {
    Kernel { source: POWERSGD, name }
}

pub(super) fn blocks(length: usize, each: u32) -> u32 {
    length.div_ceil(each as usize).try_into().expect("fewer than 2^32 blocks")
}

/// Returns the kernels of a codec, if it has any.
pub fn kernels(codec: &dyn Codec) -> Option<Kernels> {
    if let Some(emitted) = codec.cuda() {
        return emitted.ok().map(|cuda| Kernels::Code(Code::emitted(cuda)));
    }
    let name = codec.to_string();
    let (head, parameter) = name.split_once(':').unwrap_or((&name, ""));
    Some(match head {
        "none" => Kernels::Cast(Cast::RAW),
        "f16" => Kernels::Cast(cast("encode_f16", "decode_f16", "pack_f16", 0x477f_f000)),
        "bf16" => Kernels::Cast(cast("encode_bf16", "decode_bf16", "pack_bf16", 0x7f7f_8000)),
        "topk" => Kernels::Sparse(Selection { ratio: parameter.parse().ok()?, crowd: Crowd::None }),
        "graddrop" => {
            Kernels::Sparse(Selection { ratio: parameter.parse().ok()?, crowd: Crowd::First })
        }
        "dgc" => {
            Kernels::Sparse(Selection { ratio: parameter.parse().ok()?, crowd: Crowd::Largest })
        }
        "ecsq" => Kernels::Rans(Symbols { step: parameter.parse().ok()?, planes: 0 }),
        "lossless" => {
            Kernels::Rans(Symbols { step: 0.0, planes: if parameter == "bf16" { 1 } else { 3 } })
        }
        _ => Kernels::Code(code(head, parameter, codec.block())?),
    })
}

fn code(head: &str, parameter: &str, block: usize) -> Option<Code> {
    let (source, encode, decode) = match (head, parameter) {
        ("int8", "") => (INTS, "encode_int8", "decode_int8"),
        ("int8", "stochastic") => (INTS, "encode_int8_stochastic", "decode_int8"),
        ("int4", "") => (INTS, "encode_int4", "decode_int4"),
        ("int4", "least-squares") => (INTS, "encode_int4_least_squares", "decode_int4"),
        ("int3", "least-squares") => (INTS, "encode_int3_least_squares", "decode_int3"),
        ("int4", "stochastic") => (INTS, "encode_int4_stochastic", "decode_int4"),
        ("int3", "") => (INTS, "encode_int3", "decode_int3"),
        ("int3", "stochastic") => (INTS, "encode_int3_stochastic", "decode_int3"),
        ("intsgd", "") => (INTS, "encode_intsgd", "decode_intsgd"),
        ("intsgd", "16") => (INTS, "encode_intsgd16", "decode_intsgd16"),
        ("int2", _) => (SIGNS, "encode_int2", "decode_int2"),
        ("onebit", _) => (SIGNS, "encode_onebit", "decode_onebit"),
        ("vote", _) => (SIGNS, "encode_vote", "decode_vote"),
        ("tbq", _) => (SIGNS, "encode_tbq", "decode_tbq"),
        ("terngrad" | "qsgd", _) => (LEVELS, "encode_levels", "decode_levels"),
        ("natural", _) => (LEVELS, "encode_natural", "decode_natural"),
        ("e4m3", _) => (FLOAT8, "encode_e4m3", "decode_e4m3"),
        ("e5m2", _) => (FLOAT8, "encode_e5m2", "decode_e5m2"),
        ("dynamic8", _) => (FLOAT8, "encode_dynamic8", "decode_dynamic8"),
        _ => return None,
    };
    let canonicalise = (head == "vote").then_some(Kernel { source, name: "canonicalise_vote" });
    let (encode, decode) = (Kernel { source, name: encode }, Kernel { source, name: decode });
    let block = u32::try_from(block).ok()?;
    let parameters = parameters(head, parameter)?;
    Some(Code { encode, decode, canonicalise, block, threads: WARP, parameters })
}

/// Reads the parameters after the colon in the name of a codec.
fn parameters(head: &str, parameter: &str) -> Option<Parameters> {
    let (first, norm) = parameter.split_once(':').unwrap_or((parameter, ""));
    Some(match head {
        "tbq" => Parameters { number: first.parse().ok()?, ..Parameters::default() },
        "terngrad" if first.is_empty() => Parameters { bits: 2, ..Parameters::default() },
        "terngrad" => Parameters { number: first.parse().ok()?, bits: 2, norm: 2 },
        "qsgd" => {
            let norm = u32::from(norm == "l2");
            Parameters { bits: first.parse().ok()?, norm, ..Parameters::default() }
        }
        _ => Parameters::default(),
    })
}
