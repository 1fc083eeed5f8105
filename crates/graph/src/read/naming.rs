//! Numbers for vertices that a file identifies by ids: any whole numbers, or texts.

use std::collections::HashMap;

use super::options::Numbering;
use crate::store::Ids;

/// Ids that a file has used so far, in the order of their first use.
#[derive(Default)]
pub(super) struct Naming {
    numbers: HashMap<String, u32>,
}

/// Reason why a vertex cannot have a number: the value found, and the value expected.
pub(super) type Reason = (String, String);

impl Naming {
    /// Returns the number of the vertex with an id; a new id gets a new number.
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

    /// Returns the number of vertices so far.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns whether all ids are whole numbers in the usual spelling.
    pub fn has_numbers_alone(&self) -> bool {
        self.numbers.keys().all(|id| whole(id).is_some())
    }

    /// Renumbers the vertices of edges in the order of their ids, and returns the ids. Ids are ordered by
    /// value if all are numbers, and otherwise as texts, by their bytes.
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

/// Returns the value of a whole number in the usual spelling, without leading zeros or a plus.
fn whole(id: &str) -> Option<i64> {
    id.parse().ok().filter(|number: &i64| number.to_string() == id)
}

/// Returns a vertex that the file numbers itself.
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
