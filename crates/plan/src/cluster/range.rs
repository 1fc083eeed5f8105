//! Ranges of the numbers in cluster files, in the units of their fields.
//!
//! Each range admits every real machine, and keeps the results of later multiplications and divisions finite:
//! with a rate of 5e-324, a step would never end.

use crate::Error;

/// Range of a number, including both ends.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    least: f64,
    most: f64,
    /// Whether 0, which is below the range, is also allowed.
    none: bool,
    /// Unit of the field.
    unit: &'static str,
}

impl Range {
    const fn new(least: f64, most: f64, unit: &'static str) -> Range {
        Range { least, most, none: false, unit }
    }

    const fn or_none(self) -> Range {
        Range { none: true, ..self }
    }
}

pub(super) const TFLOPS: Range = Range::new(1e-6, 1e6, "10^12 floating-point operations a second");
pub(super) const MEMORY_GIB: Range = Range::new(1e-6, 1e6, "2^30 bytes");
pub(super) const FIXED_MIB: Range = Range::new(1e-6, 1e9, "2^20 bytes").or_none();
pub(super) const SLACK: Range = Range::new(1e-6, 10.0, "bytes for each byte of a plan").or_none();
pub(super) const GBYTE_PER_S: Range = Range::new(1e-6, 1e6, "10^9 bytes a second");
pub(super) const GBIT: Range = Range::new(1e-6, 1e6, "10^9 bits a second");
pub(super) const TIME_US: Range = Range::new(1e-6, 1e9, "microseconds").or_none();
pub(super) const GFLOP: Range = Range::new(1e-9, 1e12, "10^9 floating-point operations");
/// Part of a device's nominal rate.
pub(super) const PART: Range =
    Range::new(1e-6, 1.0, "parts of the rate that a device is sold with");
pub(super) const PACE: Range = Range::new(1e-6, 1e6, "times the rate of others of its kind");
/// Returns the value, if it is in the range.
///
/// # Errors
/// Returns an error with the value, the range and the unit.
pub(crate) fn within(about: &str, field: &str, value: f64, range: Range) -> Result<f64, Error> {
    let Range { least, most, none, unit } = range;
    if (least..=most).contains(&value) || none && value == 0.0 {
        return Ok(value);
    }
    let or_none = if none { "0 or " } else { "" };
    let [found, least, most] = [value, least, most].map(number);
    let found = format!("{about}: {field} is {found}, expected {or_none}{least} to {most}");
    Err(Error::file(found).with_hint(format!("{} counts {unit}", field_of(field))))
}

/// Returns the name of the field itself, if the name stands for one number of a matrix or a table.
fn field_of(field: &str) -> &str {
    [" from ", " at "].iter().fold(field, |field, cut| field.split(cut).next().unwrap_or(field))
}

/// Formats a number with few characters.
fn number(value: f64) -> String {
    match value.abs() {
        plain if plain == 0.0 || (1e-3..1e6).contains(&plain) || !plain.is_finite() => {
            value.to_string()
        }
        _ => format!("{value:e}"),
    }
}

#[cfg(test)]
mod tests {
    use thinwire_wire::Hint;

    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, -1.0, 0.71, 1e6, 5e-324, f64::NAN, f64::INFINITY].map(number);
        assert_eq!(shown, ["0", "-1", "0.71", "1e6", "5e-324", "NaN", "inf"]);
    }

    #[test]
    fn a_refusal_has_the_value_the_range_and_the_unit() {
        let error = within("level 'pod'", "gbit_matrix from 2 to 1", 5e-324, GBIT).unwrap_err();
        let expected = "level 'pod': gbit_matrix from 2 to 1 is 5e-324, expected 1e-6 to 1e6";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.hint(), Some("gbit_matrix counts 10^9 bits a second"));
        for (value, fits) in [(0.0, true), (-0.0, true), (1e-6, true), (1e9, true), (1.1e9, false)]
        {
            assert_eq!(within("a", "latency_us", value, TIME_US).is_ok(), fits, "{value}");
        }
        assert!(
            within("a", "gbit", 0.0, GBIT).is_err() && within("a", "gbit", -1.0, GBIT).is_err()
        );
    }
}
