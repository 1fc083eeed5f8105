//! Conversions: the collectives that bring a tensor from one layout to another.
//!
//! Let p be the number of ranks along a dimension of the mesh, and n the number of elements that each of
//! them would have if the tensor were whole along this dimension. A rank sends:
//!
//! | from → to | collective | elements sent |
//! |---|---|---|
//! | partial → replicated | all-reduce | 2(p−1)/p · n |
//! | partial → sharded | reduce-scatter | (p−1)/p · n |
//! | sharded → replicated | all-gather | (p−1)/p · n |
//! | sharded → sharded elsewhere | all-to-all | (p−1)/p · n/p |
//! | replicated → sharded | slice | 0 |
//! | replicated or sharded → partial | pad | 0 |

use crate::{Error, Kind, Layout, Placement, Reduction};

/// Number of mesh dimensions for which [`Phase::cuts`] has bits.
const DIMENSIONS_MAX: usize = u64::BITS as usize;

/// A collective of the ranks along one dimension of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Every rank keeps its part of a dimension; nothing is sent.
    Slice {
        /// The dimension of the tensor.
        dim: usize,
    },
    /// Every rank gets the reduced values of its part of a dimension.
    ReduceScatter {
        /// Operation that combines the values.
        reduction: Reduction,
        /// The dimension of the tensor.
        dim: usize,
    },
    /// Every rank exchanges its part of one dimension for a part of another dimension.
    AllToAll {
        /// The dimension that becomes whole.
        from: usize,
        /// The dimension that is cut.
        to: usize,
    },
    /// Every rank gets the reduced values.
    AllReduce {
        /// Operation that combines the values.
        reduction: Reduction,
    },
    /// Every rank fills elements that it does not have with the neutral element; nothing is sent. A
    /// replicated tensor keeps its values on the first rank only.
    Pad {
        /// Operation that will combine the values.
        reduction: Reduction,
        /// The dimension that was cut, if one was.
        from: Option<usize>,
    },
    /// Every rank gets the parts of all ranks.
    AllGather {
        /// The dimension of the tensor.
        dim: usize,
    },
}

impl Collective {
    /// Returns the placement of the tensor along this mesh dimension after the collective.
    pub fn result(self) -> Placement {
        match self {
            Collective::AllReduce { .. } | Collective::AllGather { .. } => Placement::Replicated,
            Collective::Pad { reduction, .. } => Placement::Partial(reduction),
            Collective::Slice { dim }
            | Collective::ReduceScatter { dim, .. }
            | Collective::AllToAll { to: dim, .. } => Placement::Sharded(dim),
        }
    }
}

/// A collective along one dimension of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The dimension of the mesh.
    pub mesh_dim: usize,
    /// Collective of this step.
    pub collective: Collective,
    /// The number of elements on each rank if the tensor were whole along this dimension of the mesh.
    pub elements: usize,
}

impl Step {
    /// Returns the number of elements that one of `size` ranks sends.
    pub fn sent(&self, size: usize) -> f64 {
        let (p, n) = (size as f64, self.elements as f64);
        match self.collective {
            Collective::Slice { .. } | Collective::Pad { .. } => 0.0,
            Collective::ReduceScatter { .. } | Collective::AllGather { .. } => (p - 1.0) / p * n,
            Collective::AllToAll { .. } => (p - 1.0) / p * n / p,
            Collective::AllReduce { .. } => 2.0 * (p - 1.0) / p * n,
        }
    }
}

/// Returns the steps that bring a tensor from one layout to another, in order.
///
/// Collectives that make a tensor smaller come first, those that make it larger last. If several
/// dimensions of the mesh cut the same dimension of the tensor, an inner cut is undone before an outer
/// cut changes, and made again afterwards.
///
/// # Errors
/// If a layout does not fit the shape, or the mesh has more than 64 dimensions.
pub fn conversion(
    shape: &[usize],
    mesh: &[usize],
    from: &Layout,
    to: &Layout,
) -> Result<Vec<Step>, Error> {
    for layout in [from, to] {
        if !layout.fits(shape, mesh) || mesh.len() > DIMENSIONS_MAX {
            let message = format!("shape {shape:?} on mesh {mesh:?} cannot lie as {layout}");
            return Err(Error::new(Kind::Layout, message));
        }
    }
    let elements = shape.iter().product();
    Ok(phases(from, to).iter().map(|phase| phase.step(elements, mesh)).collect())
}

/// One collective of a conversion, independent of the tensor's shape and the mesh's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Phase {
    /// The dimension of the mesh.
    pub mesh_dim: usize,
    /// Collective of this step.
    pub collective: Collective,
    /// The mesh dimensions that cut the tensor when it is whole along `mesh_dim`, as bits; the lowest
    /// bit is for the first dimension.
    pub cuts: u64,
}

impl Phase {
    /// Returns the step for a tensor with this many elements on a mesh of these sizes.
    pub fn step(&self, elements: usize, mesh: &[usize]) -> Step {
        let cut = mesh.iter().enumerate().filter(|(dim, _)| self.cuts >> dim & 1 == 1);
        let parts: usize = cut.map(|(_, size)| size).product();
        let Phase { mesh_dim, collective, .. } = *self;
        Step { mesh_dim, collective, elements: elements.div_ceil(parts) }
    }
}

