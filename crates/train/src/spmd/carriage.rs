//! Carriages: what a parameter's gradient travels by where ranks sum it.
//!
//! It is encoded in all of a group, or between units of neighbouring ranks alone, such as hosts;
//! within a unit it is then summed as it is.

use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_wire::Rank;

/// How a gradient travels.
#[derive(Clone, Debug)]
pub struct Carriage {
    /// What it is encoded with.
    pub codec: Arc<dyn Codec>,
    /// Within so many neighbouring ranks it travels as it is; 1 where it never does.
    pub within: usize,
}

impl Carriage {
    /// As it is, everywhere.
    pub fn raw() -> Carriage {
        Carriage::from(thinwire_codec::raw())
    }

    /// What a group does: the codec, and how many of its members sum as it is what is encoded
    /// after. A group that lies unevenly in the units is encoded everywhere.
    pub fn of_group(&self, members: &[Rank]) -> (Arc<dyn Codec>, usize) {
        let unit = |rank: &Rank| rank.index() / self.within.max(1);
        let inner = members.iter().take_while(|rank| unit(rank) == unit(&members[0])).count();
        if inner == members.len() && self.within > 1 {
            return (thinwire_codec::raw(), 1);
        }
        let mut parts = members.chunks(inner.max(1));
        let even = parts.all(|part| {
            part.len() == inner && part.iter().all(|rank| unit(rank) == unit(&part[0]))
        });
        (Arc::clone(&self.codec), if even { inner } else { 1 })
    }
}

impl From<Arc<dyn Codec>> for Carriage {
    fn from(codec: Arc<dyn Codec>) -> Carriage {
        Carriage { codec, within: 1 }
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
            let (codec, inner) = Carriage { codec: Arc::clone(&codec), within }.of_group(&members);
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
}
