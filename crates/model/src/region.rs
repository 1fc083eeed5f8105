//! Regions: the part of an operator's axes that one rank computes.

use thinwire_wire::random::Key;

use crate::{Declaration, Operand};

/// A part of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First index of the part.
    pub start: usize,
    /// Number of indices.
    pub length: usize,
}

/// A part of every axis of a declaration. It tells operators whose results depend on positions (tokens
/// of a vocabulary, positions of a sequence, elements of a mask) where their part begins.
#[derive(Clone, Debug)]
pub struct Region<'a> {
    declaration: &'a Declaration,
    parts: Vec<Part>,
    key: Key,
}

impl<'a> Region<'a> {
    /// Returns a region with a part of every axis, in order.
    pub fn new(declaration: &'a Declaration, parts: Vec<Part>) -> Region<'a> {
        assert_eq!(declaration.axes.len(), parts.len(), "one part for every axis");
        Region { declaration, parts, key: Key { seed: 0, step: 0, tensor: 0 } }
    }

    /// Sets the random numbers by the seed of a job and a step.
    pub fn with_random(self, seed: u64, step: u64) -> Region<'a> {
        Region { key: Key { seed, step, tensor: 0 }, ..self }
    }

    /// Returns the key of the random numbers, for tensor 0.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Returns the region that consists of all axes as a whole.
    pub fn whole(declaration: &'a Declaration) -> Region<'a> {
        let parts = declaration.axes.iter().map(|axis| Part { start: 0, length: axis.length });
        Region::new(declaration, parts.collect())
    }

    /// Returns the declaration to which the axes belong.
    pub fn declaration(&self) -> &'a Declaration {
        self.declaration
    }

    /// Returns the part of every axis, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the length of the part of every axis.
    pub fn lengths(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.length).collect()
    }

    /// Returns the part of the axis with this name.
    ///
    /// # Panics
    /// If there is no such axis.
    pub fn part(&self, axis: char) -> Part {
        self.parts[self.declaration.axis(axis).expect("an axis of this operator")]
    }

    /// Returns the part of each dimension of an operand.
    pub fn parts_of(&self, operand: &Operand) -> Vec<Part> {
        let scaled =
            |part: Part, block| Part { start: part.start * block, length: part.length * block };
        operand.dims.iter().map(|dim| scaled(self.parts[dim.axis], dim.width)).collect()
    }

    /// Returns the part of each dimension of an input.
    pub fn input(&self, index: usize) -> Vec<Part> {
        self.parts_of(&self.declaration.inputs[index])
    }

    /// Returns the part of each dimension of an output.
    pub fn output(&self, index: usize) -> Vec<Part> {
        self.parts_of(&self.declaration.outputs[index])
    }

    /// Returns the local shape of an output.
    pub fn output_shape(&self, index: usize) -> Vec<usize> {
        self.output(index).iter().map(|part| part.length).collect()
    }
}
