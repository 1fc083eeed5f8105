//! Programs: codecs as instructions over registers.
//!
//! A register holds one number per element, per kept element, or per block, for all blocks of a batch.
//! Values that depend on nothing but parameters and lengths are constants, computed once per call.

use super::wire::Wire;

/// Number of numbers of a value per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// One for all blocks, known before the blocks are.
    Constant,
    /// One.
    One,
    /// One per element of the block.
    Elements,
    /// One per kept element, as many as the constant at this index.
    Count(usize),
}

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// Input of `encode`.
    Input,
    /// Register of f32.
    Number(usize),
    /// Register of i32: integers, masks of 0 and 1, indices.
    Int(usize),
    /// Entry in the table of constants.
    Constant(usize),
}

/// Value that an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    pub source: Source,
    pub length: Length,
}

impl Operand {
    /// Returns whether the value is in a register of integers.
    pub(crate) fn is_int(self) -> bool {
        matches!(self.source, Source::Int(_))
    }
}

/// Constant, computed from earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Formula {
    Number(f64),
    /// Number of elements of the block.
    Elements,
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
}

/// Operations on one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Negative,
    Absolute,
    Sqrt,
    Floor,
    Ceiling,
}

/// Operations on two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Min,
    Max,
}

/// Comparisons of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Below,
    AtMost,
    Equal,
    Unequal,
}

/// Reductions of many numbers of a block to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    /// Sum of divided numbers, which does not overflow where the mean does not.
    Mean,
    Min,
    Max,
}

/// Operation of an instruction, on numbers unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation {
    Unary(Unary, Operand),
    Binary(Binary, Operand, Operand),
    /// Comparison of numbers, or of integers if one of them is in a register of integers.
    Compare(Comparison, Operand, Operand),
    /// Conjunction of masks.
    And(Operand, Operand),
    /// Disjunction of masks.
    Or(Operand, Operand),
    /// Negation of a mask.
    Not(Operand),
    /// Mask of the sign bits.
    Negative(Operand),
    /// Nearest integer, ties to even.
    Round(Operand),
    /// Either neighbouring integer, unbiased.
    RoundRandom(Operand),
    /// Integers as numbers.
    Number(Operand),
    /// Number with its first `digits` binary digits; further ones are cut off, or rounded up if `up`. 0
    /// below 2^-100.
    Digits {
        value: Operand,
        digits: u32,
        up: bool,
    },
    /// The second operand where the first one, a mask, holds; elsewhere the third.
    Select(Operand, Operand, Operand),
    /// Reduction of all numbers of a block to one number, or the sum of a mask.
    Reduce(Reduction, Operand),
    /// Running sums of a block.
    Scan(Operand),
    /// Value that is `by` elements before, where `by` is the index of a constant; 0 at the edge.
    Shift {
        value: Operand,
        by: usize,
    },
    /// Walsh-Hadamard transform of a block.
    Transform(Operand),
    /// Number of the block, from 0.
    BlockIndex,
    /// Uniform random numbers in `0.0..1.0`.
    Random,
    /// Indices of the largest magnitudes, as many as the length of the output.
    Largest(Operand),
    /// Indices of the largest magnitudes where the mask, the second operand, holds.
    LargestWhere(Operand, Operand),
    /// Indices where a mask holds, from a random position on; others follow if it holds for too few.
    Where(Operand),
    /// Numbers or integers at indices, the second operand.
    Gather(Operand, Operand),
    /// Number that is the `count`-th largest of the block.
    Rank {
        value: Operand,
        count: usize,
    },
    /// Sample of numbers, or of their magnitudes, evenly spread with a fixed jitter.
    Sample {
        value: Operand,
        absolute: bool,
    },
    /// Fused [`Operation::Where`] with the mask of magnitudes that reach the second operand.
    WhereAbove(Operand, Operand),
    /// Fused [`Operation::LargestWhere`] with the mask of magnitudes that reach the second operand.
    LargestAbove(Operand, Operand),
    /// Writes a field.
    Emit(usize, Operand),
    /// Fused emission of numbers times one number per block, rounded at random.
    EmitRoundRandom(usize, Operand, Operand),
    /// Reads a field.
    Take(usize),
    /// End of `decode` with one number for every element.
    Yield(Operand),
    /// Fused end of `decode`: the first operand where the field, a mask, holds, else the second; each is
    /// one per block.
    YieldSelect(usize, Operand, Operand),
    /// Fused end of `decode`: the field, of integers, times one number per block.
    YieldScaled(usize, Operand),
    /// End of `decode` with numbers at indices, and 0 elsewhere.
    YieldAt(Operand, Operand),
}

