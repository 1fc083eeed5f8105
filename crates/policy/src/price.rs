//! The number of ranks, adapted to the price of a rank.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use crate::{Adjustment, Observation, Policy};

/// Largest size of a file with a price, in bytes.
const BYTES_MAX: u64 = 64;

/// Policy that uses as many ranks as are allowed while a rank costs at most `max`. Otherwise, or if the
/// price is not known, it uses as few as are allowed.
///
/// The present price is the number in a file on the machine of rank 0. A script of the user keeps it up
/// to date, since every provider of spot machines publishes prices in another way. The unit is the
/// user's choice.
#[derive(Clone, Debug)]
pub struct Price {
    /// File with one number.
    pub file: PathBuf,
    /// Highest price at which ranks are added.
    pub max: f64,
    /// Steps between two reads of the file.
    pub every: u64,
}

impl Price {
    /// Returns a policy that reads the file every 20 steps.
    pub fn new(file: PathBuf, max: f64) -> Price {
        Price { file, max, every: 20 }
    }

    /// Returns the price, or the reason why it is not known.
    pub(crate) fn read(&self) -> Result<f64, String> {
        let path = self.file.display();
        let text = self.text().map_err(|error| format!("{path}: {error}"))?;
        let price = text.trim().parse::<f64>().ok().filter(|price| price.is_finite());
        price.ok_or_else(|| format!("{path} has '{}', expected a number", text.trim()))
    }

    /// Returns the text of the file. It must be a regular file of limited size: opening a pipe would
    /// wait for a writer.
    fn text(&self) -> io::Result<String> {
        let refused = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let metadata = self.file.metadata()?;
        if !metadata.is_file() {
            return refused("is no regular file");
        }
        if metadata.len() > BYTES_MAX {
            return refused("is longer than a number");
        }
        let mut text = String::new();
        File::open(&self.file)?.take(BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Policy for Price {
    fn observe(&mut self, seen: &Observation) -> Option<Adjustment> {
        let allowed = seen.ranks_allowed.clone()?;
        if !seen.step.is_multiple_of(self.every) {
            return None;
        }
        let price = self.read();
        let is_cheap = price.as_ref().is_ok_and(|price| *price <= self.max);
        let ranks = if is_cheap { *allowed.end() } else { *allowed.start() };
        let max = self.max;
        let reason = match price {
            Ok(price) => format!("a rank costs {price}, but the policy allows at most {max}"),
            Err(reason) => format!("the price is not known: {reason}"),
        };
        Adjustment::of_ranks(ranks, reason, seen)
    }

    fn resizes(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::observation;

    #[test]
    fn ranks_follow_the_price() {
        let file = std::env::temp_dir().join(format!("thinwire-price-{}", std::process::id()));
        let asked = |text: &str| {
            fs::write(&file, text).unwrap();
            Price::new(file.clone(), 0.5).observe(&observation()).unwrap()
        };
        let cheap = asked(" 0.31\n");
        assert_eq!(cheap.ranks, Some(8));
        assert_eq!(cheap.reason, "a rank costs 0.31, but the policy allows at most 0.5");
        assert_eq!(asked("0.7").ranks, Some(1));
        let unknown = asked("free");
        assert_eq!(unknown.ranks, Some(1));
        assert!(unknown.reason.ends_with("has 'free', expected a number"));
        let long = asked(&"1".repeat(65));
        assert!(long.reason.ends_with(": is longer than a number"), "{}", long.reason);
        let folder = Price::new(std::env::temp_dir(), 0.5).observe(&observation()).unwrap();
        assert!(folder.reason.ends_with(": is no regular file"), "{}", folder.reason);
        fs::remove_file(&file).unwrap();
        let gone = Price::new(file, 0.5).observe(&observation()).unwrap();
        assert!(gone.reason.starts_with("the price is not known: "));
    }
}
