//! Rules: codecs by the names of parameters.
//!
//! Patterns are those of file names, as Python's `fnmatch` reads them.

use std::fmt;
use std::str::FromStr;

use thinwire_codec::Choice;

use crate::UnknownPolicy;

/// The codec of the parameters whose names match a pattern.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The pattern: `*` is any text, `?` any character, `[a-z]` one of these characters, `[!a-z]` any
    /// other character.
    pub pattern: String,
    /// The codec.
    pub codec: Choice,
}

impl Rule {
    /// Returns whether the pattern matches all of a name.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) =
            (self.pattern.chars().collect(), name.chars().collect());
        matches(&pattern, &name)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.codec)
    }
}

impl FromStr for Rule {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Rule, UnknownPolicy> {
        let parts = text
            .split_once('=')
            .filter(|(pattern, codec)| !pattern.is_empty() && !codec.is_empty());
        let Some((pattern, codec)) = parts else {
            return Err(UnknownPolicy::new(format!(
                "'{text}' among codecs by name, expected PATTERN=CODEC such as *.weight=int8"
            )));
        };
        if codec == "auto" || codec.starts_with("auto:") {
            return Err(UnknownPolicy::new(format!(
                "'{text}' among codecs by name, expected a codec such as int8: auto chooses for all parameters"
            )));
        }
        Ok(Rule { pattern: pattern.to_owned(), codec: Choice::parse(codec)? })
    }
}

/// Returns whether a pattern matches all of a name.
fn matches(pattern: &[char], name: &[char]) -> bool {
    match (pattern, name) {
        ([], _) => name.is_empty(),
        // Several stars in a row are one, and cost one search.
        (['*', '*', ..], _) => matches(&pattern[1..], name),
        (['*', rest @ ..], _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        (_, []) => false,
        (['?', rest @ ..], [_, left @ ..]) => matches(rest, left),
        (['[', rest @ ..], [first, left @ ..]) => match class(rest) {
            Some((['!', class @ ..], rest)) => !has(class, *first) && matches(rest, left),
            Some((class, rest)) => has(class, *first) && matches(rest, left),
            // A bracket without an end is one.
            None => *first == '[' && matches(rest, left),
        },
        ([wanted, rest @ ..], [first, left @ ..]) => wanted == first && matches(rest, left),
    }
}

/// Parts a class of characters from what follows its end; `None` if it has no end.
fn class(pattern: &[char]) -> Option<(&[char], &[char])> {
    // A closing bracket in the first place is one of the class.
    let first = 1 + usize::from(pattern.first() == Some(&'!'));
    let end = first + pattern.get(first..)?.iter().position(|each| *each == ']')?;
    Some((&pattern[..end], &pattern[end + 1..]))
}

/// Returns whether a class has a character.
fn has(class: &[char], wanted: char) -> bool {
    match class {
        [] => false,
        [low, '-', high, rest @ ..] => (*low..=*high).contains(&wanted) || has(rest, wanted),
        [one, rest @ ..] => *one == wanted || has(rest, wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_match(pattern: &str, name: &str) -> bool {
        format!("{pattern}=int8").parse::<Rule>().unwrap().matches(name)
    }

    #[test]
    fn patterns_are_those_of_file_names() {
        let found = [
            ("*", ""),
            ("*.weight", "block.3.mlp.up.weight"),
            ("block.?.*.weight", "block.3.mlp.up.weight"),
            ("**.w*t", "a.weight"),
            ("block.[0-3].*", "block.3.up"),
            ("block.[!0-2].*", "block.3.up"),
            ("[]a]", "]"),
            ("[[]'w']", "['w']"),
            ("a[b", "a[b"),
        ];
        for (pattern, name) in found {
            assert!(is_match(pattern, name), "{pattern} {name}");
        }
        let missed = [
            ("*.weight", "block.3.mlp.up.weights"),
            ("block.?.weight", "block.13.weight"),
            ("block.[0-3].*", "block.4.up"),
            ("[!a]", "a"),
            ("?", ""),
            ("weight", "a.weight"),
        ];
        for (pattern, name) in missed {
            assert!(!is_match(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn rules_without_a_pattern_or_a_codec_are_refused() {
        let refusal = |text: &str| text.parse::<Rule>().unwrap_err().to_string();
        for text in ["*", "=int8", "*=", ""] {
            let said = format!("'{text}' among codecs by name, expected PATTERN=CODEC");
            assert!(refusal(text).starts_with(&said), "{}", refusal(text));
        }
        assert!(refusal("*=auto").contains("auto chooses for all parameters"));
        assert!(refusal("*=int9").starts_with("unknown codec 'int9'"));
    }
}
