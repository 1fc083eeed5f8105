//! Subsets of a cluster with several kinds of devices: the parts that remain if devices of some kinds
//! are left out.
//!
//! Law: a subset is a cluster whose devices have the same kinds and links as in the whole cluster.

use super::{Cluster, Level};

/// Some devices of a cluster, as a separate cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Subset {
    /// Cluster of only the devices of the subset.
    pub cluster: Cluster,
    /// Number of each device in the whole cluster.
    pub devices: Vec<usize>,
}

/// Largest number of kinds of devices for which all selections of kinds are tried.
const KINDS_MAX: usize = 4;

impl Cluster {
    /// Returns the subsets that have only some kinds of devices. If the levels of the whole cluster remain
    /// regular without the other kinds, one subset covers the cluster. Otherwise there is a subset for each
    /// of the largest units whose levels remain regular.
    pub fn subsets(&self) -> Vec<Subset> {
        let mut used = self.kinds.clone();
        used.sort_unstable();
        used.dedup();
        if used.len() > KINDS_MAX {
            return Vec::new();
        }
        let mut subsets = Vec::new();
        for selection in 1..(1_usize << used.len()).max(1) - 1 {
            let at = |kind: &usize| used.iter().position(|one| one == kind).unwrap_or(0);
            let keeps = |kind: &usize| selection >> at(kind) & 1 == 1;
            let keeps: Vec<bool> = self.kinds.iter().map(keeps).collect();
            self.add_regular(&keeps, self.levels.len() - 1, 0, &mut subsets);
        }
        subsets
    }

    /// Adds the subset of the devices that are kept in a unit. If the unit is not regular, adds a subset
    /// for each of its regular members. The unit is identified by its `level` and its first innermost
    /// unit, `first`.
    fn add_regular(&self, keeps: &[bool], level: usize, first: usize, subsets: &mut Vec<Subset>) {
        let span: usize = self.levels[1..=level].iter().map(|level| level.size).product();
        let unit = first..first + span;
        let kept = keeps.iter().enumerate().map(|(at, keeps)| *keeps && unit.contains(&at));
        let kept: Vec<bool> = kept.collect();
        if !kept.contains(&true) {
            return;
        }
        match self.subset(&kept) {
            Some(subset) => {
                let is_known = subsets.iter().any(|known| known.cluster == subset.cluster);
                subsets.extend((!is_known).then_some(subset));
            }
            None => {
                let members = unit.step_by(span / self.levels[level].size);
                members.for_each(|first| self.add_regular(keeps, level - 1, first, subsets));
            }
        }
    }

    /// Returns the subset of some innermost units, if the levels around them remain regular.
    fn subset(&self, keeps: &[bool]) -> Option<Subset> {
        let (inner, outer) = self.levels.split_first()?;
        let mut levels = vec![inner.clone()];
        let mut kept = keeps.to_vec();
        for level in outer {
            levels.push(reduced(level, &kept)?);
            kept = kept.chunks(level.size).map(|unit| unit.contains(&true)).collect();
        }
        let units: Vec<usize> = (0..keeps.len()).filter(|unit| keeps[*unit]).collect();
        let devices = units.iter().flat_map(|unit| unit * inner.size..(unit + 1) * inner.size);
        let devices = devices.collect();
        let mut known: Vec<usize> = units.iter().map(|unit| self.kinds[*unit]).collect();
        let of_unit = known.clone();
        known.sort_unstable();
        known.dedup();
        let kinds = of_unit.iter().filter_map(|kind| known.binary_search(kind).ok());
        let kinds = if known.len() > 1 { kinds.collect() } else { Vec::new() };
        let of_kind = known.iter().map(|kind| self.devices[*kind].clone()).collect();
        Some(Subset { cluster: Cluster { devices: of_kind, levels, kinds }, devices })
    }
}

/// Returns a level with the members that are kept in each of its units, if all units keep the same number of
/// members and, if links differ, the same members.
fn reduced(level: &Level, kept: &[bool]) -> Option<Level> {
    let members = |unit: &[bool]| (0..unit.len()).filter(|at| unit[*at]).collect::<Vec<_>>();
    let mut all = kept.chunks(level.size).map(members).filter(|unit| !unit.is_empty());
    let first = all.next()?;
    let alike = all.all(|unit| match level.links {
        Some(_) => unit == first,
        None => unit.len() == first.len(),
    });
    alike.then(|| level.of(&first))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIX_NODES: &str = r#"
        kinds = ["a", "b", "b", "a", "c", "c"]
        [[device]]
        name = "a"
        tflops = 100
        memory_gib = 40
        memory_gbyte_per_s = 1000
        [[device]]
        name = "b"
        tflops = 50
        memory_gib = 20
        memory_gbyte_per_s = 500
        [[device]]
        name = "c"
        tflops = 25
        memory_gib = 10
        memory_gbyte_per_s = 250
        [[level]]
        name = "node"
        size = 2
        latency_us = 5
        gbit = 400
        [[level]]
        name = "rack"
        size = 3
        latency_us = 10
        gbit_matrix = [[0, 1, 2], [3, 0, 4], [5, 6, 0]]
        [[level]]
        name = "pod"
        size = 2
        latency_us = 10
        gbit = 25
    "#;

    #[test]
    fn kinds_that_are_irregular_in_the_whole_are_subsets_of_units() {
        let text = SIX_NODES.replace(
            "\"a\", \"b\", \"b\", \"a\", \"c\", \"c\"",
            "\"b\", \"a\", \"b\", \"a\", \"a\", \"a\"",
        );
        let subsets = Cluster::parse(&text).unwrap().subsets();
        let devices: Vec<_> = subsets.iter().map(|subset| &subset.devices[..]).collect();
        let expected: [&[usize]; 3] = [&[2, 3], &[6, 7, 8, 9, 10, 11], &[0, 1, 4, 5]];
        assert_eq!(devices, expected);
    }

    #[test]
    fn subsets_leave_out_kinds_where_levels_remain_regular() {
        let whole = Cluster::parse(SIX_NODES).unwrap();
        let subsets = whole.subsets();
        let named = |subset: &Subset| {
            let names = subset.cluster.devices.iter().map(|device| &device.name[..]);
            (names.collect::<String>(), subset.devices.clone())
        };
        let expected = [
            ("a".to_owned(), vec![0, 1, 6, 7]),
            ("b".to_owned(), vec![2, 3, 4, 5]),
            ("ab".to_owned(), vec![0, 1, 2, 3, 4, 5]),
            ("a".to_owned(), vec![6, 7]),
            ("c".to_owned(), vec![8, 9, 10, 11]),
            ("ac".to_owned(), vec![6, 7, 8, 9, 10, 11]),
            ("bc".to_owned(), vec![2, 3, 4, 5, 8, 9, 10, 11]),
        ];
        assert_eq!(subsets.iter().map(named).collect::<Vec<_>>(), expected);
        for subset in &subsets {
            assert_eq!(subset.cluster.size(), subset.devices.len());
        }
        let both = &subsets[6].cluster;
        assert_eq!(both.kinds, [0, 0, 1, 1]);
        assert_eq!(both.levels[1].links.as_ref().unwrap().one(0, 1).bytes_per_s, 4e9 / 8.0);
        assert!(subsets[0].cluster.kinds.is_empty(), "one kind is told by nothing");
        assert_eq!(both.levels[1].bytes_per_s, 4e9 / 8.0, "links of others do not count");
        assert_eq!(whole.levels[1].resized(2).bytes_per_s, 1e9 / 8.0);
        assert_eq!(whole.levels[1].resized(1).bytes_per_s, 1e9 / 8.0);
    }
}
