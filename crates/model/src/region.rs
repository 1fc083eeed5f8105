//! Regions: the part of an operator's axes that one rank does.

use crate::axis::{Declaration, Operand};

/// A part of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it begins.
    pub start: usize,
    /// How long it is.
    pub length: usize,
}

/// A part of every axis of a declaration. An operator that counts places (tokens of a vocabulary,
/// positions of a sequence, elements of a mask) finds here where its own ones begin.
#[derive(Clone, Debug)]
pub struct Region<'a> {
    declaration: &'a Declaration,
    parts: Vec<Part>,
}

impl<'a> Region<'a> {
    /// A part of every axis, in their order.
    pub fn new(declaration: &'a Declaration, parts: Vec<Part>) -> Region<'a> {
        assert_eq!(declaration.axes.len(), parts.len(), "one part for every axis");
        Region { declaration, parts }
    }

    /// All of every axis.
    pub fn whole(declaration: &'a Declaration) -> Region<'a> {
        let parts = declaration.axes.iter().map(|axis| Part { start: 0, length: axis.length });
        Region::new(declaration, parts.collect())
    }

    /// The part of the axis of this name.
    ///
    /// # Panics
    /// If there is no such axis.
    pub fn part(&self, axis: char) -> Part {
        self.parts[self.declaration.axis(axis).expect("an axis of this operator")]
    }

    /// What an operand holds of each of its dimensions.
    pub fn parts_of(&self, operand: &Operand) -> Vec<Part> {
        let scaled =
            |part: Part, block| Part { start: part.start * block, length: part.length * block };
        operand.dims.iter().map(|dim| scaled(self.parts[dim.axis], dim.block)).collect()
    }

    /// What an input holds of each of its dimensions.
    pub fn input(&self, index: usize) -> Vec<Part> {
        self.parts_of(&self.declaration.inputs[index])
    }

    /// What an output holds of each of its dimensions.
    pub fn output(&self, index: usize) -> Vec<Part> {
        self.parts_of(&self.declaration.outputs[index])
    }

    /// The local shape of an output.
    pub fn output_shape(&self, index: usize) -> Vec<usize> {
        self.output(index).iter().map(|part| part.length).collect()
    }
}