/// Returns the collectives that bring any tensor from one layout to another. They equal those of
/// [`conversion`] if both layouts fit.
///
/// # Panics
/// If the mesh has more than 64 dimensions.
pub fn phases(from: &Layout, to: &Layout) -> Vec<Phase> {
    assert!(from.0.len() <= DIMENSIONS_MAX, "mesh of {} dimensions", from.0.len());
    let mut state = State { now: from.clone(), to };
    let mut phases = Vec::new();
    while let Some((mesh_dim, target, collective)) = state.next() {
        state.now.0[mesh_dim] = Placement::Replicated;
        let cuts = state.now.0.iter().enumerate();
        let cuts = cuts.filter(|(_, placement)| cut_dim(**placement).is_some());
        let cuts = cuts.map(|(dim, _)| 1 << dim).sum();
        phases.push(Phase { mesh_dim, collective, cuts });
        state.now.0[mesh_dim] = target;
    }
    phases
}

/// A conversion that is being planned.
struct State<'a> {
    now: Layout,
    to: &'a Layout,
}

impl State<'_> {
    /// Returns the dimension of the mesh to change next, its placement after that, and the collective.
    fn next(&self) -> Option<(usize, Placement, Collective)> {
        let pending: Vec<usize> =
            (0..self.now.0.len()).filter(|at| self.now.0[*at] != self.to.0[*at]).collect();
        let step = |at: usize, target| {
            collective(self.now.0[at], target).map(|collective| (collective, at, target))
        };
        let wanted = pending.iter().filter_map(|at| step(*at, self.target(*at)));
        let free = wanted.filter(|(collective, at, _)| self.is_free(*at, *collective));
        let next = free.min().or_else(|| {
            let cuts = pending.iter().filter_map(|at| self.blocking(*at)).max();
            let partial = |at: &&usize| matches!(self.now.0[**at], Placement::Partial(_));
            let blocking = cuts.or_else(|| pending.iter().find(partial).copied());
            step(blocking?, Placement::Replicated)
        });
        next.map(|(collective, at, target)| (at, target, collective))
    }

    /// Returns the next placement: values that are partial by another reduction are reduced first.
    fn target(&self, at: usize) -> Placement {
        match (self.now.0[at], self.to.0[at]) {
            (Placement::Partial(_), Placement::Partial(_)) => Placement::Replicated,
            (_, to) => to,
        }
    }

    /// Returns whether a change is possible now. It is not possible if another cut of the same dimension
    /// of the tensor must be undone first, or if values are partial by another reduction.
    fn is_free(&self, at: usize, collective: Collective) -> bool {
        let differs = |outer: &usize| self.now.0[*outer] != self.to.0[*outer];
        let waits = (0..at).filter(differs).any(|outer| self.share(outer, at));
        let mixes = |placement: &Placement| match (collective, placement) {
            (Collective::Pad { reduction, .. }, Placement::Partial(other)) => reduction != *other,
            _ => false,
        };
        self.blocking(at).is_none() && !waits && !self.now.0.iter().any(mixes)
    }

    /// Returns whether changes at two dimensions of the mesh involve the same dimension of the tensor.
    fn share(&self, outer: usize, at: usize) -> bool {
        let made = cut_dim(self.to.0[at]);
        made.is_some() && [cut_dim(self.now.0[outer]), cut_dim(self.to.0[outer])].contains(&made)
    }

    /// Returns the innermost dimension of the mesh that cuts within the dimension that `at` changes.
    fn blocking(&self, at: usize) -> Option<usize> {
        let touched = [cut_dim(self.now.0[at]), cut_dim(self.to.0[at])];
        let cuts = |inner: &usize| {
            let dim = cut_dim(self.now.0[*inner]);
            dim.is_some() && touched.contains(&dim)
        };
        (at + 1..self.now.0.len()).rev().find(cuts)
    }
}

fn cut_dim(placement: Placement) -> Option<usize> {
    match placement {
        Placement::Sharded(dim) => Some(dim),
        Placement::Replicated | Placement::Partial(_) => None,
    }
}

/// Returns the collective between two placements; `None` if they are equal or both partial.
fn collective(from: Placement, to: Placement) -> Option<Collective> {
    use Placement::{Partial, Replicated, Sharded};
    match (from, to) {
        (Partial(reduction), Replicated) => Some(Collective::AllReduce { reduction }),
        (Partial(reduction), Sharded(dim)) => Some(Collective::ReduceScatter { reduction, dim }),
        (Sharded(dim), Replicated) => Some(Collective::AllGather { dim }),
        (Sharded(from), Sharded(to)) => Some(Collective::AllToAll { from, to }),
        (Replicated, Sharded(dim)) => Some(Collective::Slice { dim }),
        (Replicated, Partial(reduction)) => Some(Collective::Pad { reduction, from: None }),
        (Sharded(dim), Partial(reduction)) => Some(Collective::Pad { reduction, from: Some(dim) }),
        (Replicated, Replicated) | (Partial(_), Partial(_)) => None,
    }
}
