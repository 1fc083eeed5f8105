//! Refusals of texts of codecs: one line with the place, and the line of the text.

use super::syntax::Place;
use crate::{Error, Kind};

/// Reason why a text is refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    /// Place in the text, if there is one.
    pub place: Option<Place>,
    /// Message with the text that was found and the text that was expected.
    pub message: String,
    /// Suggestion for a correction, if there is one.
    pub hint: Option<String>,
    /// Kind of the error: the text, or a parameter that was given.
    pub kind: Kind,
}

impl Refusal {
    /// Returns a refusal at a place.
    pub(crate) fn at(place: Place, message: impl Into<String>) -> Refusal {
        Refusal { place: Some(place), message: message.into(), hint: None, kind: Kind::Program }
    }

    /// Returns a refusal of the codec without a place.
    pub(crate) fn codec(message: impl Into<String>) -> Refusal {
        Refusal { place: None, message: message.into(), hint: None, kind: Kind::Program }
    }

    /// Turns into a refusal of a parameter that the user of the codec gave.
    pub(crate) fn of_parameter(self) -> Refusal {
        Refusal { kind: Kind::Parameter, ..self }
    }

    /// Adds a hint.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Refusal {
        Refusal { hint: Some(hint.into()), ..self }
    }

    /// Returns the error about the text `source` at `path`.
    pub(crate) fn error(&self, path: &str, source: &str) -> Error {
        let at = self.place.map_or(String::new(), |at| format!(":{}:{}", at.line, at.column));
        let hint = self.hint.as_ref().map_or(String::new(), |hint| format!("; {hint}"));
        let error = Error::new(self.kind, format!("{path}{at}: {}{hint}", self.message));
        match self.place.and_then(|place| excerpt(place, source)) {
            Some(excerpt) => error.with_excerpt(excerpt),
            None => error,
        }
    }
}

/// Largest number of letters of a line that are shown, and of those before the place.
const SHOWN_MAX: usize = 100;
const BEFORE_MAX: usize = 60;

/// Returns the line, of a long one the part near the place, and a caret below it.
fn excerpt(place: Place, source: &str) -> Option<String> {
    let line = source.lines().nth(place.line - 1)?;
    let before = place.column - 1;
    let first =
        if line.chars().count() > SHOWN_MAX { before.saturating_sub(BEFORE_MAX) } else { 0 };
    let mut rest = line.chars().skip(first).map(|c| if c.is_control() { ' ' } else { c });
    let begin = if first > 0 { "…" } else { "" };
    let shown: String = rest.by_ref().take(SHOWN_MAX).collect();
    let end = if rest.next().is_some() { "…" } else { "" };
    let number = place.line.to_string();
    let margin = " ".repeat(number.len());
    let before = " ".repeat(before - first + begin.chars().count());
    Some(format!("{number} | {begin}{shown}{end}\n{margin} | {before}^"))
}

/// Returns the most similar one of `known`, if one is similar.
pub(crate) fn nearest<'a>(
    found: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let distances = known.into_iter().map(|name| (distance(found, name), name));
    let (distance, name) = distances.min()?;
    (distance <= 1 + found.len() / 4).then_some(name)
}

/// Returns the edit distance: the number of letters that change, come or go.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_is_recognised_and_a_strange_one_is_not() {
        let known = ["mean", "max", "select"];
        assert_eq!(nearest("men", known), Some("mean"));
        assert_eq!(nearest("selct", known), Some("select"));
        assert_eq!(nearest("fourier", known), None);
    }

    #[test]
    fn of_a_long_line_what_is_near_the_place_is_shown() {
        let line = format!("{}y{}", " ".repeat(50_000), "z".repeat(50_000));
        let excerpt = excerpt(Place { line: 1, column: 50_001 }, &line).unwrap();
        let (line, caret) = excerpt.split_once('\n').unwrap();
        assert!(line.starts_with("1 | …  ") && line.ends_with("zz…"), "{line}");
        let of = |text: &str, letter| text.chars().position(|c| c == letter);
        assert_eq!((of(line, 'y'), line.chars().count()), (of(caret, '^'), 106));
    }

    #[test]
    fn the_caret_stands_below_the_place() {
        let refusal = Refusal::at(Place { line: 2, column: 5 }, "no such name 'y'").hint("try 'x'");
        let error = refusal.error("a.codec", "encode x:\n    emit y\n");
        assert_eq!(error.to_string(), "a.codec:2:5: no such name 'y'; try 'x'");
        assert_eq!(error.excerpt(), Some("2 |     emit y\n  |     ^"));
    }
}
