//! Bandwidths as users write them.

use std::fmt;
use std::str::FromStr;

/// Bandwidth of one direction of one rank.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Bandwidth {
    bits_per_s: f64,
}

const UNITS: [(&str, f64); 4] = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];

impl Bandwidth {
    /// Returns a bandwidth in bits per second.
    ///
    /// # Panics
    /// If it is not positive and finite.
    pub fn bits_per_s(bits_per_s: f64) -> Bandwidth {
        assert!(bits_per_s.is_finite() && bits_per_s > 0.0, "bandwidth of {bits_per_s} bit/s");
        Bandwidth { bits_per_s }
    }

    /// Returns the bandwidth in bytes per second.
    pub fn bytes_per_s(self) -> f64 {
        self.bits_per_s / 8.0
    }

    /// Reads "100mbit", "2.5gbit", or "none" for no limit.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn parse_limit(text: &str) -> Result<Option<Bandwidth>, InvalidBandwidth> {
        if text == "none" { Ok(None) } else { text.parse().map(Some) }
    }
}

impl FromStr for Bandwidth {
    type Err = InvalidBandwidth;

    fn from_str(text: &str) -> Result<Bandwidth, InvalidBandwidth> {
        let invalid = || InvalidBandwidth(text.to_owned());
        let (number, unit) = UNITS
            .into_iter()
            .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))
            .ok_or_else(invalid)?;
        let bits_per_s = number.trim().parse::<f64>().map_err(|_| invalid())? * unit;
        // Below 1 kbit/s not even a heartbeat gets through; above 10 Tbit/s is a typing mistake.
        if !(1e3..=1e13).contains(&bits_per_s) {
            return Err(invalid());
        }
        Ok(Bandwidth { bits_per_s })
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = UNITS
            .into_iter()
            .find(|(_, unit)| self.bits_per_s >= *unit)
            .unwrap_or(UNITS[UNITS.len() - 1]);
        write!(f, "{}{name}", self.bits_per_s / unit)
    }
}

/// A text that is not a bandwidth.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no bandwidth, expected for example 100mbit, 2.5gbit or none")]
pub struct InvalidBandwidth(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_parse_and_print_back() {
        for text in ["100mbit", "1gbit", "2.5gbit", "64kbit"] {
            assert_eq!(text.parse::<Bandwidth>().unwrap().to_string(), text);
        }
        assert_eq!("100mbit".parse::<Bandwidth>().unwrap().bytes_per_s(), 12.5e6);
        assert_eq!(Bandwidth::parse_limit("none"), Ok(None));
        for text in ["", "fast", "mbit", "-1mbit", "0gbit", "nangbit", "infgbit", "1e30gbit", "100"]
        {
            assert!(Bandwidth::parse_limit(text).is_err(), "{text}");
        }
    }
}
