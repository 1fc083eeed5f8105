//! What operators make, and what they ask of their operands.

use super::check::Checker;
use super::program::{Formula, Instruction, Length, Operand, Operation, Source};
use super::refusal::Refusal;
use super::syntax::Place;
use super::value::{Kind, Value, common};

impl Checker {
    /// The entry of a constant; equal ones share one.
    pub(crate) fn constant(&mut self, formula: Formula, kind: Kind) -> Value {
        let known = self.constants.iter().position(|known| *known == formula);
        let index = known.unwrap_or_else(|| {
            self.constants.push(formula);
            self.constants.len() - 1
        });
        Value {
            kind,
            operand: Operand { source: Source::Constant(index), length: Length::Constant },
        }
    }

    /// Adds an instruction that makes a value.
    pub(crate) fn result(&mut self, kind: Kind, length: Length, operation: Operation) -> Value {
        let register = self.registers;
        self.registers += 1;
        let source = match kind {
            Kind::Number => Source::Number(register),
            _ => Source::Whole(register),
        };
        // What is made of constants is the same in every block; it is kept once per block.
        let length = if length == Length::Constant { Length::One } else { length };
        let operand = Operand { source, length };
        self.instructions.push(Instruction { operation, output: Some(operand) });
        Value { kind, operand }
    }

    /// The value as f32.
    pub(crate) fn number(&mut self, value: Value) -> Operand {
        match (value.kind, value.operand.source) {
            (Kind::Number, _) | (_, Source::Constant(_)) => value.operand,
            _ => {
                self.result(Kind::Number, value.length(), Operation::Number(value.operand)).operand
            }
        }
    }

    /// The length of what is made of both.
    pub(crate) fn together(&self, a: Value, b: Value, place: Place) -> Result<Length, Refusal> {
        common(a.length(), b.length()).ok_or_else(|| {
            let message = format!("{} does not go with {}", a.describe(), b.describe());
            Refusal::at(place, message).hint("x[INDICES] picks the kept elements")
        })
    }

    /// Refuses what is neither a number nor whole.
    pub(crate) fn require_number(
        &self,
        value: Value,
        place: Place,
        what: &str,
    ) -> Result<(), Refusal> {
        if matches!(value.kind, Kind::Number | Kind::Whole) {
            return Ok(());
        }
        let refusal =
            Refusal::at(place, format!("{what} takes numbers, found {}", value.describe()));
        Err(match value.kind {
            Kind::Mask => refusal.hint("select(MASK, 1, 0) makes numbers of a mask"),
            _ => refusal.hint("x[INDICES] gives the numbers at indices"),
        })
    }

    /// Refuses what is of another kind.
    pub(crate) fn require(
        &self,
        kind: Kind,
        value: Value,
        place: Place,
        what: &str,
    ) -> Result<(), Refusal> {
        if value.kind == kind && value.length() != Length::Constant {
            return Ok(());
        }
        let expected = if kind == Kind::Mask { "a mask" } else { "indices" };
        let refusal =
            Refusal::at(place, format!("{what} takes {expected}, found {}", value.describe()));
        Err(match kind {
            Kind::Mask => refusal.hint("a comparison such as x < 0 gives a mask"),
            _ => refusal.hint("largest(x, COUNT) gives indices"),
        })
    }
}
