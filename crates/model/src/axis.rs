//! Axes: the loops of an operator, and the dimensions of its operands along them.
//!
//! Axes work like those of einsum: a linear layer is `x[b,s,k] w[k,n] -> y[b,s,n]`. A dimension may have
//! several elements at each index of its axis. So heads can be an axis although a head's features are in
//! the same dimension.

use crate::{Error, Kind, Reduction};

/// A loop of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The letter by which strategies and pins refer to the axis. An operator and its gradients use the
    /// same letter for the same axis.
    pub name: char,
    /// Iterations of the loop.
    pub length: usize,
    /// Allowed cuts.
    pub split: Split,
}

/// Allowed cuts of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Into equal parts, whose length is a multiple of `multiple_of`.
    Even {
        /// Divisor of the length of every part.
        multiple_of: usize,
    },
    /// The axis stays whole, because the computation at one index needs all other indices.
    Never,
}

/// A dimension of an operand. It runs over an axis, with a number of elements at each index of the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim {
    /// The index of the axis.
    pub axis: usize,
    /// Number of neighbouring elements that belong to one index of the axis.
    pub width: usize,
}

impl Dim {
    /// Returns this dimension with `width` elements at each index of the axis.
    pub fn wide(self, width: usize) -> Dim {
        Dim { width, ..self }
    }
}

/// A tensor as an operand of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The operator's name for the operand, such as `weight`.
    pub name: &'static str,
    /// The axis of each dimension.
    pub dims: Vec<Dim>,
    /// For an input: whether it is added to a sum, as a bias is. Such an input does not have the axis of
    /// the sum. If this axis is cut, the input is partial and its gradient is replicated.
    pub summand: bool,
    /// For an output: the operation that combines the parts if an axis that the output does not have is
    /// cut.
    pub reduction: Reduction,
}

impl Operand {
    /// Returns an operand with these dimensions; an output is combined by summing.
    pub fn new(name: &'static str, dims: impl Into<Vec<Dim>>) -> Operand {
        Operand { name, dims: dims.into(), summand: false, reduction: Reduction::Sum }
    }

    /// Marks an input as added to the sum, as a bias is.
    pub fn added(self) -> Operand {
        Operand { summand: true, ..self }
    }

    /// Sets the reduction of an output.
    pub fn reduced(self, reduction: Reduction) -> Operand {
        Operand { reduction, ..self }
    }

    /// Returns the dimension that runs over an axis.
    pub fn dim_of(&self, axis: usize) -> Option<usize> {
        self.dims.iter().position(|dim| dim.axis == axis)
    }
}

/// An operator applied to operands of known shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct Declaration {
    /// The loops.
    pub axes: Vec<Axis>,
    /// Inputs, in the operator's order.
    pub inputs: Vec<Operand>,
    /// Outputs, in the operator's order.
    pub outputs: Vec<Operand>,
    /// Floating-point operations over all axes; a multiplication and an addition count as two.
    pub flops: f64,
    /// Whether outputs are linear in all inputs together, so that partial sums of the inputs give
    /// partial sums of the outputs.
    pub linear: bool,
}

impl Declaration {
    /// Marks the operator as linear in all inputs together.
    pub fn linear(self) -> Declaration {
        Declaration { linear: true, ..self }
    }

    /// Returns the index of the axis with this name.
    pub fn axis(&self, name: char) -> Option<usize> {
        self.axes.iter().position(|axis| axis.name == name)
    }

    /// Returns the whole shape of an operand.
    pub fn shape(&self, operand: &Operand) -> Vec<usize> {
        operand.dims.iter().map(|dim| self.axes[dim.axis].length * dim.width).collect()
    }

    /// Returns the shapes of all outputs.
    pub fn output_shapes(&self) -> Vec<Vec<usize>> {
        self.outputs.iter().map(|output| self.shape(output)).collect()
    }

