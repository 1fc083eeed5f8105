//! Operands and results of operators: constants, registers, and the types that operators require.

use super::expression::Checker;
use super::program::{Formula, Instruction, Length, Operand, Operation, Source};
use super::refusal::Refusal;
use super::syntax::Place;
use super::value::{Kind, Value, common};

impl Checker {
    /// Returns the value of a constant; equal constants share an entry.
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

    /// Adds an instruction; returns the value of the result.
    pub(crate) fn result(&mut self, kind: Kind, length: Length, operation: Operation) -> Value {
        let register = self.registers;
        self.registers += 1;
        let source = match kind {
            Kind::Number => Source::Number(register),
            _ => Source::Int(register),
        };
        // A result of constants alone is equal in all blocks; it is computed once per block.
        let length = if length == Length::Constant { Length::One } else { length };
        let operand = Operand { source, length };
        self.instructions.push(Instruction { operation, output: Some(operand) });
        Value { kind, operand }
    }

    /// Returns a value as f32.
    pub(crate) fn number(&mut self, value: Value) -> Operand {
        match (value.kind, value.operand.source) {
            (Kind::Number, _) | (_, Source::Constant(_)) => value.operand,
            _ => {
                self.result(Kind::Number, value.length(), Operation::Number(value.operand)).operand
            }
        }
    }

    /// Returns the length of a result of two values, element by element.
    pub(crate) fn together(&self, a: Value, b: Value, place: Place) -> Result<Length, Refusal> {
        common(a.length(), b.length()).ok_or_else(|| {
            let message = format!("{} cannot be combined with {}", a.describe(), b.describe());
            Refusal::at(place, message).hint("x[INDICES] picks the kept elements")
        })
    }

    /// Checks that a value is numbers or integers.
    pub(crate) fn require_number(
        &self,
        value: Value,
        place: Place,
        what: &str,
    ) -> Result<(), Refusal> {
        if matches!(value.kind, Kind::Number | Kind::Int) {
            return Ok(());
        }
        let refusal =
            Refusal::at(place, format!("{what} takes numbers, found {}", value.describe()));
        Err(match value.kind {
            Kind::Mask => refusal.hint("select(MASK, 1, 0) makes numbers of a mask"),
            _ => refusal.hint("x[INDICES] gives the numbers at indices"),
        })
    }

    /// Checks that a value is a mask, or indices.
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
