//! Numbers as people read them: three significant digits and a unit.

/// Returns a time such as "412 ms", "1.50 s" or "63.1 µs".
pub fn seconds(seconds: f64) -> String {
    let scales = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")];
    scaled(seconds, &scales)
}

/// Returns a number of bytes such as "1.25 MB", in powers of ten, as networks count.
pub fn bytes(bytes: f64) -> String {
    few(bytes)
        .unwrap_or_else(|| scaled(bytes, &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")]))
}

/// Reads a number of bytes as [`bytes`] or [`binary`] writes it, with or without the space.
///
/// # Errors
/// If the text is not such a number, or the number is below one byte.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let decimal = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("KB", 1e3)];
    let kib = 1024.0_f64;
    let binary = [("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)];
    let binary = binary.map(|(name, power)| (name, kib.powi(power)));
    let mut units = decimal.into_iter().chain(binary).chain([("B", 1.0)]);
    let unit = units.find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let number = unit.and_then(|(number, unit)| Some(number.trim().parse::<f64>().ok()? * unit));
    let number = number.filter(|bytes| (1.0..1e18).contains(bytes));
    number.map(|bytes| bytes as u64).ok_or_else(|| {
        format!("'{text}' is no number of bytes, expected for example 500MB, 2GB or 1.5TB")
    })
}

/// Returns a number of bytes such as "1.25 MiB", in powers of two, as plans count memory.
pub fn binary(bytes: f64) -> String {
    let kib = 1024.0;
    let units = [(kib * kib * kib, "GiB"), (kib * kib, "MiB"), (kib, "KiB"), (1.0, "B")];
    few(bytes).unwrap_or_else(|| scaled(bytes, &units))
}

/// Returns a mean of few bytes, rounded to whole ones.
fn few(bytes: f64) -> Option<String> {
    (bytes.abs() < 999.5).then(|| format!("{} B", bytes.round() + 0.0))
}

/// Returns a rate such as "12.5 MB/s".
pub fn bytes_per_s(rate: f64) -> String {
    format!("{}/s", bytes(rate))
}

/// Returns a ratio such as "3.97×".
pub fn ratio(ratio: f64) -> String {
    if ratio.is_finite() { format!("{}×", digits(ratio)) } else { "–".to_owned() }
}

/// Returns a fraction such as "87 %".
pub fn percent(fraction: f64) -> String {
    if fraction.is_finite() { format!("{:.0} %", 100.0 * fraction) } else { "–".to_owned() }
}

/// Returns a count such as "12 300", with a thin space between thousands.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{2009}');
        }
        text.push(digit);
    }
    text
}

/// Returns a value with three significant digits.
pub fn digits(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    // Less than nothing by a rounding is nothing.
    let value = if value < 0.0 && value > -0.005 { 0.0 } else { value };
    let magnitude = value.abs();
    if magnitude >= 1e15 {
        return format!("{value:.2e}");
    }
    let decimals = match magnitude {
        _ if magnitude >= 99.95 || magnitude == 0.0 => 0,
        _ if magnitude >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// Returns a value in the largest unit that it reaches; `scales` lists the units from the largest to the
/// smallest.
pub fn scaled(value: f64, scales: &[(f64, &str)]) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    // 999.6 would be printed as 1000: the next unit begins a little early.
    let fits = |(scale, _): &&(f64, &str)| value.abs() >= 0.9995 * scale;
    let (scale, unit) = scales.iter().find(fits).unwrap_or(&scales[scales.len() - 1]);
    // Nothing is nothing, from whichever side.
    format!("{} {unit}", digits(value / scale + 0.0))
}

/// Returns the median; NaN if there are no samples.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples {
        [] => f64::NAN,
        samples if samples.len() % 2 == 1 => samples[middle],
        samples => (samples[middle - 1] + samples[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (value, text) in [
            (0.0, "0 ns"),
            (-0.0, "0 ns"),
            (1.5, "1.50 s"),
            (0.4123, "412 ms"),
            (0.9999, "1.00 s"),
            (63.14e-6, "63.1 µs"),
            (75.0, "75.0 s"),
            (f64::NAN, "–"),
            (1e300, "1.00e300 s"),
            (-1e-13, "0 ns"),
        ] {
            assert_eq!(seconds(value), text);
        }
        assert_eq!(bytes(1_250_000.0), "1.25 MB");
        assert_eq!(bytes(999_700.0), "1.00 MB");
        assert_eq!(binary(1.5 * 1024.0 * 1024.0), "1.50 MiB");
        assert_eq!((binary(3.75), bytes(99.4)), ("4 B".to_owned(), "99 B".to_owned()));
        assert_eq!(bytes_per_s(12.5e6), "12.5 MB/s");
        assert_eq!(ratio(3.966), "3.97×");
        assert_eq!(count(1_234_567), "1\u{2009}234\u{2009}567");
    }

    #[test]
    fn bytes_are_read_as_they_are_told() {
        for (text, expected) in
            [("2GB", 2_000_000_000), ("1.25 MB", 1_250_000), ("64kB", 64_000), ("3MiB", 3 << 20)]
        {
            assert_eq!(parse_bytes(text), Ok(expected));
        }
        for text in ["", "2", "GB", "-1GB", "0.5B", "2gb", "1e30GB", "nanB"] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.starts_with(&format!("'{text}' is no number of bytes")), "{error}");
        }
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }
}
