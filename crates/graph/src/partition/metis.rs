//! Multilevel k-way partitioning (Karypis and Kumar, "Multilevel k-way Partitioning Scheme for Irregular
//! Graphs", 1998), by the library METIS.

#[cfg(feature = "metis")]
pub(super) use imp::partition;
#[cfg(not(feature = "metis"))]
pub(super) use none::partition;

#[cfg(feature = "metis")]
mod imp {
    use std::sync::{Mutex, PoisonError};

    use metis::{Graph, Idx, option};

    use super::super::weights::{Options, Weights};
    use crate::adjacency::Adjacency;
    use crate::error::Error;

    /// METIS draws from the C library's only random stream, so two calls at the same time would change each
    /// other's parts.
    static TURN: Mutex<()> = Mutex::new(());

    /// Partitions a graph whose edges have both directions. Training vertices have an additional weight,
    /// whose sum equals the weight of all vertices.
    pub fn partition(
        graph: &Adjacency,
        weights: &Weights,
        options: &Options,
    ) -> Result<Vec<u16>, Error> {
        let (offsets, neighbors) = lists(graph)?;
        let heavy = weights.bonus.round().clamp(1.0, f64::from(1 << 20)) as Idx;
        let weights: Vec<Idx> =
            weights.is_training.iter().map(|training| 1 + Idx::from(*training) * heavy).collect();
        // METIS takes the balance in thousandths above 1.
        let excess = (((options.balance_max - 1.0) * 1000.0) as Idx).clamp(1, 1000);
        let failed = |error: String| Error::value(format!("METIS cannot partition this: {error}"));
        let prepared = Graph::new(1, options.parts as Idx, &offsets, &neighbors)
            .map_err(|error| failed(error.to_string()))?
            .set_vwgt(&weights)
            .set_option(option::Seed((options.seed & 0x7fff_ffff) as Idx))
            .set_option(option::UFactor(excess));
        let mut parts = vec![0; graph.vertices() as usize];
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        prepared.part_kway(&mut parts).map_err(|error| failed(error.to_string()))?;
        Ok(parts.into_iter().map(|part| part as u16).collect())
    }

    /// Returns the lists of neighbours in the form that METIS takes, without loops.
    fn lists(graph: &Adjacency) -> Result<(Vec<Idx>, Vec<Idx>), Error> {
        let limit = Idx::MAX;
        if graph.edges() > limit as u64 {
            let edges = graph.edges();
            return Err(Error::value(format!(
                "METIS cannot partition {edges} edges in both directions, expected at most {limit}"
            )));
        }
        let (mut offsets, mut neighbors) = (vec![0], Vec::new());
        for vertex in 0..graph.vertices() {
            let others = graph.neighbors(vertex).iter().filter(|other| **other != vertex);
            neighbors.extend(others.map(|other| *other as Idx));
            offsets.push(neighbors.len() as Idx);
        }
        Ok((offsets, neighbors))
    }
}

#[cfg(not(feature = "metis"))]
mod none {
    use super::super::weights::{Options, Weights};
    use crate::adjacency::Adjacency;
    use crate::error::Error;

    /// Refuses, since this build has no METIS.
    pub fn partition(_: &Adjacency, _: &Weights, _: &Options) -> Result<Vec<u16>, Error> {
        let hint = "build with feature metis";
        Err(Error::value("METIS is not in this build".to_owned()).with_hint(hint))
    }
}
