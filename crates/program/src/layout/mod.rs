//! Layouts: the positions of ranks, the strategies of nodes, and the layouts of tensors.

mod assignment;
mod mesh;

pub use assignment::{Assignment, End, without_partial};
pub use mesh::{MESH_DIMENSIONS, Mesh, mesh_dimension, parts_of};
