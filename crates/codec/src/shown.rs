//! Numbers and names as messages show them: short, and numbers such that they parse back.

use std::fmt;

/// Largest number of letters of a name that an error repeats.
const LETTERS_MAX: usize = 60;

/// Number in the shorter of its two spellings: `0.01`, `1e-300`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number<T>(pub(crate) T);

impl<T: fmt::Display + fmt::LowerExp> fmt::Display for Number<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plain, power) = (self.0.to_string(), format!("{:e}", self.0));
        f.write_str(if plain.len() <= power.len() + 4 { &plain } else { &power })
    }
}

/// Cuts off a long text that a user wrote.
pub(crate) fn short(text: &str) -> String {
    match text.char_indices().nth(LETTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Formats two different numbers with as many digits as tell them apart, three at least.
pub(crate) fn apart(a: f64, b: f64) -> (String, String) {
    let with = |digits: usize| (format!("{a:.digits$}"), format!("{b:.digits$}"));
    let pairs = (3..=17).map(with);
    pairs.into_iter().find(|(a, b)| a != b).unwrap_or_else(|| (format!("{a:e}"), format!("{b:e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_read_back() {
        for (number, expected) in [
            (0.01, "0.01"),
            (1.0, "1"),
            (0.0, "0"),
            (0.0001, "0.0001"),
            (1e-30, "1e-30"),
            (1e-300, "1e-300"),
            (1.0 / 3.0, "0.3333333333333333"),
            (65536.0, "65536"),
        ] {
            assert_eq!(Number(number).to_string(), expected);
            assert_eq!(expected.parse(), Ok(number));
        }
    }

    #[test]
    fn two_values_that_differ_read_differently() {
        assert_eq!(apart(0.5, 0.143), ("0.500".to_owned(), "0.143".to_owned()));
        assert_eq!(apart(0.1429, 0.142_857), ("0.14290".to_owned(), "0.14286".to_owned()));
        assert_eq!(apart(1e-20, 2e-20), ("1e-20".to_owned(), "2e-20".to_owned()));
    }

    #[test]
    fn long_names_are_cut_off() {
        assert_eq!(short("topk:0.01"), "topk:0.01");
        assert_eq!(short(&"ä".repeat(100)), format!("{}…", "ä".repeat(60)));
    }
}