    /// Checks that these are the shapes of the operator's inputs.
    pub(crate) fn check(&self, inputs: &[&[usize]]) -> Result<(), Error> {
        for (operand, actual) in self.inputs.iter().zip(inputs) {
            let expected = self.shape(operand);
            if expected != **actual {
                let message =
                    format!("{} has shape {actual:?}, expected {expected:?}", operand.name);
                return Err(Error::new(Kind::Operands, message));
            }
        }
        Ok(())
    }
}

/// The letters of dimensions whose structure an operator does not use, from first to last.
pub(crate) const LEADING: [char; 6] = ['b', 's', 't', 'u', 'v', 'w'];

/// Axes of a declaration that is being built.
#[derive(Clone, Debug, Default)]
pub struct Axes(Vec<Axis>);

impl Axes {
    /// Adds an axis that may be cut anywhere, and returns the dimension that runs over it.
    pub fn even(&mut self, name: char, length: usize) -> Dim {
        self.push(name, length, Split::Even { multiple_of: 1 })
    }

    /// Adds an axis that must stay whole, and returns the dimension that runs over it.
    pub fn never(&mut self, name: char, length: usize) -> Dim {
        self.push(name, length, Split::Never)
    }

    /// Adds axes for dimensions whose structure an operator does not use, named b, s, t, u, v, w, and returns
    /// the dimensions.
    ///
    /// # Errors
    /// If there are more dimensions than letters.
    pub fn leading(&mut self, shape: &[usize]) -> Result<Vec<Dim>, Error> {
        if shape.len() > LEADING.len() {
            let most = LEADING.len() + 1;
            let message =
                format!("an operand has shape {shape:?}, expected at most {most} dimensions");
            return Err(Error::new(Kind::Operands, message));
        }
        Ok(shape.iter().zip(LEADING).map(|(length, letter)| self.even(letter, *length)).collect())
    }

    /// Adds axes as [`Axes::leading`] does, for an operator that has its own axis v.
    ///
    /// # Errors
    /// If there are more dimensions than b, s, t, u.
    pub fn leading_without_v(&mut self, shape: &[usize]) -> Result<Vec<Dim>, Error> {
        let most = LEADING.iter().take_while(|letter| **letter != 'v').count();
        if shape.len() > most {
            let message =
                format!("an operand has shape {shape:?}, expected at most {most} dimensions");
            return Err(Error::new(Kind::Operands, message));
        }
        self.leading(shape)
    }

    /// Adds axes for all dimensions of an operator that does not use their structure, and returns the
    /// dimensions; the last axis is n.
    ///
    /// # Errors
    /// If there are too many dimensions.
    pub fn all(&mut self, shape: &[usize]) -> Result<Vec<Dim>, Error> {
        let Some((last, leading)) = shape.split_last() else { return Ok(Vec::new()) };
        let mut dims = self.leading(leading)?;
        dims.push(self.even('n', *last));
        Ok(dims)
    }

    /// Returns the dimension that runs over the axis with this name, if there is one.
    pub fn named(&self, name: char) -> Option<Dim> {
        let axis = self.0.iter().position(|axis| axis.name == name)?;
        Some(Dim { axis, width: 1 })
    }

    /// Returns the number of axes.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the length of the axis of a dimension.
    pub fn length(&self, dim: Dim) -> usize {
        self.0[dim.axis].length
    }

    /// Returns the product of all lengths.
    pub fn points(&self) -> f64 {
        self.0.iter().map(|axis| axis.length as f64).product()
    }

    /// Returns the declaration with these axes.
    pub fn declare(
        self,
        inputs: impl Into<Vec<Operand>>,
        outputs: impl Into<Vec<Operand>>,
        flops: f64,
    ) -> Declaration {
        let (inputs, outputs) = (inputs.into(), outputs.into());
        Declaration { axes: self.0, inputs, outputs, flops, linear: false }
    }

    fn push(&mut self, name: char, length: usize, split: Split) -> Dim {
        debug_assert!(self.0.iter().all(|axis| axis.name != name), "axis {name} is there twice");
        self.0.push(Axis { name, length, split });
        Dim { axis: self.0.len() - 1, width: 1 }
    }
}
