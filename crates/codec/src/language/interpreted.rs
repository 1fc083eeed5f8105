//! Codec of a program.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use thinwire_wire::random::Key;

use super::batch::{Batch, Put, Registers};
use super::cuda::{self, Cuda};
use super::frame::{Frame, Place};
use super::program::{Claim, Instruction, Operation, Program};
use super::run;
use super::wire::Wire;
use crate::kernel::bits::INFINITY;
use crate::kernel::{self, BF16, F16, F32, Format};
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write};

/// Elements of a batch, of which several registers fit into the nearest cache.
const BATCH: usize = 1024;

/// Bytes of the largest registers that are kept for the next call.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Codec that interprets a program.
pub(crate) struct Interpreted {
    name: String,
    program: Program,
    /// Whether zeros are decoded to zeros.
    keeps_zero: bool,
    cuda: OnceLock<Result<Cuda, String>>,
    idle: Mutex<Vec<Registers>>,
}

impl Interpreted {
    /// Returns the codec called `name`.
    pub(crate) fn new(name: String, program: Program) -> Interpreted {
        let (cuda, idle) = Default::default();
        let mut codec = Interpreted { name, program, keeps_zero: true, cuda, idle };
        let (zeros, mut decoded) = ([0.0; 64], [1.0; 64]);
        let mut bytes = vec![0; codec.encoded_len(64)];
        let key = Key { seed: 0, step: 0, tensor: 0 };
        let finite = codec.encode(Input::Plain(&zeros), key, &mut bytes);
        let read = codec.decode(&bytes, Write::Set, &mut decoded).is_ok();
        codec.keeps_zero = finite == Finite::Yes && read && decoded == zeros;
        codec
    }

    /// Returns the elements of a block in a range of `elements`, at least 1.
    fn block_of(&self, elements: usize) -> usize {
        self.program.block.unwrap_or(elements).min(elements)
    }

    /// Runs `work` with registers that no other call uses.
    fn with_registers<T>(&self, work: impl FnOnce(&mut Registers) -> T) -> T {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle().pop();
        let mut registers = kept.unwrap_or_else(|| Registers::of(&self.program));
        let result = work(&mut registers);
        if registers.bytes() <= KEPT_BYTES_MAX {
            idle().push(registers);
        }
        result
    }

    /// Returns the number of blocks of a batch.
    fn batch(block: usize) -> usize {
        (BATCH / block).max(1)
    }
}

impl fmt::Debug for Interpreted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interpreted({self})")
    }
}

impl fmt::Display for Interpreted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Codec for Interpreted {
    fn exchange(&self) -> Exchange {
        self.program.exchange
    }

    fn needs_feedback(&self) -> bool {
        self.program.feedback
    }

    fn bound(&self, elements: usize) -> Bound {
        let constants = self.program.constants(self.block_of(elements.max(1)));
        match self.program.claim {
            Claim::Nothing => Bound::None,
            Claim::Contraction(at) => Bound::Contraction(constants[at].clamp(0.0, 1.0)),
            Claim::Variance(at) => Bound::Variance(constants[at].max(0.0)),
        }
    }

    fn claims(&self) -> Claims {
        // Random numbers and blocks count from the first element of the input, so parts have other ones.
        // Rounding to the nearest and exact residuals are never claimed: nothing proves them.
        let counted = |instruction: &Instruction| {
            use Operation as O;
            let operation = instruction.operation;
            matches!(operation, O::Random | O::RoundRandom(_) | O::EmitRoundRandom(..))
                || matches!(operation, O::Where(_) | O::LargestWhere(..))
                || matches!(operation, O::WhereAbove(..) | O::LargestAbove(..) | O::BlockIndex)
        };
        let mut instructions = self.program.encode.iter().chain(&self.program.decode);
        let separable = self.program.block.is_some() && !instructions.any(counted);
        Claims { separable, zero: self.keeps_zero, ..Claims::RANDOM }
    }

    fn block(&self) -> usize {
        self.program.block.unwrap_or(1)
    }

