//! Numbers for vertices that a file knows by ids: any whole numbers, or texts.

use std::collections::HashMap;

use super::options::Numbering;
use crate::store::Ids;

/// Ids that a file has used so far, in the order of their first use.
#[derive(Default)]
pub(super) struct Naming {
    numbers: HashMap<String, u32>,
}

/// Reason why a vertex cannot have a number: what was found, and what was expected.
pub(super) type Reason = (String, String);

impl Naming {
    /// Returns the number of the vertex with an id, which is new or was used before.
    pub fn number(&mut self, id: &[u8]) -> Result<u32, Reason> {
        let Ok(id) = std::str::from_utf8(id) else {
            return Err((format!("'{}'", id.escape_ascii()), "an id in UTF-8".to_owned()));
        };
        if let Some(number) = self.numbers.get(id) {
            return Ok(*number);
        }
        let number = self.numbers.len() as u32;
        if number == u32::MAX - 1 {
            return Err(("another vertex".to_owned(), format!("at most {number}")));
        }
        self.numbers.insert(id.to_owned(), number);
        Ok(number)
    }

    /// Returns how many vertices have a number.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns whether all ids are whole numbers as they are usually written.
    pub fn has_numbers_alone(&self) -> bool {
        self.numbers.keys().all(|id| whole(id).is_some())
    }

    /// Numbers the vertices of edges anew, in the order of their ids, which it returns: numbers by value, if all
    /// are numbers, or else texts by their bytes.
    pub fn finish(self, pairs: &mut [(u32, u32)]) -> Ids {
        let is_numeric = self.has_numbers_alone();
        let mut sorted: Vec<(String, u32)> = self.numbers.into_iter().collect();
        match is_numeric {
            true => sorted.sort_unstable_by_key(|(id, _)| whole(id)),
            false => sorted.sort_unstable(),
        }
        let mut places = vec![0; sorted.len()];
        for (place, (_, number)) in (0..).zip(&sorted) {
            places[*number as usize] = place;
        }
        for (source, destination) in pairs {
            *source = places[*source as usize];
            *destination = places[*destination as usize];
        }
        match is_numeric {
            true => Ids::Numbers(sorted.iter().filter_map(|(id, _)| whole(id)).collect()),
            false => Ids::Texts(sorted.into_iter().map(|(id, _)| id).collect()),
        }
    }
}

/// Returns the whole number that is written in the usual way, without zeros or a plus in front.
fn whole(id: &str) -> Option<i64> {
    id.parse().ok().filter(|number: &i64| number.to_string() == id)
}

/// Returns the vertex that a file numbers itself.
pub(super) fn as_given(number: u64, numbering: Numbering) -> Result<u32, Reason> {
    let first = u64::from(numbering == Numbering::FromOne);
    let found = || format!("vertex {number}");
    if number < first {
        return Err((found(), "vertices numbered from 1".to_owned()));
    }
    match u32::try_from(number - first) {
        Ok(vertex) if vertex < u32::MAX => Ok(vertex),
        _ => Err((found(), format!("vertices below {}", u64::from(u32::MAX) + first))),
    }
}
