//! From the tree to a program: every name known, every type right, every length known beforehand.

use std::collections::HashMap;

use super::function;
use super::fuse::fuse;
use super::program::{
    Binary, Claim, Comparison, Field, Formula, Instruction, Length, Operand, Operation, Program,
    Source, Unary,
};
use super::refusal::{Refusal, nearest};
use super::syntax::{Definition, Expression, Name, Node, Place, Statement};
use super::value::{Kind, Value, common};
use super::wire::Wire;
use super::{header, registers};

/// The program of a text with parameters as given.
///
/// # Errors
/// The first thing that makes no sense.
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
        claim: header.claim.unwrap_or(Claim::Nothing),
        constants: checker.constants,
        fields: checker.fields,
        encode,
        decode,
        registers,
    })
}

/// What is known so far.
#[derive(Default)]
pub(crate) struct Checker {
    pub constants: Vec<Formula>,
    names: HashMap<String, Value>,
    fields: Vec<Field>,
    taken: usize,
    section: Section,
    instructions: Vec<Instruction>,
    registers: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Header,
    Encode,
    Decode,
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
                    let refusal = Refusal::at(*place, "encode emits, and yields nothing");
                    return Err(refusal.hint("yield stands in decode"));
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
                    let refusal = Refusal::at(*place, "decode takes, and emits nothing");
                    return Err(refusal.hint("emit stands in encode"));
                }
            }
        }
        let (taken, emitted) = (self.taken, self.fields.len());
        if yielded.is_none() {
            return Err(
                Refusal::whole("decode yields nothing").hint("its last line is yield VALUE")
            );
        }
        if taken < emitted {
            return Err(Refusal::whole(format!("decode takes {taken} of {emitted} fields")));
        }
        Ok(std::mem::take(&mut self.instructions))
    }

    /// Gives a value a name.
    pub(crate) fn name(&mut self, name: &Name, value: Value) -> Result<(), Refusal> {
        let reserved = ["block", "elements", "pi"].contains(&name.text.as_str());
        if reserved || self.names.insert(name.text.clone(), value).is_some() {
            let message = format!("'{}' already has a meaning", name.text);
            return Err(Refusal::at(name.place, message).hint("a name is given once"));
        }
        Ok(())
    }

    /// Gives a word of the language its value.
    pub(crate) fn define(&mut self, word: &str, value: Value) {
        self.names.insert(word.to_owned(), value);
    }

    fn assign(&mut self, name: &Name, value: &Expression) -> Result<(), Refusal> {
        let value = self.expression(value)?;
        self.name(name, value)
    }

    fn emit(&mut self, wire: &Name, value: &Expression, place: Place) -> Result<(), Refusal> {
        let wire = Wire::parse(wire)?;
        let found = self.expression(value)?;
        let fits = match wire {
            Wire::F32 | Wire::F16 | Wire::Bf16 => matches!(found.kind, Kind::Number | Kind::Whole),
            Wire::Bits { .. } => matches!(found.kind, Kind::Whole | Kind::Mask),
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
            let refusal = Refusal::at(place, "a constant is emitted");
            return Err(refusal.hint("decode knows it without being told"));
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
                        "yield takes a number per element, found one per kept element",
                    );
                    return Err(refusal.hint("scatter(INDICES, NUMBERS) puts them in their places"));
                }
                Operation::Yield(self.number(found))
            }
        };
        self.instructions.push(Instruction { operation, output: None });
        Ok(())
    }

    /// The value of an expression, with the instructions that make it.
    pub(crate) fn expression(&mut self, expression: &Expression) -> Result<Value, Refusal> {
        let place = expression.place;
        match &expression.node {
            Node::Number(literal) => {
                let kind = if literal.whole { Kind::Whole } else { Kind::Number };
                Ok(self.constant(Formula::Number(literal.value), kind))
            }
            Node::Name(name) => self.lookup(name, place),
            Node::Take(wire) => self.take(wire, place),
            Node::Prefix(operator, value) => {
                let value = self.expression(value)?;
                match *operator {
                    "not" => {
                        self.require(Kind::Mask, value, place, "not")?;
                        Ok(self.result(Kind::Mask, value.length(), Operation::Not(value.operand)))
                    }
                    _ => self.unary(Unary::Negative, value, place, "-"),
                }
            }
            Node::Infix(operator, left, right) => {
                let (left, right) = (self.expression(left)?, self.expression(right)?);
                self.infix(operator, left, right, place)
            }
            Node::Call(name, arguments) => {
                let values = arguments.iter().map(|argument| self.expression(argument));
                let values = values.collect::<Result<Vec<_>, _>>()?;
                function::call(self, name, &values, place)
            }
            Node::Index(value, index) => {
                let (value, index) = (self.expression(value)?, self.expression(index)?);
                self.index(value, index, place)
            }
        }
    }

    fn lookup(&mut self, name: &str, place: Place) -> Result<Value, Refusal> {
        if name == "elements" {
            return Ok(self.constant(Formula::Elements, Kind::Whole));
        }
        if let Some(value) = self.names.get(name) {
            return Ok(*value);
        }
        if name == "block" {
            let refusal = Refusal::at(place, "there is no block: the codec works on whole tensors");
            return Err(refusal.hint("say 'block 128' above, or use 'elements'"));
        }
        let refusal = Refusal::at(place, format!("nothing is called '{name}'"));
        Err(match nearest(name, self.names.keys().map(String::as_str)) {
            Some(near) => refusal.hint(format!("did you mean '{near}'?")),
            None => refusal.hint("a name is given a value in a line above"),
        })
    }

    fn take(&mut self, wire: &Name, place: Place) -> Result<Value, Refusal> {
        let found = Wire::parse(wire)?;
        if self.section != Section::Decode {
            return Err(Refusal::at(place, "take stands in decode"));
        }
        let Some(field) = self.fields.get(self.taken).copied() else {
            let message = format!("take {}, but encode emits nothing more", found.name());
            return Err(Refusal::at(place, message));
        };
        if field.wire != found {
            let (number, expected) = (self.taken + 1, field.wire.name());
            let message =
                format!("take {}, but encode emits {expected} as field {number}", found.name());
            return Err(Refusal::at(place, message)
                .hint("fields are taken in the order in which they are emitted"));
        }
        self.taken += 1;
        let kind = match found {
            Wire::F32 | Wire::F16 | Wire::Bf16 => Kind::Number,
            Wire::Bits { width: 1, .. } => Kind::Mask,
            Wire::Bits { .. } => Kind::Whole,
            Wire::Indices => Kind::Indices,
        };
        Ok(self.result(kind, field.length, Operation::Take(self.taken - 1)))
    }

    fn infix(
        &mut self,
        operator: &str,
        left: Value,
        right: Value,
        place: Place,
    ) -> Result<Value, Refusal> {
        let binary = match operator {
            "+" => Binary::Add,
            "-" => Binary::Subtract,
            "*" => Binary::Multiply,
            "/" => Binary::Divide,
            "and" | "or" => {
                self.require(Kind::Mask, left, place, operator)?;
                self.require(Kind::Mask, right, place, operator)?;
                let length = self.together(left, right, place)?;
                let (a, b) = (left.operand, right.operand);
                let operation =
                    if operator == "and" { Operation::And(a, b) } else { Operation::Or(a, b) };
                return Ok(self.result(Kind::Mask, length, operation));
            }
            _ => return self.comparison(operator, left, right, place),
        };
        self.binary(binary, left, right, place, operator)
    }

    fn comparison(
        &mut self,
        operator: &str,
        left: Value,
        right: Value,
        place: Place,
    ) -> Result<Value, Refusal> {
        self.require_number(left, place, operator)?;
        self.require_number(right, place, operator)?;
        let length = self.together(left, right, place)?;
        if length == Length::Constant {
            return Err(Refusal::at(place, "two constants are compared"));
        }
        let whole = left.kind == Kind::Whole && right.kind == Kind::Whole;
        let (mut a, mut b) = match whole {
            true => (left.operand, right.operand),
            false => (self.number(left), self.number(right)),
        };
        if operator.starts_with('>') {
            (a, b) = (b, a);
        }
        let comparison = match operator {
            "<" | ">" => Comparison::Below,
            "<=" | ">=" => Comparison::AtMost,
            "==" => Comparison::Equal,
            _ => Comparison::Unequal,
        };
        let operation = match whole {
            true => Operation::WholeCompare(comparison, a, b),
            false => Operation::Compare(comparison, a, b),
        };
        Ok(self.result(Kind::Mask, length, operation))
    }

    /// An operation on two values, element by element.
    pub(crate) fn binary(
        &mut self,
        operator: Binary,
        left: Value,
        right: Value,
        place: Place,
        name: &str,
    ) -> Result<Value, Refusal> {
        self.require_number(left, place, name)?;
        self.require_number(right, place, name)?;
        let whole =
            left.kind == Kind::Whole && right.kind == Kind::Whole && operator != Binary::Divide;
        let kind = if whole { Kind::Whole } else { Kind::Number };
        if let (Some(a), Some(b)) = (left.constant(), right.constant()) {
            return Ok(self.constant(Formula::Binary(operator, a, b), kind));
        }
        let length = self.together(left, right, place)?;
        let operation = match whole {
            true => Operation::WholeBinary(operator, left.operand, right.operand),
            false => Operation::Binary(operator, self.number(left), self.number(right)),
        };
        Ok(self.result(kind, length, operation))
    }

    /// An operation on one value, element by element.
    pub(crate) fn unary(
        &mut self,
        operator: Unary,
        value: Value,
        place: Place,
        name: &str,
    ) -> Result<Value, Refusal> {
        self.require_number(value, place, name)?;
        let whole_result = matches!(operator, Unary::Floor | Unary::Ceiling);
        if let Some(constant) = value.constant() {
            let kind = match operator {
                Unary::Root => Kind::Number,
                _ if whole_result => Kind::Whole,
                _ => value.kind,
            };
            return Ok(self.constant(Formula::Unary(operator, constant), kind));
        }
        if value.kind == Kind::Whole && operator != Unary::Root {
            if whole_result {
                return Ok(value);
            }
            let operation = Operation::WholeUnary(operator, value.operand);
            return Ok(self.result(Kind::Whole, value.length(), operation));
        }
        let operand = self.number(value);
        Ok(self.result(Kind::Number, value.length(), Operation::Unary(operator, operand)))
    }

    fn index(&mut self, value: Value, index: Value, place: Place) -> Result<Value, Refusal> {
        self.require(Kind::Indices, index, place, "[ ]")?;
        if value.length() != Length::Elements {
            let message =
                format!("indices pick from a value per element, found {}", value.describe());
            return Err(Refusal::at(place, message));
        }
        let operation = match value.kind {
            Kind::Number => Operation::Gather(value.operand, index.operand),
            _ => Operation::WholeGather(value.operand, index.operand),
        };
        Ok(self.result(value.kind, index.length(), operation))
    }

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