    fn cuda(&self) -> Option<Result<Cuda, &str>> {
        let emitted = self.cuda.get_or_init(|| cuda::emit(&self.program));
        Some(emitted.as_ref().copied().map_err(String::as_str))
    }

    fn encoded_len(&self, elements: usize) -> usize {
        parts(&self.program, elements).map(|part| part.blocks * part.frame.bytes).sum()
    }

    fn padding(&self, elements: usize) -> usize {
        parts(&self.program, elements).map(|part| part.blocks * part.frame.padding()).sum()
    }

    fn encode(&self, mut input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
        let elements = input.len();
        assert_eq!(output.len(), self.encoded_len(elements), "output of {self}");
        self.with_registers(|registers| {
            let mut finite = Finite::Yes;
            for part in parts(&self.program, elements) {
                let (frame, batch) = (&part.frame, Self::batch(part.frame.elements));
                for from in (0..part.blocks).step_by(batch) {
                    let blocks = batch.min(part.blocks - from);
                    let first = part.first + from * frame.elements;
                    let bytes = part.first_byte + from * frame.bytes;
                    let output = &mut output[bytes..bytes + blocks * frame.bytes];
                    let range = first..first + blocks * frame.elements;
                    let input = match &mut input {
                        Input::Plain(values) => Input::Plain(&values[range]),
                        Input::Feedback { values, residual } => Input::Feedback {
                            values: &mut values[range.clone()],
                            residual: &residual[range],
                        },
                    };
                    let encoded = encode_batch(frame, registers, input, key, first as u64, output);
                    finite = finite.and(encoded);
                }
            }
            finite
        })
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        let put = match write {
            Write::Set => Put::Set,
            Write::Add => Put::Add,
        };
        self.with_registers(|registers| {
            for part in parts(&self.program, values.len()) {
                let (frame, batch) = (&part.frame, Self::batch(part.frame.elements));
                let values = &mut values[part.first..][..part.blocks * frame.elements];
                let encoded = &encoded[part.first_byte..][..part.blocks * frame.bytes];
                let batches = values
                    .chunks_mut(batch * frame.elements)
                    .zip(encoded.chunks(batch * frame.bytes));
                let firsts = (part.first as u64..).step_by(batch * frame.elements);
                for ((values, encoded), first) in batches.zip(firsts) {
                    let blocks = values.len() / frame.elements;
                    // Nothing in decode is random.
                    let key = Key { seed: 0, step: 0, tensor: 0 };
                    let batch = Batch { frame, blocks, input: &[], encoded, key, first };
                    run::decode(&batch, registers, put, values)?;
                }
            }
            Ok(())
        })
    }
}

/// Consecutive blocks of one length.
struct Part<'a> {
    frame: Frame<'a>,
    blocks: usize,
    first: usize,
    first_byte: usize,
}

/// Returns the whole blocks of `elements`, and the last one if it is shorter.
fn parts(program: &Program, elements: usize) -> impl Iterator<Item = Part<'_>> {
    let block = program.block.unwrap_or(elements).min(elements).max(1);
    let (blocks, rest) = (elements / block, elements % block);
    let whole = (blocks > 0).then(|| Part {
        frame: Frame::new(program, block),
        blocks,
        first: 0,
        first_byte: 0,
    });
    let first_byte = whole.as_ref().map_or(0, |part| blocks * part.frame.bytes);
    let last = (rest > 0).then(|| Part {
        frame: Frame::new(program, rest),
        blocks: 1,
        first: elements - rest,
        first_byte,
    });
    whole.into_iter().chain(last)
}

