//! Reports that fit a terminal: long lines continue below the column in which they end.

/// The longest line in letters.
const WIDTH: usize = 100;
/// Letters of words that stay together.
const TOGETHER_MAX: usize = 24;
/// Columns that begin further to the right leave too little room below them.
const COLUMN_MAX: usize = 48;

/// Text whose lines are broken at spaces where they would be longer than 100 letters. Lines that go
/// on are indented by two spaces, or as far as the last column of the line, if that begins on the
/// left. Words that are longer stay whole.
pub fn wrapped(text: &str) -> String {
    text.split_inclusive('\n').flat_map(|line| broken(line.trim_end_matches('\n'))).collect()
}

/// A line as several, each with its end.
fn broken(line: &str) -> Vec<String> {
    if line.chars().count() <= WIDTH {
        return vec![format!("{line}\n")];
    }
    let indent = " ".repeat(column(line));
    let mut lines = Vec::new();
    let mut now = String::new();
    for (at, word) in together(line).iter().enumerate() {
        let long = now.chars().count() + 1 + word.chars().count() > WIDTH;
        if long && !word.is_empty() && !now.trim().is_empty() {
            lines.push(format!("{}\n", now.trim_end()));
            now = format!("{indent}{word}");
        } else {
            now += if at > 0 { " " } else { "" };
            now += word;
        }
    }
    lines.push(format!("{}\n", now.trim_end()));
    lines
}

/// The words of a line; some that belong together are one, as long as they stay short.
fn together(line: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match all.last_mut() {
            Some(last) if belongs(last, word) && last.len() + 1 + word.len() <= TOGETHER_MAX => {
                *last += " ";
                *last += word;
            }
            _ => all.push(word.to_owned()),
        }
    }
    all
}

/// Whether a number goes with its unit or with what it is the number of, "1.5 MiB" and "ZeRO 1", or
/// a small word with the next one.
fn belongs(before: &str, word: &str) -> bool {
    let last = before.rsplit(' ').next().unwrap_or(before);
    let number = |word: &str| word.starts_with(|letter: char| letter.is_ascii_digit());
    let small = ["a", "of", "in", "to", "x", "and", "the", "at", "by"].contains(&last);
    !last.is_empty()
        && !word.is_empty()
        && !last.ends_with([',', ';', ':', ')'])
        && (small || number(last) != number(word))
        && !last.ends_with('%')
}

/// Returns the indentation of the lines that continue.
fn column(line: &str) -> usize {
    let own = line.chars().take_while(|letter| *letter == ' ').count();
    let letters: Vec<char> = line.chars().collect();
    let begins = |at: &usize| letters[at - 2..*at] == [' ', ' '] && letters[*at] != ' ';
    let last = (own + 2..letters.len().min(COLUMN_MAX)).rev().find(begins);
    last.unwrap_or(own + 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_short_stays_and_what_is_long_goes_on_below_its_column() {
        let table = format!("a  1\n\n  name           2.5 s  {}\n", "word ".repeat(30).trim_end());
        let lines: Vec<String> = wrapped(&table).lines().map(str::to_owned).collect();
        assert_eq!(lines[..2], ["a  1", ""]);
        assert_eq!(lines[2], format!("  name           2.5 s  {}", "word ".repeat(15).trim_end()));
        assert_eq!(lines[3], format!("{}{}", " ".repeat(24), "word ".repeat(15).trim_end()));
        assert_eq!(lines.len(), 4);
        let plain = wrapped(&"word ".repeat(30));
        assert_eq!(plain.lines().nth(1).unwrap().find('w'), Some(2));
        let long = "x".repeat(200);
        assert_eq!(wrapped(&format!("{long}\n")), format!("{long}\n"));
    }

    proptest! {
        #[test]
        fn no_line_is_longer_and_no_word_is_lost(words in prop::collection::vec("[a-z×]{0,30}", 0..60)) {
            let text = words.join(" ");
            let found = wrapped(&text);
            prop_assert!(found.lines().all(|line| line.chars().count() <= WIDTH), "{found}");
            prop_assert!(found.split_whitespace().eq(text.split_whitespace()));
        }
    }
}
