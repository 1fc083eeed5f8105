//! Frontier of a snapshot: the newest push of each worker that it contains.
//!
//! A worker's push has the same number in all shards. So one number per worker determines, in every
//! shard, the pushes that belong to the snapshot. This is a consistent cut (Chandy and Lamport,
//! "Distributed Snapshots", TOCS 1985).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thinwire_member::Id;

/// Number of the newest push of each worker in a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    /// Numbers, by worker.
    pub pushes: BTreeMap<Id, u64>,
}

impl Frontier {
    /// Takes the larger number of each worker from both frontiers.
    pub fn join(&mut self, other: &Frontier) {
        for (id, number) in &other.pushes {
            let newest = self.pushes.entry(*id).or_default();
            *newest = (*newest).max(*number);
        }
    }

    /// Returns whether a push belongs to the snapshot.
    pub(crate) fn contains(&self, id: Id, number: u64) -> bool {
        self.pushes.get(&id).is_some_and(|newest| number <= *newest)
    }
}

impl Serialize for Frontier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.pushes.iter().map(|(id, number)| (id.to_string(), number)))
    }
}

impl<'de> Deserialize<'de> for Frontier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Frontier, D::Error> {
        let named = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let item = |(name, number): (String, u64)| {
            let no_id = || serde::de::Error::custom(format!("'{name}' is no id"));
            Ok((parse(&name).ok_or_else(no_id)?, number))
        };
        Ok(Frontier { pushes: named.into_iter().map(item).collect::<Result<_, _>>()? })
    }
}

/// Parses an id as messages show it: sixteen lower-case hexadecimal digits.
fn parse(text: &str) -> Option<Id> {
    let id = u64::from_str_radix(text, 16).ok().map(Id)?;
    (id.to_string() == text).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frontier(pushes: &[(u64, u64)]) -> Frontier {
        Frontier { pushes: pushes.iter().map(|(id, number)| (Id(*id), *number)).collect() }
    }

    #[test]
    fn a_join_has_what_either_has() {
        let mut one = frontier(&[(1, 4), (2, 7)]);
        one.join(&frontier(&[(2, 6), (3, 1)]));
        assert_eq!(one, frontier(&[(1, 4), (2, 7), (3, 1)]));
        assert!(one.contains(Id(2), 7) && !one.contains(Id(2), 8) && !one.contains(Id(9), 0));
    }

    #[test]
    fn ids_are_texts_in_json() {
        let one = frontier(&[(255, 4)]);
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(text, r#"{"00000000000000ff":4}"#);
        assert_eq!(serde_json::from_str::<Frontier>(&text).unwrap(), one);
        assert!(serde_json::from_str::<Frontier>(r#"{"ff":4}"#).is_err());
    }
}
