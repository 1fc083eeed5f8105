//! Check of a text: from the tree to a program in which all names, types and lengths are known.

use super::expression::{Checker, Section};
use super::fuse::fuse;
use super::program::{Field, Instruction, Length, Operand, Operation, Program, Source};
use super::refusal::Refusal;
use super::syntax::{Definition, Expression, Name, Node, Place, Statement};
use super::value::{Kind, Value, common};
use super::wire::Wire;
use super::{function, header, registers};

/// Returns the program of a text with the given parameters.
///
/// # Errors
/// The first name, type or length that does not fit.
pub(crate) fn check(text: &Definition, given: &[(String, f64)]) -> Result<Program, Refusal> {
    let mut checker = Checker::default();
    let header = header::check(text, given, &mut checker)?;
    let encode = checker.encode(text)?;
    let decode = checker.decode(text)?;
    let (encode, decode, registers) =
        registers::assign(fuse(encode, &checker.fields), fuse(decode, &checker.fields));
    Ok(Program {
        name: text.name.text.clone(),
        parameters: header.parameters,
        block: header.block,
        exchange: header.exchange,
        feedback: header.feedback,
        claim: header.claim,
        constants: checker.constants,
        fields: checker.fields,
        encode,
        decode,
        registers,
    })
}

impl Checker {
    fn encode(&mut self, text: &Definition) -> Result<Vec<Instruction>, Refusal> {
        let constants = self.names.clone();
        self.section = Section::Encode;
        let input = Operand { source: Source::Input, length: Length::Elements };
        self.name(&text.input, Value { kind: Kind::Number, operand: input })?;
        for statement in &text.encode {
            match statement {
                Statement::Let(name, value) => self.assign(name, value)?,
                Statement::Emit { wire, value, place } => self.emit(wire, value, *place)?,
                Statement::Yield { place, .. } => {
                    let refusal = Refusal::at(*place, "encode cannot yield");
                    return Err(refusal.hint("yield is only allowed in decode"));
                }
            }
        }
        self.names = constants;
        if self.fields.is_empty() {
            return Err(Refusal::at(text.input.place, "encode emits nothing"));
        }
        Ok(std::mem::take(&mut self.instructions))
    }

    fn decode(&mut self, text: &Definition) -> Result<Vec<Instruction>, Refusal> {
        self.section = Section::Decode;
        let mut yielded = None;
        for statement in &text.decode {
            if let Some(place) = yielded {
                return Err(Refusal::at(place, "yield is not the last line of decode"));
            }
            match statement {
                Statement::Let(name, value) => self.assign(name, value)?,
                Statement::Yield { value, place } => {
                    self.yielding(value)?;
                    yielded = Some(*place);
                }
                Statement::Emit { place, .. } => {
                    let refusal = Refusal::at(*place, "decode cannot emit");
                    return Err(refusal.hint("emit is only allowed in encode"));
                }
            }
        }
        let (taken, emitted) = (self.taken, self.fields.len());
        if yielded.is_none() {
            return Err(
                Refusal::codec("decode yields nothing").hint("its last line is yield VALUE")
            );
        }
        if taken < emitted {
            return Err(Refusal::codec(format!("decode takes {taken} of {emitted} fields")));
        }
        Ok(std::mem::take(&mut self.instructions))
    }

    fn assign(&mut self, name: &Name, value: &Expression) -> Result<(), Refusal> {
        let value = self.expression(value)?;
        self.name(name, value)
    }

    fn emit(&mut self, wire: &Name, value: &Expression, place: Place) -> Result<(), Refusal> {
        let wire = Wire::parse(wire)?;
        let found = self.expression(value)?;
        let fits = match wire {
            Wire::F32 | Wire::F16 | Wire::Bf16 => matches!(found.kind, Kind::Number | Kind::Int),
            Wire::Bits { .. } => matches!(found.kind, Kind::Int | Kind::Mask),
            Wire::Indices => found.kind == Kind::Indices,
        };
        if !fits {
            let message = format!("{} does not hold {}", wire.name(), found.describe());
            let hint = match (wire, found.kind) {
                (Wire::Bits { .. }, Kind::Number) => "round(...) makes a number whole",
                (Wire::Bits { .. }, _) => "indices are emitted as indices",
                (Wire::Indices, _) => "largest(x, COUNT) gives indices",
                _ => "a mask is emitted as u1",
            };
            return Err(Refusal::at(place, message).hint(hint));
        }
        if found.length() == Length::Constant {
            let refusal = Refusal::at(place, "a constant cannot be emitted");
            return Err(refusal.hint("decode knows a constant anyway"));
        }
        let operand = match wire {
            Wire::F32 | Wire::F16 | Wire::Bf16 => self.number(found),
            _ => found.operand,
        };
        self.fields.push(Field { wire, length: found.length() });
        self.instructions.push(Instruction {
            operation: Operation::Emit(self.fields.len() - 1, operand),
            output: None,
        });
        Ok(())
    }

    fn yielding(&mut self, value: &Expression) -> Result<(), Refusal> {
        let operation = match &value.node {
            Node::Call(name, arguments) if name == "scatter" => {
                let [indices, values] = arguments.as_slice() else {
                    return Err(function::wrong_count(name, arguments.len(), value.place));
                };
                let (indices, values) = (self.expression(indices)?, self.expression(values)?);
                if indices.kind != Kind::Indices
                    || common(values.length(), indices.length()) != Some(indices.length())
                {
                    let found = format!("{} and {}", indices.describe(), values.describe());
                    let message =
                        format!("scatter takes indices and as many numbers, found {found}");
                    return Err(Refusal::at(value.place, message));
                }
                self.require_number(values, value.place, "scatter")?;
                Operation::YieldAt(indices.operand, self.number(values))
            }
            _ => {
                let found = self.expression(value)?;
                self.require_number(found, value.place, "yield")?;
                if matches!(found.length(), Length::Count(_)) {
                    let refusal = Refusal::at(
                        value.place,
                        "yield takes a number per element, found a number per kept element",
                    );
                    return Err(
                        refusal.hint("scatter(INDICES, NUMBERS) puts kept numbers in their places")
                    );
                }
                Operation::Yield(self.number(found))
            }
        };
        self.instructions.push(Instruction { operation, output: None });
        Ok(())
    }
}
