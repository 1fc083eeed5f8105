//! Layouts: which elements of a tensor each rank of a mesh has.
//!
//! A mesh is a list of sizes; ranks are numbered with the last mesh dimension running fastest. If several
//! mesh dimensions cut the same dimension of a tensor, the first one cuts first.

use std::fmt;

/// Operation that combines partial values into the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reduction {
    /// By addition.
    Sum,
    /// By taking the largest.
    Max,
    /// By the logarithm of the sum of the exponentials.
    LogSumExp,
}

impl Reduction {
    /// Returns the neutral element, which changes nothing.
    pub fn identity(self) -> f64 {
        match self {
            Reduction::Sum => 0.0,
            Reduction::Max | Reduction::LogSumExp => f64::NEG_INFINITY,
        }
    }

    /// Combines two partial values.
    pub fn combine(self, a: f64, b: f64) -> f64 {
        match self {
            Reduction::Sum => a + b,
            Reduction::Max => a.max(b),
            Reduction::LogSumExp => {
                let most = a.max(b);
                if most == f64::NEG_INFINITY {
                    return most;
                }
                most + ((a - most).exp() + (b - most).exp()).ln()
            }
        }
    }
}

/// Placement of a tensor along one dimension of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Placement {
    /// Every rank has the whole tensor.
    Replicated,
    /// Every rank has its part of this dimension of the tensor.
    Sharded(usize),
    /// Every rank has values that must still be reduced.
    Partial(Reduction),
}

impl fmt::Display for Placement {
    /// Writes `R`, `S0` or `P`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Replicated => f.write_str("R"),
            Placement::Sharded(dim) => write!(f, "S{dim}"),
            Placement::Partial(Reduction::Sum) => f.write_str("P"),
            Placement::Partial(Reduction::Max) => f.write_str("P:max"),
            Placement::Partial(Reduction::LogSumExp) => f.write_str("P:logsumexp"),
        }
    }
}

/// Layout of a tensor: one placement per dimension of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layout(pub Vec<Placement>);

impl Layout {
    /// Returns the layout with the whole tensor on every rank.
    pub fn replicated(mesh: &[usize]) -> Layout {
        Layout(vec![Placement::Replicated; mesh.len()])
    }

    /// Returns the number of parts into which each dimension of a tensor is cut.
    pub fn parts(&self, ndim: usize, mesh: &[usize]) -> Vec<usize> {
        let mut parts = vec![1; ndim];
        for (placement, size) in self.0.iter().zip(mesh) {
            if let Placement::Sharded(dim) = placement {
                parts[*dim] *= size;
            }
        }
        parts
    }

    /// Returns whether a tensor of this shape can have this layout, with equal parts of every cut
    /// dimension.
    pub fn fits(&self, shape: &[usize], mesh: &[usize]) -> bool {
        let known = |placement: &Placement| match placement {
            Placement::Sharded(dim) => *dim < shape.len(),
            Placement::Replicated | Placement::Partial(_) => true,
        };
        self.0.len() == mesh.len()
            && self.0.iter().all(known)
            && shape.iter().zip(self.parts(shape.len(), mesh)).all(|(n, parts)| n % parts == 0)
    }

    /// Returns the shape of one rank's part of a tensor.
    pub fn local_shape(&self, shape: &[usize], mesh: &[usize]) -> Vec<usize> {
        let parts = self.parts(shape.len(), mesh);
        shape.iter().zip(parts).map(|(length, parts)| length.div_ceil(parts)).collect()
    }

    /// Returns the number of elements of one rank's part of a tensor.
    pub fn local_elements(&self, shape: &[usize], mesh: &[usize]) -> usize {
        self.local_shape(shape, mesh).iter().product()
    }

    /// Returns the start of a rank's part in each dimension. `coordinates` is the position of the rank on
    /// the mesh.
    pub fn start(&self, shape: &[usize], mesh: &[usize], coordinates: &[usize]) -> Vec<usize> {
        let mut index = vec![0; shape.len()];
        for ((placement, size), at) in self.0.iter().zip(mesh).zip(coordinates) {
            if let Placement::Sharded(dim) = placement {
                index[*dim] = index[*dim] * size + at;
            }
        }
        let local = self.local_shape(shape, mesh);
        index.iter().zip(local).map(|(index, length)| index * length).collect()
    }
}

impl fmt::Display for Layout {
    /// Writes the placements, such as `(S0,R)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let placements: Vec<String> = self.0.iter().map(Placement::to_string).collect();
        write!(f, "({})", placements.join(","))
    }
}
