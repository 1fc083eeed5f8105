//! Transports: the codec of a gradient or an activation, and the ranks between which it is used.
//!
//! A tensor is encoded either within the whole group, or only between units of neighbouring ranks, such as
//! hosts; within a unit it is then summed raw.

use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_wire::Rank;

/// The codec of a tensor, and the units of ranks between which it is used.
#[derive(Clone, Debug)]
pub struct Transport {
    /// The codec.
    pub codec: Arc<dyn Codec>,
    /// Number of neighbouring ranks within which the tensor is sent raw; 1 if it is encoded everywhere.
    pub within: usize,
}

impl Transport {
    /// Returns the transport of values that are sent raw everywhere.
    pub fn raw() -> Transport {
        Transport::from(thinwire_codec::raw())
    }

    /// Returns the codec of groups that exchange at the same time, and the number of neighbouring members
    /// that sum values raw before the sums are encoded. All groups must use the same numbers, since the
    /// values of one group may be replicas of another group's values. If any group is divided unevenly
    /// among the units, everything is encoded.
    pub fn of_groups(&self, groups: impl FnOnce() -> Vec<Vec<Rank>>) -> (Arc<dyn Codec>, usize) {
        if self.within <= 1 {
            return (Arc::clone(&self.codec), 1);
        }
        let groups = &groups();
        if !self.is_crossed(groups) {
            return (thinwire_codec::raw(), 1);
        }
        let mut inner = groups.iter().map(|group| self.inner(group));
        let first = inner.next().unwrap_or(1);
        let alike = inner.all(|inner| inner == first);
        (Arc::clone(&self.codec), if alike { first } else { 1 })
    }

    /// Returns whether any of these groups has ranks in several units.
    pub fn is_crossed(&self, groups: &[Vec<Rank>]) -> bool {
        let apart =
            |group: &Vec<Rank>| group.iter().any(|rank| self.unit(rank) != self.unit(&group[0]));
        self.within <= 1 || groups.iter().any(apart)
    }

    /// Returns the number of a group's members in one unit; 1 if it differs between units.
    fn inner(&self, members: &[Rank]) -> usize {
        let mine = |rank: &&Rank| self.unit(rank) == self.unit(&members[0]);
        let inner = members.iter().take_while(mine).count().max(1);
        let mut parts = members.chunks(inner);
        let even = parts.all(|part| {
            part.len() == inner && part.iter().all(|rank| self.unit(rank) == self.unit(&part[0]))
        });
        if even { inner } else { 1 }
    }

    fn unit(&self, rank: &Rank) -> usize {
        rank.index() / self.within.max(1)
    }
}

/// Returns the transport of activations in these groups: the transport for the outermost units between
/// which any of the groups exchanges.
pub fn outermost<'a>(all: &'a [Transport], groups: &[Vec<Rank>]) -> Option<&'a Transport> {
    let crossed = all.iter().filter(|transport| transport.is_crossed(groups));
    crossed.max_by_key(|transport| transport.within)
}

impl From<Arc<dyn Codec>> for Transport {
    fn from(codec: Arc<dyn Codec>) -> Transport {
        Transport { codec, within: 1 }
    }
}

#[cfg(test)]
mod tests {
    use thinwire_codec::Choice;

    use super::*;

    #[test]
    fn units_sum_as_it_is_what_is_encoded_between_them() {
        let Choice::Bytes(codec) = Choice::parse("int8").unwrap() else { panic!("bytes") };
        let of = |within, members: &[u32]| {
            let members: Vec<Rank> = members.iter().map(|rank| Rank(*rank)).collect();
            let (codec, inner) =
                Transport { codec: Arc::clone(&codec), within }.of_groups(|| vec![members]);
            (codec.to_string(), inner)
        };
        let int8 = |inner| ("int8".to_owned(), inner);
        assert_eq!(of(1, &[0, 1, 2, 3]), int8(1));
        assert_eq!(of(2, &[0, 1, 2, 3]), int8(2));
        assert_eq!(of(2, &[1, 3, 5]), int8(1));
        assert_eq!(of(4, &[4, 5]), ("none".to_owned(), 1));
        // Two in one unit, one in the next.
        assert_eq!(of(2, &[0, 1, 2]), int8(1));
    }

    #[test]
    fn groups_side_by_side_do_alike() {
        let transport = Transport { within: 4, ..Transport::raw() };
        let groups = |all: &[[u32; 2]]| -> Vec<Vec<Rank>> {
            all.iter().map(|group| group.map(Rank).to_vec()).collect()
        };
        // The first lies within a unit, the others do not.
        assert!(transport.is_crossed(&groups(&[[0, 3], [1, 4], [2, 5]])));
        assert!(!transport.is_crossed(&groups(&[[0, 3], [4, 7]])));
        assert_eq!(transport.of_groups(|| groups(&[[0, 1], [3, 4]])).1, 1);
    }

    #[test]
    fn the_outermost_units_count() {
        let all = [1, 4, 2].map(|within| Transport { within, ..Transport::raw() });
        let of = |group: &[u32]| {
            let group = group.iter().map(|rank| Rank(*rank)).collect();
            outermost(&all, &[group]).map(|transport| transport.within)
        };
        assert_eq!([of(&[0, 1]), of(&[0, 2]), of(&[0, 4])], [Some(1), Some(2), Some(4)]);
        assert!(outermost(&all[1..], &[vec![Rank(4), Rank(5)]]).is_none());
    }
}
