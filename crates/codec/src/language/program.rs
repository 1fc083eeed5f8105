//! A codec as instructions over registers.
//!
//! A register holds one number per element, per kept element, or one per block, for as many blocks
//! as are worked on at once. What depends on parameters and lengths alone is a constant: it is
//! worked out once per call.

use super::wire::Wire;

/// How many numbers of a value there are per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// One for all blocks, known beforehand.
    Constant,
    /// One.
    One,
    /// As many as the block has elements.
    Elements,
    /// As many as this constant says.
    Count(usize),
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// What is encoded.
    Input,
    /// A register of f32.
    Number(usize),
    /// A register of i32: whole numbers, masks of 0 and 1, indices.
    Whole(usize),
    /// An entry in the table of constants.
    Constant(usize),
}

/// What an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    pub source: Source,
    pub length: Length,
}

/// A constant, from those before it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Formula {
    Number(f64),
    /// How many elements the block at hand has.
    Elements,
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
}

/// Operations on one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Negative,
    Absolute,
    Root,
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
    Least,
    Largest,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Below,
    AtMost,
    Equal,
    Unequal,
}

/// Many numbers of a block to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    /// The sum of shares: nothing overflows where the mean does not.
    Mean,
    Least,
    Largest,
}

/// What an instruction does; operands are numbers unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation {
    Unary(Unary, Operand),
    Binary(Binary, Operand, Operand),
    Compare(Comparison, Operand, Operand),
    WholeUnary(Unary, Operand),
    WholeBinary(Binary, Operand, Operand),
    WholeCompare(Comparison, Operand, Operand),
    /// Of masks.
    And(Operand, Operand),
    Or(Operand, Operand),
    Not(Operand),
    /// Whether the sign bit is set.
    Negative(Operand),
    /// To the nearest whole number, ties to the even one.
    Round(Operand),
    /// To either whole number beside it, so that the mean is right.
    RoundRandom(Operand),
    /// Whole to number.
    Number(Operand),
    /// So many leading binary digits, the rest cut off or rounded up; 0 below 2^-100.
    Digits {
        value: Operand,
        digits: u32,
        up: bool,
    },
    /// The second where the mask holds, else the third.
    Select(Operand, Operand, Operand),
    WholeSelect(Operand, Operand, Operand),
    /// Of the numbers, or of their magnitudes.
    Reduce {
        reduction: Reduction,
        value: Operand,
        absolute: bool,
    },
    /// Whole numbers.
    WholeSum(Operand),
    /// Running sums.
    Scan(Operand),
    /// Uniform in `0.0..1.0`.
    Random,
    /// Where the largest magnitudes are: as many as the output's length says.
    Largest(Operand),
    /// The same among those where the mask, the second, holds.
    LargestWhere(Operand, Operand),
    /// Where a mask holds: so many from a random element on, filled up with others from there on.
    Where(Operand),
    /// The numbers at indices.
    Gather(Operand, Operand),
    WholeGather(Operand, Operand),
    /// The `count`-th largest.
    Rank {
        value: Operand,
        count: usize,
    },
    /// Some of many, or of their magnitudes, evenly with a fixed jitter.
    Sample {
        value: Operand,
        absolute: bool,
    },
    /// As `Where` and `LargestWhere`, of magnitudes that reach the second operand.
    WhereAbove(Operand, Operand),
    LargestAbove(Operand, Operand),
    /// Writes the numbered field.
    Emit(usize, Operand),
    /// The same with the sign bits of numbers, as a mask.
    EmitNegative(usize, Operand),
    /// The same with the nearest whole numbers.
    EmitRound(usize, Operand),
    /// The same with either whole number beside numbers times what is one per block.
    EmitRoundRandom(usize, Operand, Operand),
    /// The same with the code of the first step that holds, or else the last operand.
    EmitSteps(usize, [Step; 2], Operand),
    /// Reads it.
    Take(usize),
    /// Ends `decode` with one number for every element.
    Yield(Operand),
    /// The same: where the field, a mask, holds, the second, else the third; each is one per block.
    YieldSelect(usize, Operand, Operand),
    /// The same: the field, of whole numbers, times what is one per block.
    YieldScaled(usize, Operand),
    /// Ends it with numbers at indices, and 0 elsewhere.
    YieldAt(Operand, Operand),
}

/// A whole number where a comparison of an element with a number of its block holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// `Below` or `AtMost`.
    pub comparison: Comparison,
    pub left: Operand,
    pub right: Operand,
    pub code: Operand,
}

