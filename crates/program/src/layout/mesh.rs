//! The mesh of a stage, and the position of a rank in it.

use thinwire_model::{Layout, Part, Placement};
use thinwire_wire::{Rank, World};

use crate::{Error, Plan};

/// The names of a mesh's first two dimensions, as pins and models write them.
pub const MESH_DIMENSIONS: [&[&str]; 2] = [&["data", "dp", "0"], &["tensor", "tp", "1"]];

/// Returns the dimension of a mesh that has this name.
pub fn mesh_dimension(name: &str) -> Option<usize> {
    MESH_DIMENSIONS.iter().position(|names| names.contains(&name))
}

/// The position of a rank. Ranks are numbered stage by stage, with the mesh's last dimension running fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// The lengths of the mesh.
    pub sizes: Vec<usize>,
    /// The stage.
    pub stage: usize,
    /// The coordinates on the mesh.
    pub coordinates: Vec<usize>,
}

impl Mesh {
    /// Returns the position of a rank under a plan.
    ///
    /// # Errors
    /// If the plan has no such rank.
    pub fn of(plan: &Plan, rank: Rank) -> Result<Mesh, Error> {
        if rank.index() >= plan.ranks() {
            return Err(Error::invalid(format!("{rank} of a plan for {} ranks", plan.ranks())));
        }
        let (sizes, within) = (plan.sizes(), plan.stage_ranks());
        let coordinates = coordinates(&sizes, rank.index() % within);
        Ok(Mesh { sizes, stage: rank.index() / within, coordinates })
    }

    /// Returns whether this is the first rank of the job.
    pub fn is_first(&self) -> bool {
        self.stage == 0 && self.coordinates.iter().all(|at| *at == 0)
    }

    /// Returns the coordinate in the first dimension.
    pub fn first(&self) -> usize {
        self.coordinates.first().copied().unwrap_or(0)
    }

    /// Returns the position with another coordinate in the first dimension.
    pub fn with_first(&self, first: usize) -> Mesh {
        let mut mesh = self.clone();
        mesh.coordinates.iter_mut().take(1).for_each(|at| *at = first);
        mesh
    }

    /// Returns the positions along the first dimension.
    pub fn first_dim(&self) -> impl Iterator<Item = Mesh> {
        (0..self.sizes.first().copied().unwrap_or(1)).map(|first| self.with_first(first))
    }

    /// Returns the rank with the same coordinates on another stage.
    pub fn on_stage(&self, stage: usize) -> Rank {
        self.rank(stage, &self.coordinates)
    }

    /// Returns the ranks of the stage.
    pub fn ranks(&self) -> Vec<Rank> {
        self.everywhere().map(|mesh| mesh.on_stage(self.stage)).collect()
    }

    /// Returns the ranks that differ from this one only in one dimension of the mesh, in order.
    pub fn group(&self, mesh_dim: usize) -> Vec<Rank> {
        let mut coordinates = self.coordinates.clone();
        let member = |at: usize| {
            coordinates[mesh_dim] = at;
            self.rank(self.stage, &coordinates)
        };
        (0..self.sizes[mesh_dim]).map(member).collect()
    }

    /// Returns the groups of all ranks of the stage along a dimension; they exchange at the same time.
    pub fn groups(&self, mesh_dim: usize) -> Vec<Vec<Rank>> {
        let firsts = self.everywhere().filter(|mesh| mesh.coordinates[mesh_dim] == 0);
        firsts.map(|mesh| mesh.group(mesh_dim)).collect()
    }

    /// Returns the ranks of two stages, in pairs with equal coordinates.
    pub fn pairs(&self, [one, other]: [usize; 2]) -> Vec<Vec<Rank>> {
        self.everywhere().map(|mesh| vec![mesh.on_stage(one), mesh.on_stage(other)]).collect()
    }

    /// Returns the stage of a rank.
    pub fn stage_of(&self, rank: Rank) -> usize {
        rank.index() / self.sizes.iter().product::<usize>()
    }

    /// Returns all positions of the stage.
    fn everywhere(&self) -> impl Iterator<Item = Mesh> {
        let ranks: usize = self.sizes.iter().product();
        (0..ranks).map(|at| Mesh { coordinates: coordinates(&self.sizes, at), ..self.clone() })
    }

    /// Returns the world of the ranks that have different values under a layout, with this rank's number
    /// in that world. Replicas have the same number, so they draw the same random numbers.
    pub fn random_group(&self, layout: &Layout) -> World {
        let places = layout.0.iter().zip(self.sizes.iter().zip(&self.coordinates));
        let places = places.filter(|(placement, _)| **placement != Placement::Replicated);
        let (at, size) = places
            .fold((0, 1), |(group, count), (_, (size, at))| (group * size + at, count * size));
        World::new(at as u32, size as u32).expect("a group is one of all")
    }

    fn rank(&self, stage: usize, coordinates: &[usize]) -> Rank {
        let places = self.sizes.iter().zip(coordinates);
        Rank(places.fold(stage, |rank, (size, at)| rank * size + at) as u32)
    }
}

/// Returns the coordinates for an index on a mesh, with the last dimension running fastest.
fn coordinates(sizes: &[usize], mut rest: usize) -> Vec<usize> {
    let mut coordinates = vec![0; sizes.len()];
    for (at, size) in coordinates.iter_mut().zip(sizes).rev() {
        *at = rest % size;
        rest /= size;
    }
    coordinates
}

/// Returns a rank's part of every dimension of a tensor.
pub fn parts_of(shape: &[usize], layout: &Layout, mesh: &Mesh) -> Vec<Part> {
    let start = layout.start(shape, &mesh.sizes, &mesh.coordinates);
    let local = layout.local_shape(shape, &mesh.sizes);
    start.into_iter().zip(local).map(|(start, length)| Part { start, length }).collect()
}
