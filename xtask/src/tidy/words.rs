//! Words: names that a crate has given up for the terms of its field.
//!
//! docs/glossary.md has the terms. Only names of functions, types and modules count: locals, fields and
//! sentences may use the same words in their ordinary sense.

use super::source::{code_lines, is_test_file, outside_tests, source_of};

/// Crates, and the words that no function, type or module of theirs has in its name.
const RETIRED: [(&str, &[&str]); 9] = [
    ("cli", &["crew", "parting", "standing", "course"]),
    ("collective", &["broken"]),
    (
        "job",
        &[
            "seat",
            "side",
            "sides",
            "authority",
            "campaign",
            "life",
            "given",
            "absence",
            "part",
            "facts",
            "saving",
            "heir",
            "heirs",
        ],
    ),
    (
        "server",
        &[
            "desk",
            "courier",
            "letter",
            "news",
            "atlas",
            "chart",
            "portion",
            "keeper",
            "duty",
            "archive",
            "coordination",
            "visitor",
            "visitors",
            "claim",
            "exits",
            "exposed",
            "hold",
            "misfit",
            "figures",
            "away",
            "kept",
        ],
    ),
    (
        "link",
        &["stranger", "strangers", "visitor", "visitors", "conversation", "farewell", "patience"],
    ),
    ("member", &["hail", "knock", "beat", "heir", "holder", "holders", "authority"]),
    ("program", &["home"]),
    ("sync", &["ways", "broken", "wires", "carried", "haste"]),
    (
        "train",
        &["machine", "wires", "carried", "frozen", "haste", "voice", "leg", "legs", "moment"],
    ),
];

/// Keywords before the name of an item.
const ITEMS: [&str; 6] = ["fn", "struct", "enum", "type", "trait", "mod"];
/// Words before such a keyword, besides those about visibility.
const QUALIFIERS: [&str; 5] = ["const", "async", "unsafe", "extern", "\"C\""];

/// Returns the complaints about one Rust file.
pub fn check(path: &str, content: &str) -> Vec<String> {
    let Some((folder, file)) = source_of(path) else { return Vec::new() };
    if is_test_file(path) {
        return Vec::new();
    }
    let of = |name: &str| folder.strip_prefix("crates/") == Some(name);
    let Some((_, words)) = RETIRED.iter().find(|(name, _)| of(name)) else { return Vec::new() };
    let modules = file.trim_end_matches(".rs").split('/').map(|name| (1, name));
    let items =
        outside_tests(code_lines(content)).filter_map(|(line, code)| Some((line, item(code)?)));
    let retired =
        |name: &str| words_of(name).into_iter().find(|word| words.contains(&word.as_str()));
    let found = modules.chain(items).filter_map(|(line, name)| Some((line, name, retired(name)?)));
    let complain =
        |(line, name, word)| format!("{path}:{line}: '{word}' in {name}, see docs/glossary.md");
    found.map(complain).collect()
}

/// Returns the name of the item that a line begins, if it begins one.
fn item(line: &str) -> Option<&str> {
    let is_qualifier =
        |word: &&str| QUALIFIERS.contains(word) || word.starts_with("pub") || word.ends_with(')');
    let mut words = line.split_whitespace().skip_while(is_qualifier);
    words.next().filter(|word| ITEMS.contains(word))?;
    words.next()?.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
}

/// Returns the words of a name in snake or camel case, in small letters.
fn words_of(name: &str) -> Vec<String> {
    let mut spaced = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() {
            spaced.push('_');
        }
        spaced.extend(letter.to_lowercase());
    }
    spaced.split('_').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_and_files_have_no_retired_word_and_locals_and_other_crates_may() {
        let place = "crates/job/src/elastic.rs";
        for line in ["pub struct Seat {", "    pub(super) fn part(self) -> u32 {", "mod saving;"] {
            assert_eq!(check(place, line).len(), 1, "{line}");
            assert_eq!(check("crates/plan/src/lib.rs", line).len(), 0, "{line}");
        }
        for line in
            ["let part = 1;", "fn parted() {", "/// A seat.", "#[cfg(test)]\nmod saving {\n}"]
        {
            assert_eq!(check(place, line).len(), 0, "{line}");
        }
        assert_eq!(check("crates/job/src/elastic/seat.rs", "").len(), 1);
    }
}
