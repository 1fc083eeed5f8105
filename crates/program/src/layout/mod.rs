//! Layouts: where ranks stand, where every node works, and where every tensor lies.

mod assignment;
mod mesh;

pub use assignment::{Assignment, End, without_partial};
pub use mesh::{MESH_DIMENSIONS, Mesh, mesh_dimension, parts_of};
