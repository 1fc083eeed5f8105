//! Checker of expressions: names, operators and taken fields become instructions.

use std::collections::HashMap;

use super::function;
use super::program::{Binary, Comparison, Field, Formula, Instruction, Length, Operation, Unary};
use super::refusal::{Refusal, nearest};
use super::syntax::{Expression, Name, Node, Place};
use super::value::{Kind, Value};
use super::wire::Wire;

/// Program so far, and the names of its values.
#[derive(Default)]
pub(crate) struct Checker {
    pub constants: Vec<Formula>,
    pub names: HashMap<String, Value>,
    pub fields: Vec<Field>,
    /// Number of fields that `decode` has taken.
    pub taken: usize,
    pub section: Section,
    pub instructions: Vec<Instruction>,
    pub registers: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Section {
    #[default]
    Header,
    Encode,
    Decode,
}

impl Checker {
    /// Names a value.
    pub(crate) fn name(&mut self, name: &Name, value: Value) -> Result<(), Refusal> {
        let reserved = ["block", "block_index", "elements"].contains(&name.text.as_str());
        if reserved || self.names.insert(name.text.clone(), value).is_some() {
            let message = format!("'{}' already has a meaning", name.text);
            return Err(Refusal::at(name.place, message).hint("a name is given once"));
        }
        Ok(())
    }

    /// Defines a word of the language as a value.
    pub(crate) fn define(&mut self, word: &str, value: Value) {
        self.names.insert(word.to_owned(), value);
    }

    /// Adds the instructions of an expression; returns the value.
    pub(crate) fn expression(&mut self, expression: &Expression) -> Result<Value, Refusal> {
        let place = expression.place;
        match &expression.node {
            Node::Number(literal) => {
                let kind = if literal.is_int { Kind::Int } else { Kind::Number };
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
            return Ok(self.constant(Formula::Elements, Kind::Int));
        }
        if name == "block_index" {
            return self.block_index(place);
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

    fn block_index(&mut self, place: Place) -> Result<Value, Refusal> {
        if self.section == Section::Header {
            return Err(Refusal::at(place, "block_index is only allowed in encode and decode")
                .hint("it differs from block to block, so no constant can depend on it"));
        }
        if !self.names.contains_key("block") {
            return Err(Refusal::at(
                place,
                "there is no block to count: the codec works on whole tensors",
            )
            .hint("say 'block 128' above"));
        }
        Ok(self.result(Kind::Int, Length::One, Operation::BlockIndex))
    }

    fn take(&mut self, wire: &Name, place: Place) -> Result<Value, Refusal> {
        let found = Wire::parse(wire)?;
        if self.section != Section::Decode {
            return Err(Refusal::at(place, "take is only allowed in decode"));
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
            Wire::Bits { .. } => Kind::Int,
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
        let whole = left.kind == Kind::Int && right.kind == Kind::Int;
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
        Ok(self.result(Kind::Mask, length, Operation::Compare(comparison, a, b)))
    }

    /// Adds an operation on two values, element by element.
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
        let whole = left.kind == Kind::Int && right.kind == Kind::Int && operator != Binary::Divide;
        let kind = if whole { Kind::Int } else { Kind::Number };
        if let (Some(a), Some(b)) = (left.constant(), right.constant()) {
            return Ok(self.constant(Formula::Binary(operator, a, b), kind));
        }
        let length = self.together(left, right, place)?;
        let (a, b) = match whole {
            true => (left.operand, right.operand),
            false => (self.number(left), self.number(right)),
        };
        Ok(self.result(kind, length, Operation::Binary(operator, a, b)))
    }

    /// Adds an operation on one value, element by element.
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
                Unary::Sqrt => Kind::Number,
                _ if whole_result => Kind::Int,
                _ => value.kind,
            };
            return Ok(self.constant(Formula::Unary(operator, constant), kind));
        }
        if value.kind == Kind::Int && operator != Unary::Sqrt {
            if whole_result {
                return Ok(value);
            }
            let operation = Operation::Unary(operator, value.operand);
            return Ok(self.result(Kind::Int, value.length(), operation));
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
        let operation = Operation::Gather(value.operand, index.operand);
        Ok(self.result(value.kind, index.length(), operation))
    }
}