/// Operation with the register of its result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Instruction {
    pub operation: Operation,
    /// Register of the result, if there is one.
    pub output: Option<Operand>,
}

/// Field of an encoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Field {
    pub wire: Wire,
    pub length: Length,
}

/// Claim of a codec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Claim {
    Nothing,
    /// Contraction, the constant at this index.
    Contraction(usize),
    /// Unbiased with this variance, the constant at this index.
    Variance(usize),
}

/// Codec that can be run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Program {
    pub name: String,
    /// Names and values of parameters.
    pub parameters: Vec<(String, f64)>,
    /// Elements of a block; `None` if the codec works on whole tensors.
    pub block: Option<usize>,
    pub exchange: crate::Exchange,
    pub feedback: bool,
    pub claim: Claim,
    pub constants: Vec<Formula>,
    pub fields: Vec<Field>,
    pub encode: Vec<Instruction>,
    pub decode: Vec<Instruction>,
    /// Numbers of registers of f32 and of i32.
    pub registers: (usize, usize),
}

impl Operation {
    /// Returns the operands that the operation reads.
    pub(crate) fn operands(&mut self) -> Vec<&mut Operand> {
        use Operation as O;
        match self {
            O::Random | O::BlockIndex | O::Take(_) => vec![],
            O::Unary(_, a)
            | O::Not(a)
            | O::Negative(a)
            | O::Round(a)
            | O::RoundRandom(a)
            | O::Number(a)
            | O::Digits { value: a, .. }
            | O::Reduce(_, a)
            | O::Scan(a)
            | O::Shift { value: a, .. }
            | O::Transform(a)
            | O::Largest(a)
            | O::Where(a)
            | O::Rank { value: a, .. }
            | O::Sample { value: a, .. }
            | O::Emit(_, a)
            | O::YieldScaled(_, a)
            | O::Yield(a) => vec![a],
            O::Binary(_, a, b)
            | O::Compare(_, a, b)
            | O::And(a, b)
            | O::Or(a, b)
            | O::Gather(a, b)
            | O::LargestWhere(a, b)
            | O::WhereAbove(a, b)
            | O::LargestAbove(a, b)
            | O::EmitRoundRandom(_, a, b)
            | O::YieldSelect(_, a, b)
            | O::YieldAt(a, b) => vec![a, b],
            O::Select(a, b, c) => vec![a, b, c],
        }
    }
}

impl Unary {
    pub(crate) fn of(self, x: f64) -> f64 {
        match self {
            Unary::Negative => -x,
            Unary::Absolute => x.abs(),
            Unary::Sqrt => x.sqrt(),
            Unary::Floor => x.floor(),
            // The rounding error of a decimal fraction in binary must not count as one more.
            Unary::Ceiling => (x - 1e-6).ceil(),
        }
    }
}

impl Binary {
    pub(crate) fn of(self, x: f64, y: f64) -> f64 {
        match self {
            Binary::Add => x + y,
            Binary::Subtract => x - y,
            Binary::Multiply => x * y,
            Binary::Divide => {
                if y == 0.0 {
                    0.0
                } else {
                    x / y
                }
            }
            Binary::Min => x.min(y),
            Binary::Max => x.max(y),
        }
    }
}

impl Program {
    /// Returns the constants for blocks of `elements`.
    pub(crate) fn constants(&self, elements: usize) -> Vec<f64> {
        evaluate(&self.constants, elements)
    }

    /// Returns the number of numbers of a value of this length in a block of `elements`, at least 1.
    pub(crate) fn count(length: Length, elements: usize, constants: &[f64]) -> usize {
        match length {
            Length::Constant => 0,
            Length::One => 1,
            Length::Elements => elements,
            Length::Count(constant) => (constants[constant] as usize).clamp(1, elements),
        }
    }
}

/// Computes the values of `formulas`, each from earlier ones.
pub(crate) fn evaluate(formulas: &[Formula], elements: usize) -> Vec<f64> {
    let mut values: Vec<f64> = Vec::with_capacity(formulas.len());
    for formula in formulas {
        values.push(match formula {
            Formula::Number(number) => *number,
            Formula::Elements => elements as f64,
            Formula::Unary(operator, x) => operator.of(values[*x]),
            Formula::Binary(operator, x, y) => operator.of(values[*x], values[*y]),
        });
    }
    values
}