/// An operation and where its result goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Instruction {
    pub operation: Operation,
    /// No register where nothing results.
    pub output: Option<Operand>,
}

/// Something that is emitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Field {
    pub wire: Wire,
    pub length: Length,
}

/// What the codec says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Claim {
    Nothing,
    /// This constant is its contraction.
    Contraction(usize),
    /// This constant is its variance, and it is unbiased.
    Variance(usize),
}

/// A codec that can be run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Program {
    pub name: String,
    /// Parameters and their values.
    pub parameters: Vec<(String, f64)>,
    /// None if it is run on whole tensors.
    pub block: Option<usize>,
    pub exchange: crate::Exchange,
    pub feedback: bool,
    pub claim: Claim,
    pub constants: Vec<Formula>,
    pub fields: Vec<Field>,
    pub encode: Vec<Instruction>,
    pub decode: Vec<Instruction>,
    /// How many registers of f32 and of i32.
    pub registers: (usize, usize),
}

impl Step {
    /// The elements, and the number that they are compared with.
    fn sides(&self) -> (Operand, Operand) {
        match self.left.length {
            Length::Constant | Length::One => (self.right, self.left),
            _ => (self.left, self.right),
        }
    }

    /// What is compared.
    pub(crate) fn element(&self) -> Operand {
        self.sides().0
    }

    /// What it is compared with.
    pub(crate) fn bound(&self) -> Operand {
        self.sides().1
    }

    /// The comparison with a number as one of kind: an element with these bits of its sign turned is
    /// at most that.
    pub(crate) fn bits(&self, bound: f32) -> (u32, f32) {
        let above = self.element() == self.right;
        let bound = if above { -bound } else { bound };
        let strict = self.comparison == Comparison::Below;
        (u32::from(above) << 31, if strict { bound.next_down() } else { bound })
    }
}

impl Operation {
    /// What it reads.
    pub(crate) fn operands(&mut self) -> Vec<&mut Operand> {
        use Operation as O;
        match self {
            O::Random | O::Take(_) => vec![],
            O::Unary(_, a)
            | O::WholeUnary(_, a)
            | O::Not(a)
            | O::Negative(a)
            | O::Round(a)
            | O::RoundRandom(a)
            | O::Number(a)
            | O::Digits { value: a, .. }
            | O::Reduce { value: a, .. }
            | O::WholeSum(a)
            | O::Scan(a)
            | O::Largest(a)
            | O::Where(a)
            | O::Rank { value: a, .. }
            | O::Sample { value: a, .. }
            | O::Emit(_, a)
            | O::EmitNegative(_, a)
            | O::EmitRound(_, a)
            | O::YieldScaled(_, a)
            | O::Yield(a) => vec![a],
            O::Binary(_, a, b)
            | O::Compare(_, a, b)
            | O::WholeBinary(_, a, b)
            | O::WholeCompare(_, a, b)
            | O::And(a, b)
            | O::Or(a, b)
            | O::Gather(a, b)
            | O::LargestWhere(a, b)
            | O::WhereAbove(a, b)
            | O::LargestAbove(a, b)
            | O::EmitRoundRandom(_, a, b)
            | O::YieldSelect(_, a, b)
            | O::WholeGather(a, b)
            | O::YieldAt(a, b) => vec![a, b],
            O::Select(a, b, c) | O::WholeSelect(a, b, c) => vec![a, b, c],
            O::EmitSteps(_, steps, other) => {
                let steps = steps.iter_mut();
                let read = steps.flat_map(|step| [&mut step.left, &mut step.right, &mut step.code]);
                read.chain([other]).collect()
            }
        }
    }
}

impl Unary {
    pub(crate) fn of(self, x: f64) -> f64 {
        match self {
            Unary::Negative => -x,
            Unary::Absolute => x.abs(),
            Unary::Root => x.sqrt(),
            Unary::Floor => x.floor(),
            // What decimal fractions lack in binary must not count as one more.
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
            Binary::Least => x.min(y),
            Binary::Largest => x.max(y),
        }
    }
}

impl Program {
    /// The constants for blocks of `elements`.
    pub(crate) fn constants(&self, elements: usize) -> Vec<f64> {
        evaluate(&self.constants, elements)
    }

    /// How many numbers a value of this length has in a block of `elements`, which is not empty.
    pub(crate) fn count(length: Length, elements: usize, constants: &[f64]) -> usize {
        match length {
            Length::Constant => 0,
            Length::One => 1,
            Length::Elements => elements,
            Length::Count(constant) => (constants[constant] as usize).clamp(1, elements),
        }
    }
}

/// The values of `formulas`, each from those before it.
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