/// Adds the residual, encodes, and subtracts the decoded values.
fn encode_batch(
    frame: &Frame<'_>,
    registers: &mut Registers,
    input: Input<'_>,
    key: Key,
    first: u64,
    output: &mut [u8],
) -> Finite {
    let blocks = input.len() / frame.elements;
    let (values, residual) = match input {
        Input::Plain(values) => {
            let max = kernel::max_magnitude(values);
            let batch = Batch { frame, blocks, input: values, encoded: &[], key, first };
            let finite = encode_finite(&batch, registers, max, output);
            let batch = Batch { input: &[], encoded: output, ..batch };
            return Finite::from(finite && decodes_finite(&batch, registers, values.len()));
        }
        Input::Feedback { values, residual } => (values, residual),
    };
    let max = add_residual(values, residual);
    let batch = Batch { frame, blocks, input: values, encoded: &[], key, first };
    if !encode_finite(&batch, registers, max, output) {
        return Finite::No;
    }
    let batch = Batch { frame, blocks, input: &[], encoded: output, key, first };
    // A program that cannot read what it wrote is refused when it is loaded.
    let read = run::decode(&batch, registers, Put::Subtract, values).is_ok();
    Finite::from(read && kernel::is_finite(values))
}

/// Returns whether an encoding decodes to finite numbers: emitted numbers may be finite where an
/// expression of them is not.
fn decodes_finite(batch: &Batch<'_>, registers: &mut Registers, elements: usize) -> bool {
    let mut decoded = std::mem::take(&mut registers.decoded);
    decoded.resize(elements, 0.0);
    let read = run::decode(batch, registers, Put::Set, &mut decoded).is_ok();
    let finite = read && kernel::is_finite(&decoded);
    registers.decoded = decoded;
    finite
}

/// Encodes values whose largest magnitude has the bits `max`; returns whether that and all emitted
/// numbers are finite.
fn encode_finite(
    batch: &Batch<'_>,
    registers: &mut Registers,
    max: u32,
    output: &mut [u8],
) -> bool {
    let finite = run::encode(batch, registers, output) && max < INFINITY;
    if !finite {
        spoil(batch.frame, batch.input, output);
    }
    finite
}

/// Adds the residual in pieces that stay in the nearest cache; returns the bits of the largest
/// magnitude of the sums.
fn add_residual(values: &mut [f32], residual: &[f32]) -> u32 {
    let pieces = values.chunks_mut(BATCH).zip(residual.chunks(BATCH));
    let max = pieces.map(|(values, residual)| {
        kernel::add(values, residual);
        kernel::max_magnitude(values)
    });
    max.max().unwrap_or(0)
}

/// Overwrites the blocks that are not finite: numbers become NaN, codes 0. Bytes of a codec with
/// indices are left alone, since such bytes would not be readable.
fn spoil(frame: &Frame<'_>, input: &[f32], output: &mut [u8]) {
    if frame.fields.iter().any(|field| field.wire == Wire::Indices) {
        return;
    }
    let blocks = input.chunks_exact(frame.elements).zip(output.chunks_exact_mut(frame.bytes));
    for (values, bytes) in blocks {
        let holds = |field: &Place| {
            let bytes = &bytes[field.offset..field.offset + field.bytes];
            match field.wire {
                Wire::F32 => is_finite::<F32>(bytes),
                Wire::F16 => is_finite::<F16>(bytes),
                Wire::Bf16 => is_finite::<BF16>(bytes),
                _ => true,
            }
        };
        if values.iter().all(|x| x.is_finite()) && frame.fields.iter().all(holds) {
            continue;
        }
        for field in &frame.fields {
            let bytes = &mut bytes[field.offset..field.offset + field.bytes];
            match field.wire {
                Wire::F32 => fill::<F32>(bytes),
                Wire::F16 => fill::<F16>(bytes),
                Wire::Bf16 => fill::<BF16>(bytes),
                _ => bytes.fill(0),
            }
        }
    }
}

fn is_finite<F: Format>(bytes: &[u8]) -> bool {
    bytes.chunks_exact(F::BYTES).all(|x| F::get(x).is_finite())
}

/// Makes all numbers NaN.
fn fill<F: Format>(bytes: &mut [u8]) {
    bytes.chunks_exact_mut(F::BYTES).for_each(|x| F::put(f32::NAN, x));
}
