//! Job spec: everything that all processes of an elastic job must have in common.
//!
//! Entries are compared one by one, so that a refusal names the entry that differs, with both values. The
//! hash of all entries is the fingerprint that the coordinator keeps.

use serde::{Deserialize, Serialize};
use thinwire_wire::{encode, fingerprint};

use crate::error::Error;

/// Largest number of entries of a job spec.
pub const ENTRIES_MAX: usize = 64;
/// Largest number of bytes of an entry's name.
pub const NAME_BYTES_MAX: usize = 64;
/// Largest number of bytes of an entry's value.
pub const VALUE_BYTES_MAX: usize = 1024;

/// Names and values that all processes of an elastic job must have in common, sorted by name, without
/// duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(String, String)>")]
pub struct JobSpec {
    all: Vec<(String, String)>,
}

impl JobSpec {
    /// Returns a job spec with its entries in the order of their names.
    ///
    /// # Errors
    /// If there are too many entries, one is too long, or a name occurs twice.
    pub fn new(mut all: Vec<(String, String)>) -> Result<JobSpec, Error> {
        all.sort();
        let found = all.len();
        if found > ENTRIES_MAX {
            return Err(Error::invalid(format!(
                "{found} entries of a job spec, expected at most {ENTRIES_MAX}"
            )));
        }
        if let Some(pair) = all.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let (name, first, second) = (&pair[0].0, &pair[0].1, &pair[1].1);
            return Err(Error::invalid(format!("{name} is both {first} and {second}")));
        }
        for (name, value) in &all {
            if name.len() > NAME_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
                let (name_bytes, value_bytes) = (name.len(), value.len());
                return Err(Error::invalid(format!(
                    "job spec entry of {name_bytes} + {value_bytes} bytes, expected at most \
                     {NAME_BYTES_MAX} + {VALUE_BYTES_MAX}"
                )));
            }
        }
        Ok(JobSpec { all })
    }

    /// Returns the hash of all names and values (64-bit FNV-1a).
    pub fn fingerprint(&self) -> u64 {
        fingerprint(encode(&self.all))
    }

    /// Returns the first entry that differs from the job's: its name, its value here, and its value in `job`.
    pub fn difference<'a>(&'a self, job: &'a JobSpec) -> Option<(&'a str, &'a str, &'a str)> {
        let names = self.all.iter().chain(&job.all).map(|(name, _)| name.as_str());
        let mut differing = names.filter(|name| self.value(name) != job.value(name));
        let name = differing.next()?;
        Some((name, self.value(name), job.value(name)))
    }

    fn value(&self, name: &str) -> &str {
        let found = self.all.iter().find(|(known, _)| known == name);
        found.map_or("nothing", |(_, value)| value)
    }
}

impl TryFrom<Vec<(String, String)>> for JobSpec {
    type Error = Error;

    fn try_from(all: Vec<(String, String)>) -> Result<JobSpec, Error> {
        JobSpec::new(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(all: &[(&str, &str)]) -> JobSpec {
        let all = all.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        JobSpec::new(all.collect()).unwrap()
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let job = spec(&[("data", "a.txt"), ("model", "gpt")]);
        assert_eq!(spec(&[("model", "gpt"), ("data", "a.txt")]).difference(&job), None);
        let other = spec(&[("data", "a.txt"), ("model", "mlp")]);
        assert_eq!(other.difference(&job), Some(("model", "mlp", "gpt")));
        let fewer = spec(&[("model", "gpt")]);
        assert_eq!(fewer.difference(&job), Some(("data", "nothing", "a.txt")));
        assert_eq!(job.difference(&fewer), Some(("data", "a.txt", "nothing")));
    }

    #[test]
    fn the_fingerprint_is_that_of_names_and_values_in_any_order() {
        let one = spec(&[("data", "a"), ("model", "b")]);
        assert_eq!(one.fingerprint(), spec(&[("model", "b"), ("data", "a")]).fingerprint());
        assert_ne!(one.fingerprint(), spec(&[("data", "am"), ("odel", "b")]).fingerprint());
        assert_ne!(one.fingerprint(), spec(&[("data", "a")]).fingerprint());
    }

    #[test]
    fn repeated_names_and_long_values_are_refused() {
        let twice = vec![("seed".to_owned(), "1".to_owned()), ("seed".to_owned(), "2".to_owned())];
        assert_eq!(JobSpec::new(twice).unwrap_err().to_string(), "seed is both 1 and 2");
        let long = vec![("data".to_owned(), "x".repeat(2000))];
        let said = "job spec entry of 4 + 2000 bytes, expected at most 64 + 1024";
        assert_eq!(JobSpec::new(long).unwrap_err().to_string(), said);
    }
}
