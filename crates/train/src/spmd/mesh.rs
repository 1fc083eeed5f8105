//! The place of a rank: its stage, and its coordinates on the stage's mesh.

use thinwire_model::{Layout, Placement};
use thinwire_wire::{Rank, World};

use super::plan::{Plan, invalid};
use crate::error::Error;

/// Where a rank is. Ranks are numbered stage by stage, with the mesh's last dimension fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// The lengths of the mesh.
    pub sizes: Vec<usize>,
    /// The stage.
    pub stage: usize,
    /// Where on the mesh.
    pub coordinates: Vec<usize>,
}

impl Mesh {
    /// The place of a rank under a plan.
    ///
    /// # Errors
    /// If the plan has no such rank.
    pub fn of(plan: &Plan, rank: Rank) -> Result<Mesh, Error> {
        if rank.index() >= plan.ranks() {
            return Err(invalid(format!("{rank} of a plan for {} ranks", plan.ranks())));
        }
        let (sizes, within) = (plan.sizes(), plan.stage_ranks());
        let coordinates = coordinates(&sizes, rank.index() % within);
        Ok(Mesh { sizes, stage: rank.index() / within, coordinates })
    }

    /// Whether this is the first rank of all.
    pub fn is_first(&self) -> bool {
        self.stage == 0 && self.coordinates.iter().all(|at| *at == 0)
    }

    /// Where in the first dimension.
    pub fn first(&self) -> usize {
        self.coordinates.first().copied().unwrap_or(0)
    }

    /// The place elsewhere in the first dimension.
    pub fn with_first(&self, first: usize) -> Mesh {
        let mut mesh = self.clone();
        mesh.coordinates.iter_mut().take(1).for_each(|at| *at = first);
        mesh
    }

    /// The places along the first dimension.
    pub fn first_dim(&self) -> impl Iterator<Item = Mesh> {
        (0..self.sizes.first().copied().unwrap_or(1)).map(|first| self.with_first(first))
    }

    /// The rank with the same coordinates on another stage.
    pub fn on_stage(&self, stage: usize) -> Rank {
        self.rank(stage, &self.coordinates)
    }

    /// The ranks that differ from this one in one dimension of the mesh only, in their order.
    pub fn group(&self, mesh_dim: usize) -> Vec<Rank> {
        let mut coordinates = self.coordinates.clone();
        let member = |at: usize| {
            coordinates[mesh_dim] = at;
            self.rank(self.stage, &coordinates)
        };
        (0..self.sizes[mesh_dim]).map(member).collect()
    }

    /// The same of all ranks of the stage, this one's with them: all that exchange side by side.
    pub fn groups(&self, mesh_dim: usize) -> Vec<Vec<Rank>> {
        let firsts = self.everywhere().filter(|mesh| mesh.coordinates[mesh_dim] == 0);
        firsts.map(|mesh| mesh.group(mesh_dim)).collect()
    }

    /// The ranks of two stages, in pairs that have equal coordinates.
    pub fn pairs(&self, [one, other]: [usize; 2]) -> Vec<Vec<Rank>> {
        self.everywhere().map(|mesh| vec![mesh.on_stage(one), mesh.on_stage(other)]).collect()
    }

    /// The stage of a rank.
    pub fn stage_of(&self, rank: Rank) -> usize {
        rank.index() / self.sizes.iter().product::<usize>()
    }

    /// All places of the stage.
    fn everywhere(&self) -> impl Iterator<Item = Mesh> {
        let ranks: usize = self.sizes.iter().product();
        (0..ranks).map(|at| Mesh { coordinates: coordinates(&self.sizes, at), ..self.clone() })
    }

    /// This rank among those with values of a layout that differ: replicas have one voice.
    pub fn voice(&self, layout: &Layout) -> World {
        let places = layout.0.iter().zip(self.sizes.iter().zip(&self.coordinates));
        let places = places.filter(|(placement, _)| **placement != Placement::Replicated);
        let (at, size) = places
            .fold((0, 1), |(voice, count), (_, (size, at))| (voice * size + at, count * size));
        World::new(at as u32, size as u32).expect("a voice is one of all")
    }

    fn rank(&self, stage: usize, coordinates: &[usize]) -> Rank {
        let places = self.sizes.iter().zip(coordinates);
        Rank(places.fold(stage, |rank, (size, at)| rank * size + at) as u32)
    }
}

/// Where on a mesh a number is, with the last dimension fastest.
fn coordinates(sizes: &[usize], mut rest: usize) -> Vec<usize> {
    let mut coordinates = vec![0; sizes.len()];
    for (at, size) in coordinates.iter_mut().zip(sizes).rev() {
        *at = rest % size;
        rest /= size;
    }
    coordinates
}
