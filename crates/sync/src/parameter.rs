//! Parameters of a model, and their gradients.

use std::ops::Range;
use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use thinwire_codec::{Choice, kernel};
use thinwire_device::Region;
use thinwire_schedule::Summation;
use thinwire_wire::{DType, Rank};

use crate::Target;

/// Elements that are still in the cache when they are looked at again.
const BLOCK: usize = 4096;

/// A named parameter tensor of the model. Its gradient has the same shape.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The name, unique in the model: "block.3.mlp.up.weight".
    pub name: String,
    /// If this is only some rows of a parameter: the name of that parameter, by which rules choose the
    /// codec.
    pub rows_of: Option<String>,
    /// The sizes of its dimensions, slowest first.
    pub shape: Vec<usize>,
    /// The dtype of its gradient, and of the gradient on the wire if it is not compressed.
    pub dtype: DType,
    /// The number of the framework's own bucket. Gradients of one such bucket become ready together, so
    /// they share no exchange with gradients of another one.
    pub bucket: u32,
    /// The ranks that have a share of the gradient, by their numbers in the job; empty for all ranks of the
    /// synchroniser. Several groups of ranks may exchange a parameter at the same time, each group its own
    /// elements.
    pub ranks: Arc<[Rank]>,
    /// The kind of the gradient; gradients of different kinds share no bucket. For example, if other
    /// ranks hold an equal copy of a gradient, all copies must get the same average, so this gradient is
    /// of another kind than gradients that differ from rank to rank.
    pub kind: u32,
    /// Where the sum over `ranks` is needed. A sharded gradient has one chunk per rank, in rank order,
    /// all equally long.
    pub target: Target,
    /// The codec and the schedule of the gradient, if a plan for the whole model gives them. The
    /// gradient then travels in a bucket of its own, whatever the policy and its shape.
    pub transport: Option<Transport>,
}

/// The codec, the algorithm and the partitions of one gradient.
#[derive(Clone, Debug)]
pub struct Transport {
    /// The codec.
    pub codec: Choice,
    /// The algorithm by which the gradient is summed.
    pub summation: Summation,
    /// The number of pipelined partitions.
    pub partitions: usize,
}

impl Parameter {
    /// Returns an f32 parameter called `name` of the given shape, in bucket 0.
    pub fn new(name: &str, shape: &[usize]) -> Parameter {
        Parameter {
            name: name.to_owned(),
            rows_of: None,
            shape: shape.to_vec(),
            dtype: DType::F32,
            bucket: 0,
            ranks: Arc::default(),
            kind: 0,
            target: Target::Whole,
            transport: None,
        }
    }

    /// Returns some rows of the parameter, as a parameter of their own.
    pub(crate) fn of_rows(&self, rows: Range<usize>) -> Parameter {
        let Range { start, end } = rows;
        let (mut shape, rows_of) = (self.shape.clone(), Some(self.name.clone()));
        shape[0] = end - start;
        Parameter { name: format!("{}[{start}..{end}]", self.name), rows_of, shape, ..self.clone() }
    }

    /// Returns the name of the parameter, of which this may be [some rows](Parameter::of_rows).
    pub(crate) fn whole_name(&self) -> &str {
        self.rows_of.as_ref().unwrap_or(&self.name)
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns whether its gradient always travels uncompressed: scalars and vectors (biases, norms)
    /// are few and sensitive.
    pub fn is_exempt(&self) -> bool {
        self.shape.iter().filter(|&&size| size > 1).count() < 2
    }

    /// Returns whether its gradient shares a bucket with no other.
    pub(crate) fn is_alone(&self) -> bool {
        self.target == Target::Shard || self.transport.is_some()
    }

    /// Returns the rows and columns of its gradient as a matrix: the first dimension gives the rows, all
    /// other dimensions together give the columns.
    pub fn as_matrix(&self) -> (usize, usize) {
        let rows = self.shape.first().copied().unwrap_or(1);
        (rows, self.elements() / rows.max(1))
    }
}

/// The gradient of one parameter, as the framework holds it.
#[derive(Clone, Copy, Debug)]
pub enum Gradient<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// bfloat16.
    BF16(&'a [bf16]),
    /// Single precision in the memory of a device. The caller has ordered the device's work after the
    /// work that writes the gradient, and does not touch the gradient until the step is finished.
    Device(&'a Region),
}

impl Gradient<'_> {
    /// Returns the number of elements.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        match self {
            Gradient::F32(values) => values.len(),
            Gradient::F16(values) => values.len(),
            Gradient::BF16(values) => values.len(),
            Gradient::Device(region) => region.len(),
        }
    }

    /// Writes the gradient times `scale` as f32, of the same length. Returns the bits of its largest
    /// magnitude; if a value is NaN, a number above the bits of infinity.
    pub(crate) fn scale_into(&self, target: &mut [f32], scale: f32) -> u32 {
        match self {
            Gradient::F32(values) => return kernel::pack(target, values, scale),
            Gradient::F16(values) => values.convert_to_f32_slice(target),
            Gradient::BF16(values) => values.convert_to_f32_slice(target),
            Gradient::Device(region) => region.device().read(region, target),
        }
        self::scale(target, scale)
    }
}

/// Multiplies `values` by `factor`. Returns the bits of the largest magnitude; if a value is NaN, a
/// number above the bits of infinity.
pub(crate) fn scale(values: &mut [f32], factor: f32) -> u32 {
    values.chunks_mut(BLOCK).fold(0, |largest, block| {
        block.iter_mut().for_each(|value| *value *= factor);
        largest.max(kernel::max_magnitude(block))
    })
}

impl<'a> From<&'a [f32]> for Gradient<'a> {
    fn from(values: &'a [f32]) -> Gradient<'a> {
        Gradient::F32(values)
    }
}

impl<'a> From<&'a Vec<f32>> for Gradient<'a> {
    fn from(values: &'a Vec<f32>) -> Gradient<'a> {
        Gradient::F32(values)
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for Gradient<'a> {
    fn from(values: &'a [f32; N]) -> Gradient<'a> {
        Gradient::F32(values)
    }
}
