//! Parsers for flags with units: bytes and times.
//!
//! A number without a unit counts bytes or seconds, as it did before flags had units. Bandwidths have their
//! own type, `thinwire_link::Bandwidth`.

use std::ops::RangeInclusive;
use std::time::Duration;

use thinwire_report::figures::parse_bytes;

/// Units of time in seconds. A name comes before any shorter name that is its ending.
const TIMES: [(&str, f64); 5] =
    [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// Returns a parser for numbers of bytes within a range, such as `25MB`, `64KiB` or `4096`.
pub fn bytes<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: TryFrom<u64> + TryInto<u64> + PartialOrd + Copy,
{
    move |text| {
        let number = text.parse().or_else(|_| parse_bytes(text))?;
        let found = T::try_from(number).ok().filter(|bytes| range.contains(bytes));
        found.ok_or_else(|| {
            let [least, most] = [*range.start(), *range.end()].map(|end| end.try_into());
            let (least, most) = (least.unwrap_or(0), most.unwrap_or(u64::MAX));
            format!("{number} bytes, expected {least} to {most}")
        })
    }
}

/// Returns a parser for times within a range of seconds, such as `30s`, `500ms`, `2m` or `30`.
pub fn time(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let unit = TIMES.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
        let (number, unit) = unit.unwrap_or((text, 1.0));
        let seconds = number.trim().parse::<f64>().ok().map(|number| number * unit);
        let within = *range.start() as f64..=*range.end() as f64;
        let found = seconds.filter(|seconds| within.contains(seconds));
        found.map(Duration::from_secs_f64).ok_or_else(|| {
            format!("expected a time of {}s to {}s, such as 30s or 2m", range.start(), range.end())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units_or_none() {
        let bytes = bytes(0..=1_usize << 30);
        for (text, expected) in
            [("0", 0), ("4096", 4096), ("25MB", 25_000_000), ("64 KiB", 65_536), ("1GiB", 1 << 30)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        assert_eq!(bytes("2GiB"), Err("2147483648 bytes, expected 0 to 1073741824".to_owned()));
        for text in ["", "-1", "MB", "1.5", "25Mb", "25mbit"] {
            assert!(bytes(text).unwrap_err().contains("no number of bytes"), "{text}");
        }
    }

    #[test]
    fn times_have_units_or_none() {
        let time = time(1..=86_400);
        let table =
            [("30", 30.0), ("30s", 30.0), ("1500ms", 1.5), ("2 m", 120.0), ("1d", 86_400.0)];
        for (text, seconds) in table {
            assert_eq!(time(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "0", "999ms", "2d", "nan", "inf", "-3s", "s", "3 weeks"] {
            assert!(
                time(text).unwrap_err().starts_with("expected a time of 1s to 86400s"),
                "{text}"
            );
        }
    }
}
